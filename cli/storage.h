// What the commands say of how a layer's weights lie in memory. Knows the front door only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// "compact bf16"; of gate and up first where down lies otherwise: "compact bf16 + plain bf16". Two layers of
/// one compute and instruction set are the same if their storage is.
[[nodiscard]] std::string storage_of(const FeedForwardInfo& layer);

/// "12.03 bits a weight, 265 MB"
[[nodiscard]] std::string show_bits(const FeedForwardInfo& layer);

/// Both matrices as they are in the checkpoint, or rounded.
[[nodiscard]] bool is_plain(const FeedForwardInfo& layer);
/// Of gate, up and down as they are stored; of a packed layer as they come out of it.
[[nodiscard]] std::array<DType, 3> dtypes_of(const LayerSource& source);
/// Some weights are packed as bf16, so that there is a choice of storage.
[[nodiscard]] bool has_bf16(const LayerSource& source, Compute compute);

/// The layer's weights all are packed as bf16, so that compact storage may be asked for.
[[nodiscard]] bool all_bf16(const LayerSource& source, Compute compute);
/// A layer of a packed file that was taken as it is, not packed anew for other options.
[[nodiscard]] bool as_packed(const LayerSource& source, const FeedForwardInfo& layer);
/// "the file holds compact bf16: packed anew as plain bf16"; nothing where that is not so.
[[nodiscard]] std::string packed_anew(const LayerSource& source, const FeedForwardInfo& layer);

[[nodiscard]] std::int64_t panels_of(const FeedForwardInfo& layer);
[[nodiscard]] std::int64_t plain_panels_of(const FeedForwardInfo& layer);
[[nodiscard]] std::int64_t patches_of(const FeedForwardInfo& layer);

}  // namespace swiglu::cli
