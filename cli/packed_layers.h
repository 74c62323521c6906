// What `inspect` says of a file of packed layers beyond what it says of every checkpoint. Knows the front door
// and report.h; reads tables, no payloads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands.h"
#include "report.h"

namespace swiglu::cli {

struct PackedLayer {
  std::int64_t number;
  FeedForwardInfo info;
};

/// Makes each layer of a packed file over its mapped pages, which proves its tables. A layer that cannot be used
/// adds a problem instead. Nothing for other formats.
[[nodiscard]] std::vector<PackedLayer> packed_layers(const InspectOptions& options, const Checkpoint& model,
                                                     std::vector<std::string>& problems);

/// "bf16 compute, compact bf16, 12.03 bits a weight: 265 MB a layer, 8.48 GB in all".
[[nodiscard]] std::string show_packed(const std::vector<PackedLayer>& layers);
/// "3 of 2752 panels plain, 1234 patches"; nothing without compact storage.
[[nodiscard]] std::string show_panels(const std::vector<PackedLayer>& layers);
/// An array under `name`, empty for other formats.
void put_packed(Json& json, std::string_view name, const std::vector<PackedLayer>& layers);

/// Adds what is not there yet.
void add_problem(std::vector<std::string>& problems, const std::string& text);

}  // namespace swiglu::cli
