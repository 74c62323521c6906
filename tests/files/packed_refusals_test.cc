// Packed files that are cut, damaged or made up: every rule of the format broken once, each with the reason that
// must be given, and nothing read beyond what the file holds.
#include <sys/resource.h>

#include <fstream>
#include <utility>

#include "files/packed_file.h"
#include "support/sanitized.h"

namespace swiglu {
namespace {

using namespace testing;

/// A file of two layers whose regions lie at known places:
///   layer 2: norm 64, index 128 (3 bytes), payload 4096 (5), checksums 4160; down 4224 (4), 8192 (0), 8192 (0)
///   layer 5: norm 8192, index 8256 (3), payload 12288 (5), checksums 12352; down 12416 (4), 16384 (0), 16384 (0)
class PackedRefusals : public Packed {
 protected:
  PackedRefusals() {
    const FakeLayer layer(3, 5, 0, 1);
    write({{2, &layer}, {5, &layer}});
    bytes_ = read_file(path_);
    header_at_ = bytes_.find("{\"layout\"");
    header_ = bytes_.substr(header_at_, bytes_.size() - 64 - header_at_);
    data_ = bytes_.substr(64, header_at_ - 64);
  }
  /// The header with `to` instead of the `nth` occurrence of `from`.
  [[nodiscard]] std::string changed(std::string_view from, std::string_view to, int nth = 0) const {
    std::string text = header_;
    std::size_t at = text.find(from);
    for (; nth > 0 && at != std::string::npos; --nth) at = text.find(from, at + 1);
    EXPECT_NE(at, std::string::npos) << from << " is not in " << header_;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return text;
  }
  void header_refused(std::string_view from, std::string_view to, std::initializer_list<std::string_view> parts,
                      ErrorCode code = ErrorCode::format, int nth = 0) const {
    SCOPED_TRACE(to);
    refused(packed_file(changed(from, to, nth), data_), parts, code);
  }

  std::string bytes_, header_, data_;
  std::size_t header_at_ = 0;
};

// Opens the file, reads what it holds and checks it: how far does that go?
enum class Reached { refused_at_opening, refused_when_read, refused_when_checked, nothing_was_wrong };
Reached try_all(const std::filesystem::path& path) {
  Reached reached = Reached::refused_at_opening;
  try {
    const Checkpoint model = Checkpoint::open(path);
    reached = Reached::refused_when_read;
    read_all(model);
    reached = Reached::refused_when_checked;
    model.check_payloads();
    reached = Reached::nothing_was_wrong;
  } catch (const Error& e) {
    EXPECT_EQ(e.code() == ErrorCode::format || e.code() == ErrorCode::unsupported, true) << e.text();
    EXPECT_NE(e.text().find(path.filename().string()), std::string::npos) << e.text();
  }
  return reached;
}

TEST_F(PackedRefusals, the_helper_makes_the_file_that_the_writer_makes) {
  EXPECT_TRUE(packed_file(header_, data_) == bytes_);
  EXPECT_EQ(try_all(path_), Reached::nothing_was_wrong);
  EXPECT_EQ(header_at_, 16384U);
}

TEST_F(PackedRefusals, refuses_a_file_that_is_cut_at_any_byte) {
  for (std::size_t size = bytes_.size(); size-- > 0;) {
    std::filesystem::resize_file(path_, size);
    ASSERT_EQ(try_all(path_), Reached::refused_at_opening) << size;
  }
  refused(bytes_.substr(0, bytes_.size() - 1), {"cut short"});
  refused(bytes_.substr(0, 5000), {"cut short"});
  refused(bytes_.substr(0, 64), {"cut short"});
}

TEST_F(PackedRefusals, refuses_a_large_file_that_is_cut_at_many_places) {
  const FakeLayer layer(70'000, (2 << 20) + 5, 3 << 20, 1);
  write({{0, &layer}, {7, &layer}});
  const auto whole = std::filesystem::file_size(path_);
  for (std::uintmax_t size = whole - 1; size > 10'007; size -= 10'007) {
    std::filesystem::resize_file(path_, size);
    ASSERT_EQ(try_all(path_), Reached::refused_at_opening) << size;
  }
}

TEST_F(PackedRefusals, refuses_bytes_after_the_end) {
  for (const std::string& more : {std::string("x"), std::string(64, '\0'), std::string("SWIGLUPK")}) {
    refused(bytes_ + more, {});
  }
  refused(bytes_ + "x", {"something follows it"});
  refused(bytes_ + bytes_.substr(bytes_.size() - 64), {"to end 64 bytes after its header", "found 64 bytes more"});
  refused(bytes_ + bytes_, {"found"});
}

TEST_F(PackedRefusals, every_changed_byte_is_found) {
  const auto gap = [&](std::size_t at) {
    return (at >= 80 && at < 128) || (at >= 131 && at < 4096) || (at >= 4101 && at < 4160) ||
           (at >= 4168 && at < 4224) || (at >= 4228 && at < 8192) || (at >= 8208 && at < 8256) ||
           (at >= 8259 && at < 12288) || (at >= 12293 && at < 12352) || (at >= 12360 && at < 12416) ||
           (at >= 12420 && at < 16384);
  };
  for (std::size_t at = 8; at < bytes_.size(); ++at) {  // without the magic it is another format's file
    if (testing::kSanitized && gap(at) && at % 5 != 0) continue;        // thousands of the same zeros
    change_byte(path_, at, static_cast<char>(bytes_[at] ^ (1 << (at % 8))));
    const Reached reached = try_all(path_);
    if (at < 64 || at >= header_at_) {
      ASSERT_EQ(reached, Reached::refused_at_opening) << at;
    } else {
      ASSERT_EQ(reached, gap(at) ? Reached::refused_when_checked : Reached::refused_when_read) << at;
    }
    change_byte(path_, at, bytes_[at]);
  }
  EXPECT_EQ(try_all(path_), Reached::nothing_was_wrong);
}

TEST_F(PackedRefusals, damage_is_named_by_layer_and_part) {
  const auto damaged = [&](std::size_t at, std::initializer_list<std::string_view> parts, const auto& action) {
    change_byte(path_, at, static_cast<char>(bytes_[at] ^ 1));
    const Checkpoint model = open();
    expect_error(ErrorCode::format, parts, [&] { action(model); });
    expect_error(ErrorCode::format, {"model.swiglu: layer 5: ", "expected the checksum", "damaged"},
                 [&] { action(model); });
    expect_error(ErrorCode::format, parts, [&] { model.check_payloads(); });
    change_byte(path_, at, bytes_[at]);
  };
  damaged(8192, {"norm"}, [](const auto& model) { (void)model.layer(5); });
  damaged(12352, {"gate_up: checksums"}, [](const auto& model) { (void)model.layer(5); });
  damaged(12288, {"gate_up: payload", "5 bytes at 12288"},
          [](const auto& model) { (void)read_payload(*model.layer(5).packed, Part::gate_up); });
  damaged(8256, {"gate_up: index"}, [](const auto& model) { (void)read_index(*model.layer(5).packed, Part::gate_up); });
  damaged(12416, {"down: index"}, [](const auto& model) { (void)read_index(*model.layer(5).packed, Part::down); });
  change_byte(path_, 5000, 'x');
  expect_error(ErrorCode::format, {"zeros from 4228 to 8192", "at 5000"}, [&] { open().check_payloads(); });
}

TEST_F(PackedRefusals, refuses_other_versions_and_layouts) {
  const auto version = [&](std::string_view four) { return std::string(bytes_).replace(8, 4, four); };
  refused(version(std::string_view("\2\0\0\0", 4)),
          {"written by a newer swiglu, format version 2; this one reads version 1: pack again"},
          ErrorCode::unsupported);
  refused(version("\xff\xff\xff\xff"), {"format version 4294967295"}, ErrorCode::unsupported);
  refused(version(std::string_view("\0\0\0\0", 4)), {"expected format version 1, found 0"});
  refused(version(std::string_view("\2\0\0\0", 4)).substr(0, 200), {"newer swiglu"}, ErrorCode::unsupported);
  header_refused("x86-panel32", "arm-tile", {"x86-panel32", "arm-tile", "pack the original again"},
                 ErrorCode::unsupported);
  refused(packed_file(R"({"layout": "other"})"), {"other"}, ErrorCode::unsupported);
}

TEST_F(PackedRefusals, refuses_frames_that_make_no_sense) {
  const auto frame = [&](std::uint64_t offset, std::uint64_t length) {
    return bytes_.substr(0, bytes_.size() - 64) + little_endian(offset) + little_endian(length) +
           bytes_.substr(bytes_.size() - 48);
  };
  const std::uint64_t length = header_.size();
  for (const auto& [offset, bytes] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
           {0, length},                              // over the preamble
           {header_at_ + 1, length - 1},             // misaligned
           {header_at_, length + 1},                 // over the trailer
           {UINT64_MAX - 63, 128},                   // wraps
           {UINT64_MAX - 63, 64},                    // wraps to 0
           {1ULL << 63, 1},
           {bytes_.size() + 64, 0}  // outside
       }) {
    refused(frame(offset, bytes), {"expected the header at a multiple of 64", fmt::format("{}", offset)});
  }
  refused(frame(header_at_, length - 1), {"found 1 bytes more"});
  refused(frame(64, 0), {"more"});
  for (const std::uint64_t huge : {std::uint64_t{(16 << 20) + 1}, UINT64_MAX, UINT64_MAX - header_at_}) {
    refused(frame(header_at_, huge), {"at most 16777216 bytes", fmt::format("{}", huge)});
  }
  std::string wrong = bytes_;
  wrong[bytes_.size() - 64 + 16] ^= 1;
  refused(wrong, {"header: expected the checksum", "damaged"});
  refused(preamble() + trailer(64, ""), {"header", "bad JSON"});
}

TEST_F(PackedRefusals, refuses_headers_that_are_not_what_they_must_be) {
  for (const char* text : {"", "{", "[]", "1", "null", "\"a\"", "{}", "{} {}", "{\"layout\": 1}"}) {
    refused(packed_file(text), {"header"});
  }
  refused(packed_file("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"), {"nested deeper than 8"});
  refused(packed_file(std::string_view("{\"a\": \"\xff\"}")), {"bad JSON"});
  header_refused("\"family\"", "\"layout\"", {"\"layout\" occurs twice"});
  for (const char* key : {"layout",  "writer",  "family", "config",  "dim",       "hidden", "eps",     "model_layers",
                          "sources", "name",    "layers", "number",  "compute",   "norm",   "gate_up", "down",
                          "dtype",   "storage", "index",  "payload", "checksums", "offset", "bytes",   "checksum"}) {
    header_refused(fmt::format("\"{}\":", key), "\"no\":", {fmt::format(".{} is missing", key)});
  }
  for (const char* key : {"layout", "writer", "family", "name", "compute", "dtype", "storage", "checksum"}) {
    header_refused(fmt::format("\"{}\": \"", key), fmt::format("\"{}\": [], \"x\": \"", key), {key, "an array of 0"});
  }
  for (const char* key : {"dim", "hidden", "model_layers", "number", "offset"}) {
    for (const char* value : {"-1", "1.5", "1e3", "\"1\"", "null", "18446744073709551616", "9223372036854775808"}) {
      header_refused(fmt::format("\"{}\": ", key), fmt::format("\"{}\": {}, \"x\": ", key, value),
                     {key, "expected an integer from"});
    }
  }
  for (const char* key : {"config", "norm", "gate_up", "index", "payload", "checksums"}) {
    header_refused(fmt::format("\"{}\": {{", key), fmt::format("\"{}\": 3, \"x\": {{", key),
                   {key, "expected an object, found the number 3"});
  }
  header_refused("\"sources\": [", "\"sources\": {}, \"x\": [", {"sources: expected an array"});
  header_refused("\"layers\": [", "\"layers\": {}, \"x\": [", {"layers: expected an array"});
  header_refused("\"layers\": [", "\"layers\": [], \"x\": [", {"at least one layer"});
  header_refused("\"layers\": [", "\"layers\": [7,", {"layers[0]", "expected an object, found the number 7"});
}

TEST_F(PackedRefusals, refuses_absurd_numbers) {
  header_refused("\"dim\": 4", "\"dim\": 0", {"config.dim"});
  header_refused("\"hidden\": 6", "\"hidden\": 0", {"config.hidden"});
  // The sublayer would refuse these too, but without naming the file: sides beyond 2^40, products from 2^57.
  header_refused("\"hidden\": 6", "\"hidden\": 1152921504606846976", {"config.hidden"});
  header_refused("\"hidden\": 6", "\"hidden\": 1099511627777", {"config.hidden", "from 1 to 1099511627776"});
  header_refused("\"dim\": 4", "\"dim\": 1099511627777", {"config.dim", "from 1 to 1099511627776"});
  header_refused("\"dim\": 4, \"hidden\": 6", "\"dim\": 1099511627776, \"hidden\": 131072",
                 {"config.hidden", "from 1 to 131071"});
  for (const char* eps : {"0", "-1e-5", "1e-60", "1e40", "\"1\"", "null"}) {
    header_refused("\"eps\": 1e-06", fmt::format("\"eps\": {}", eps), {"config.eps", "small positive number"});
  }
  header_refused("\"model_layers\": 8", "\"model_layers\": 0", {"model_layers"});
  header_refused("\"model_layers\": 8", "\"model_layers\": 1000001", {"model_layers"});
  header_refused("\"bytes\": ", "\"bytes\": -1, \"x\": ", {"sources[0].bytes"});
}

TEST_F(PackedRefusals, refuses_layers_that_are_doubled_or_out_of_order) {
  header_refused("\"number\": 5", "\"number\": 2", {"layers[1].number", "one above 2"});
  header_refused("\"number\": 5", "\"number\": 1", {"layers[1].number", "one above 2"});
  header_refused("\"number\": 5", "\"number\": 8", {"layers[1].number", "from 0 to 7"});
}

TEST_F(PackedRefusals, refuses_unknown_types_storages_and_compute) {
  for (const char* value : {"f64", "BF16", "i8", ""}) {
    header_refused("\"dtype\": \"bf16\"", fmt::format("\"dtype\": \"{}\"", value),
                   {"gate_up.dtype", "\"f32\" or \"bf16\" or \"f16\"", value});
  }
  header_refused("\"storage\": \"compact\"", "\"storage\": \"automatic\"", {"storage", "automatic"});
  header_refused("\"compute\": \"bf16\"", "\"compute\": \"automatic\"", {"compute", "automatic"});
  header_refused("\"dtype\": \"bf16\"", "\"dtype\": \"f16\"", {"storage", "\"plain\" for weights of f16"});
}

TEST_F(PackedRefusals, refuses_checksums_that_are_not_16_digits) {
  for (const char* value : {"", "0", "0123456789ABCDEF", "0123456789abcdef0", "0x23456789abcdef", "-123456789abcdef"}) {
    header_refused("\"checksum\": \"", fmt::format("\"checksum\": \"{}\", \"x\": \"", value),
                   {"norm.checksum", "16 hexadecimal digits"});
  }
}

TEST_F(PackedRefusals, refuses_regions_outside_the_file) {
  for (const char* offset : {"16448", "1152921504606846976"}) {
    header_refused("\"offset\": 12288", fmt::format("\"offset\": {}", offset),
                   {"gate_up.payload", "header at 16384", offset});
  }
  for (const char* offset : {"0", "63", "9223372036854775807", "18446744073709551615"}) {
    header_refused("\"offset\": 12288", fmt::format("\"offset\": {}", offset), {"gate_up.payload.offset", offset});
  }
  header_refused("\"offset\": 12288, \"bytes\": 5", "\"offset\": 12288, \"bytes\": 4097", {"gate_up.payload", "4097"});
  header_refused("\"offset\": 12288, \"bytes\": 5", "\"offset\": 12288, \"bytes\": 1152921504606846976",
                 {"gate_up.payload", "1152921504606846976"});
  header_refused("\"offset\": 12288, \"bytes\": 5", "\"offset\": 12288, \"bytes\": 18446744073709551615",
                 {"gate_up.payload.bytes", "18446744073709551615"});
  header_refused("\"offset\": 12288, \"bytes\": 5", "\"offset\": 12288, \"bytes\": -5", {"gate_up.payload.bytes"});
}

TEST_F(PackedRefusals, refuses_regions_at_wrong_alignments) {
  header_refused("\"offset\": 12288", "\"offset\": 12352", {"gate_up.payload.offset", "multiple of 4096"});
  header_refused("\"offset\": 8256", "\"offset\": 8257", {"gate_up.index.offset", "multiple of 64"});
  header_refused("\"offset\": 64", "\"offset\": 68", {"norm.offset", "multiple of 64"});
  // A large payload wants a huge page.
  const std::string large = changed("\"offset\": 12288, \"bytes\": 5", "\"offset\": 12288, \"bytes\": 2097152");
  refused(packed_file(large, data_ + std::string(4 << 20, '\0')), {"gate_up.payload.offset", "multiple of 2097152"});
}

TEST_F(PackedRefusals, refuses_regions_that_overlap_or_leave_holes) {
  header_refused("\"offset\": 12288", "\"offset\": 4096", {"gate_up payload begins at 4096, inside", "they overlap"});
  header_refused("\"offset\": 8256", "\"offset\": 8192", {"layer 5: ", "begins at 8192, inside", "they overlap"});
  header_refused("\"offset\": 8256", "\"offset\": 8320",
                 {"layer 5: gate_up index begins at 8320, expected 8256", "a hole"});
  header_refused("\"offset\": 12416", "\"offset\": 12480", {"begins at 12480, expected 12416", "a hole"});
  refused(packed_file(header_, data_ + std::string(64, 'x')), {"the header begins at 16448, expected 16384", "a hole"});
  refused(packed_file(header_, data_.substr(0, data_.size() - 64)), {"header at 16320"});
}

TEST_F(PackedRefusals, refuses_sizes_that_contradict_the_config) {
  header_refused("\"offset\": 8192, \"bytes\": 16", "\"offset\": 8192, \"bytes\": 20",
                 {"layers[1].norm.bytes: expected 16 for a dim of 4, found 20"});
  header_refused("\"dim\": 4", "\"dim\": 5", {"layers[0].norm.bytes: expected 20 for a dim of 5, found 16"});
  header_refused("\"offset\": 12352, \"bytes\": 8", "\"offset\": 12352, \"bytes\": 16",
                 {"gate_up.checksums.bytes: expected 8 for a payload of 5 bytes, found 16"});
  header_refused("\"offset\": 12352, \"bytes\": 8", "\"offset\": 12352, \"bytes\": 0", {"gate_up.checksums.bytes"});
}

TEST_F(PackedRefusals, text_out_of_a_file_is_printed_escaped) {
  header_refused("x86-panel32", R"(\u001b[31m)", {"\\x1b[31m"}, ErrorCode::unsupported);
  write_file(path_, packed_file(changed("\"name\": \"model.safetensors\"", R"("name": "\u0007\n")"), data_));
  EXPECT_TRUE(has_note(open(), "\\x07\\n")) << open().notes().at(0);
}

TEST_F(PackedRefusals, keys_that_are_not_known_are_left_alone) {
  write_file(path_, packed_file(changed("\"family\"", "\"comment\": [1, {}], \"family\""), data_));
  EXPECT_EQ(try_all(path_), Reached::nothing_was_wrong);
}

TEST_F(PackedRefusals, a_file_that_is_cut_after_opening_is_an_io_error) {
  const FakeLayer layer(16, 3 << 20, 100, 1);
  write({{2, &layer}, {5, &layer}});
  OpenOptions options;
  options.map = true;
  const Checkpoint model = open();
  const LayerSource read = model.layer(2);
  const LayerSource mapped = open(options).layer(2);
  std::filesystem::resize_file(path_, (4 << 20) + 3);
  const auto shorter = [&](const auto& action) { expect_error(ErrorCode::io, {"model.swiglu", "shorter"}, action); };
  shorter([&] { (void)read_payload(*read.packed, Part::gate_up); });
  shorter([&] { (void)read_payload(*read.packed, Part::down); });
  shorter([&] { (void)read_index(*read.packed, Part::down); });
  shorter([&] { (void)mapped.packed->view_payload(Part::gate_up); });
  shorter([&] { (void)mapped.packed->view_payload(Part::down); });
  shorter([&] { (void)model.layer(5); });
  EXPECT_THROW(model.check_payloads(), Error);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve more than any limit
// A file that is one hole but for its ends takes no room on the disk, and its size justifies any allocation.
TEST_F(PackedRefusals, what_does_not_fit_in_memory_is_an_error_that_names_the_file) {
  constexpr std::uint64_t kWide = std::uint64_t{1} << 30, kEnd = 4 * kWide + 4096;
  const auto region = [](std::uint64_t at, std::uint64_t bytes) {
    return fmt::format(R"({{"offset": {}, "bytes": {}, "checksum": "{:016x}"}})", at, bytes, files::checksum({}));
  };
  const std::string none = region(kEnd, 0);
  const std::string part = fmt::format(R"({{"dtype": "bf16", "storage": "plain", "index": {}, "payload": {}, )"
                                       R"("checksums": {}}})",
                                       none, none, none);
  std::string header = fmt::format(
      R"({{"layout": "x86-panel32", "writer": "w", "family": "f", "config": {{"dim": {}, "hidden": 1, "eps": 1}}, )"
      R"("model_layers": 1, "sources": [], "layers": [{{"number": 0, "compute": "bf16", "norm": {}, )"
      R"("gate_up": {}, "down": {}}}]}})",
      kWide, region(64, 4 * kWide), part, part);
  const auto index = header.find(region(kEnd, 0));
  header.replace(index, none.size(), region(4 * kWide + 64, 0));  // the first after the norm
  write_file(path_, preamble());
  std::filesystem::resize_file(path_, kEnd);
  std::ofstream(path_, std::ios::binary | std::ios::app) << header << trailer(kEnd, header);

  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const Checkpoint model = open();
  const struct rlimit small{.rlim_cur = rlim_t{2} << 30, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  expect_error(ErrorCode::no_memory, {"model.swiglu: layer 0"}, [&] { (void)model.layer(0); });
  expect_error(ErrorCode::no_memory, {"model.swiglu"}, [&] { model.check_payloads(); });
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}
#endif

TEST_F(PackedRefusals, reads_beyond_a_part_are_usage_errors) {
  const LayerSource layer = open().layer(2);
  std::array<std::byte, 8> room{};
  const std::span<std::byte> all(room);
  const auto usage = [&](const auto& action) { expect_error(ErrorCode::usage, {"model.swiglu: layer 2"}, action); };
  usage([&] { layer.packed->read_index(Part::gate_up, all.first(4)); });
  usage([&] { layer.packed->read_index(Part::gate_up, all.first(2)); });
  usage([&] { layer.packed->read_payload(Part::gate_up, 0, all.first(6)); });
  usage([&] { layer.packed->read_payload(Part::gate_up, 1, all.first(5)); });
  usage([&] { layer.packed->read_payload(Part::gate_up, 6, all.first(0)); });
  for (const std::int64_t offset : {std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    usage([&] { layer.packed->read_payload(Part::gate_up, offset, all.first(1)); });
    usage([&] { layer.packed->read_payload(Part::gate_up, offset, all.first(0)); });
  }
}

}  // namespace
}  // namespace swiglu
