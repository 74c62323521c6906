// Packed files: what is written comes back, read or mapped, and the front door tells what is in the file. What
// is refused has a file of its own, packed_refusals_test.cc.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "files/checkpoint.h"
#include "files/packed_file.h"

namespace swiglu {
namespace {

using namespace testing;

void expect_same(const LayerSource& found, const FakeLayer& written, bool mapped) {
  ASSERT_NE(found.packed, nullptr);
  EXPECT_EQ(found.gate, nullptr);
  EXPECT_EQ(found.up, nullptr);
  EXPECT_EQ(found.down, nullptr);
  EXPECT_EQ(found.norm, written.norm);
  EXPECT_EQ(found.packed->compute(), written.kind);
  for (const Part part : kParts) {
    const FakeLayer::Bytes& bytes = written.parts[static_cast<std::size_t>(part)];
    const PackedSource::Matrix matrix = found.packed->matrix(part);
    EXPECT_EQ(matrix.dtype, bytes.matrix.dtype);
    EXPECT_EQ(matrix.storage, bytes.matrix.storage);
    EXPECT_EQ(matrix.index_bytes, std::ssize(bytes.index));
    EXPECT_EQ(matrix.payload_bytes, std::ssize(bytes.payload));
    EXPECT_TRUE(read_index(*found.packed, part) == bytes.index);
    EXPECT_TRUE(read_payload(*found.packed, part) == bytes.payload);
    const auto view = found.packed->view_payload(part);
    EXPECT_EQ(view != nullptr, mapped && !bytes.payload.empty());
    if (view == nullptr) continue;
    EXPECT_EQ(std::memcmp(view.get(), bytes.payload.data(), bytes.payload.size()), 0);
    const std::uintptr_t alignment = matrix.payload_bytes >= (2 << 20) ? 2 << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.get()) % alignment, 0U);
  }
}

TEST_F(Packed, layers_come_back_as_they_were_written_read_or_mapped) {
  const FakeLayer a(0, 0, 1, 1);
  FakeLayer b(100, kChunk, kChunk + 1, 2);
  b.kind = Compute::f32;
  b.norm = {-0.0F, 1e-40F, 3, 4};
  FakeLayer c(70'001, (2 << 20) + 5, 2 << 20, 3);
  c.parts[1].matrix = {DType::f16, Storage::plain, 70'002, 2 << 20};
  write({{0, &a}, {5, &b}, {7, &c}});
  EXPECT_EQ(names(), (std::set<std::string>{"config.json", "model.safetensors", "model.swiglu"}));
  for (const bool map : {false, true}) {
    OpenOptions options;
    options.map = map;
    const Checkpoint model = open(options);
    expect_same(model.layer(0), a, map);
    expect_same(model.layer(5), b, map);
    expect_same(model.layer(7), c, map);
    model.check_payloads();
    EXPECT_EQ(std::bit_cast<std::uint32_t>(model.layer(5).norm[0]), 0x80000000U);
  }
}

TEST_F(Packed, the_front_door_tells_what_the_file_holds) {
  FakeLayer a(16, 100, 100, 1);
  a.parts[1].matrix.storage = Storage::plain;
  a.parts[1].matrix.dtype = DType::f32;
  write({{2, &a}, {3, &a}, {6, &a}});
  const Checkpoint model = open();
  EXPECT_EQ(model.format(), "packed");
  EXPECT_EQ(model.family(), "llama");
  EXPECT_EQ(model.layers(), 3);
  EXPECT_EQ(model.layer_numbers(), (std::vector<std::int64_t>{2, 3, 6}));
  EXPECT_EQ(model.config().dim, kDim);
  EXPECT_EQ(model.config().hidden, kHidden);
  EXPECT_EQ(model.config().eps, 1e-6);
  EXPECT_EQ(model.layer(2).config.eps, 1e-6);
  EXPECT_EQ(model.layer(2).packed->config().eps, 1e-6);
  EXPECT_EQ(model.layer(2).packed->name(), path_.string() + ": layer 2");
  EXPECT_EQ(model.shards(), 1);
  EXPECT_EQ(model.size_bytes(), std::filesystem::file_size(path_));
  EXPECT_TRUE(has_note(model, fmt::format("layers 2-3, 6 of 8, packed by swiglu {} from model.safetensors ({} bytes)",
                                          version(), std::filesystem::file_size(folder_ / "model.safetensors"))))
      << model.notes().at(0);
  ASSERT_EQ(model.tensors().size(), 12U);
  const auto expect_tensor = [&](std::size_t i, const char* role, const char* dtype, std::vector<std::int64_t> shape) {
    const TensorInfo& tensor = model.tensors()[i];
    EXPECT_EQ(tensor.role, role);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.shape, shape);
    EXPECT_EQ(tensor.layer, 6);
    EXPECT_EQ(tensor.name, fmt::format("layers.6.{}", role));
    EXPECT_EQ(tensor.files, (std::vector<std::string>{"model.swiglu"}));
  };
  expect_tensor(8, "gate", "BF16 compact", {kHidden, kDim});
  expect_tensor(9, "up", "BF16 compact", {kHidden, kDim});
  expect_tensor(10, "down", "F32", {kDim, kHidden});
  expect_tensor(11, "norm", "F32", {kDim});
}

TEST_F(Packed, layer_numbers_of_other_formats_count_from_zero) {
  EXPECT_EQ(original().layer_numbers(), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Packed, a_layer_that_is_not_in_the_file_is_a_usage_error_that_lists_those_that_are) {
  const FakeLayer a(0, 10, 10, 1);
  write({{0, &a}, {5, &a}, {6, &a}});
  for (const std::int64_t i : {std::int64_t{1}, std::int64_t{7}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    expect_error(ErrorCode::usage, {fmt::format("layer {} is not in the file", i), "layers 0, 5-6"},
                 [&] { (void)open().layer(i); });
  }
  write({{0, &a}, {1, &a}});
  expect_error(ErrorCode::usage, {"layer 2 is out of range: the checkpoint has layers 0 to 1"},
               [&] { (void)open().layer(2); });
  std::vector<std::int64_t> odd;
  for (std::int64_t i = 1; i < 100; i += 2) odd.push_back(i);
  EXPECT_EQ(files::ranges_text(odd), "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, … (50 in all)");
}

TEST_F(Packed, what_was_packed_from_a_packed_file_names_the_original) {
  const FakeLayer a(16, 100, 100, 1);
  write({{2, &a}, {6, &a}});
  {
    const Checkpoint first = open();
    PackedWriter writer(path_, first);  // over itself: the old file stays readable while it is open
    const LayerSource layer = first.layer(6);
    writer.add(6, *layer.packed, layer.norm);
    writer.commit();
  }
  expect_same(open().layer(6), a, false);
  EXPECT_EQ(open().layers(), 1);
  EXPECT_TRUE(has_note(open(), "layer 6 of 8")) << open().notes().at(0);
  EXPECT_TRUE(has_note(open(), "from model.safetensors")) << open().notes().at(0);
}

TEST_F(Packed, options_confirm_or_override_as_elsewhere) {
  const FakeLayer a(16, 100, 100, 1);
  write({{2, &a}});
  OpenOptions options;
  options.eps = 0.25;
  options.hidden = kHidden;
  const Checkpoint model = open(options);
  EXPECT_EQ(model.config().eps, 0.25);
  EXPECT_EQ(model.layer(2).config.eps, 0.25);
  EXPECT_EQ(model.layer(2).packed->config().eps, 0.25);
  EXPECT_TRUE(has_note(model, "eps 0.25 instead of 1e-06"));
  options.hidden = 7;
  expect_error(ErrorCode::shape, {"model.swiglu", "7", "6"}, [&] { (void)open(options); });
  options.collect_problems = true;
  EXPECT_EQ(open(options).problems().size(), 1U);
  expect_error(ErrorCode::shape, {"7"}, [&] { (void)open(options).layer(2); });
}

TEST_F(Packed, only_packed_files_can_be_mapped) {
  OpenOptions options;
  options.map = true;
  expect_error(ErrorCode::usage, {"only files of packed layers can be mapped", "huggingface"},
               [&] { (void)Checkpoint::open(folder_.path(), options); });
  expect_error(ErrorCode::usage, {"only files of packed layers can be mapped", "model.safetensors"},
               [&] { (void)Checkpoint::open(folder_ / "model.safetensors", options); });
}

TEST_F(Packed, content_decides_and_the_name_does_not) {
  const FakeLayer a(16, 100, 100, 1);
  path_ = folder_ / "weights.pth";
  write({{2, &a}});
  EXPECT_EQ(open().format(), "packed");
  expect_error(ErrorCode::format, {"a file of packed layers"}, [&] { (void)read_npy(path_); });
}

TEST_F(Packed, sources_outlive_the_checkpoint_and_mappings_outlive_the_source) {
  const FakeLayer a(16, 3 << 20, 100, 1);
  write({{2, &a}});
  OpenOptions options;
  options.map = true;
  LayerSource layer = open(options).layer(2);
  std::filesystem::remove(path_);
  EXPECT_TRUE(read_payload(*layer.packed, Part::down) == a.parts[1].payload);
  const auto view = layer.packed->view_payload(Part::gate_up);
  layer.packed = nullptr;
  EXPECT_EQ(std::memcmp(view.get(), a.parts[0].payload.data(), a.parts[0].payload.size()), 0);
}

TEST_F(Packed, mappings_are_gone_with_the_last_pointer) {
  const FakeLayer a(16, 3 << 20, 100, 1);
  write({{2, &a}});
  OpenOptions options;
  options.map = true;
  const auto mappings = [&] {
    int count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) count += line.find("model.swiglu") != std::string::npos ? 1 : 0;
    return count;
  };
  const LayerSource layer = open(options).layer(2);
  EXPECT_EQ(mappings(), 0);
  auto first = layer.packed->view_payload(Part::gate_up);
  auto second = first;
  EXPECT_EQ(mappings(), 1);
  first = nullptr;
  EXPECT_EQ(mappings(), 1);
  second = nullptr;
  EXPECT_EQ(mappings(), 0);
}

TEST_F(Packed, ranges_of_a_payload_are_compared_where_they_cover_chunks) {
  const FakeLayer a(0, 3 * kChunk + 3, 1, 1);
  write({{0, &a}});
  const std::string& payload = a.parts[0].payload;
  const auto range = [](const LayerSource& layer, std::int64_t offset, std::int64_t bytes) {
    std::string out(static_cast<std::size_t>(bytes), '\0');
    layer.packed->read_payload(Part::gate_up, offset, std::as_writable_bytes(std::span(out)));
    return out;
  };
  const auto expect_range = [&](const LayerSource& layer, std::int64_t offset, std::int64_t bytes) {
    EXPECT_TRUE(range(layer, offset, bytes) ==
                payload.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes)))
        << bytes << " at " << offset;
  };
  const LayerSource sound = open().layer(0);
  for (const auto& [offset, bytes] : {std::pair<std::int64_t, std::int64_t>{0, 0},
                                      {0, 1},
                                      {kChunk - 1, 2},
                                      {1, 3 * kChunk},
                                      {kChunk, kChunk},
                                      {7, 2 * kChunk},
                                      {3 * kChunk, 3},
                                      {3 * kChunk + 2, 1},
                                      {3 * kChunk + 3, 0},
                                      {0, 3 * kChunk + 3}}) {
    expect_range(sound, offset, bytes);
  }
  // One byte of the second chunk, then of the last.
  const std::uint64_t before = std::filesystem::file_size(path_);
  std::string file(before, '\0');
  std::ifstream(path_, std::ios::binary).read(file.data(), static_cast<std::streamsize>(before));
  const std::size_t start = file.find(payload.substr(0, 64));
  const auto damage = [&](std::int64_t at) {
    std::string other = file;
    other[start + static_cast<std::size_t>(at)] ^= 1;
    write_file(path_, other);
    return open().layer(0);
  };
  const auto damaged = [&](const LayerSource& layer, std::int64_t offset, std::int64_t bytes, std::string_view what) {
    expect_error(ErrorCode::format, {"layer 0", "gate_up: payload", what, "damaged"},
                 [&] { (void)range(layer, offset, bytes); });
  };
  const std::string at_chunk = fmt::format("{} bytes at {}", kChunk, start + kChunk);
  const LayerSource second = damage(kChunk + 5);
  damaged(second, kChunk, kChunk, at_chunk);
  damaged(second, kChunk - 1, kChunk + 1, at_chunk);
  damaged(second, 0, 3 * kChunk + 3, at_chunk);
  expect_range(second, 0, kChunk + 5);
  expect_range(second, kChunk + 6, 2 * kChunk - 6);
  EXPECT_FALSE(range(second, kChunk, kChunk - 1) == payload.substr(kChunk, kChunk - 1));  // nobody can tell
  const LayerSource last = damage(3 * kChunk + 2);
  damaged(last, 3 * kChunk, 3, "3 bytes at");
  damaged(last, 5, 3 * kChunk - 2, "3 bytes at");
  expect_range(last, 0, 3 * kChunk + 2);
}

TEST_F(Packed, payloads_are_read_from_several_threads) {
  const FakeLayer a(0, 5 * kChunk + 3, 1, 1);
  write({{0, &a}});
  const LayerSource layer = open().layer(0);
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] { same += read_payload(*layer.packed, Part::gate_up) == a.parts[0].payload ? 1 : 0; });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, 4);
}

TEST_F(Packed, progress_counts_every_byte_up_to_the_total) {
  const FakeLayer a(16, 2 * kChunk + 1, 100, 1);
  PackedWriter writer(path_, original());
  std::vector<std::int64_t> seen;
  writer.add(0, a, a.norm, [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 16 + 2 * kChunk + 1 + 17 + 100);
    seen.push_back(done);
  });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{16, 16 + kChunk, 16 + 2 * kChunk, 17 + 2 * kChunk, 34 + 2 * kChunk,
                                             134 + 2 * kChunk}));
}

TEST_F(Packed, the_writer_refuses_what_does_not_fit) {
  const FakeLayer good(16, 100, 100, 1);
  const auto before = names();
  PackedWriter writer(path_, original());
  const auto refused = [&](std::int64_t number, ErrorCode code, std::initializer_list<std::string_view> parts,
                           const auto& change) {
    FakeLayer layer = FakeLayer(16, 100, 100, 1);
    change(layer);
    expect_error(code, parts, [&] { writer.add(number, layer, layer.norm); });
  };
  const auto nothing = [](FakeLayer&) {};
  expect_error(ErrorCode::usage, {"model.swiglu", "at least one layer"}, [&] { writer.commit(); });
  refused(-1, ErrorCode::usage, {"layer -1", "0 to 7"}, nothing);
  refused(8, ErrorCode::usage, {"layer 8", "0 to 7"}, nothing);
  writer.add(3, good, good.norm);
  refused(3, ErrorCode::usage, {"layer 3", "one above 3"}, nothing);
  refused(2, ErrorCode::usage, {"layer 2", "one above 3"}, nothing);
  refused(4, ErrorCode::shape, {"norm", "expected 4, found 3"}, [](auto& l) { l.norm.pop_back(); });
  refused(4, ErrorCode::shape, {"norm", "expected 4, found 0"}, [](auto& l) { l.norm.clear(); });
  refused(4, ErrorCode::shape, {"4 and 6", "5 and 6"}, [](auto& l) { l.shape.dim = 5; });
  refused(4, ErrorCode::shape, {"4 and 6", "4 and 7"}, [](auto& l) { l.shape.hidden = 7; });
  refused(4, ErrorCode::usage, {"compute", "auto"}, [](auto& l) { l.kind = Compute::automatic; });
  refused(4, ErrorCode::usage, {"down", "f64"}, [](auto& l) {
    l.parts[1].matrix.storage = Storage::plain;
    l.parts[1].matrix.dtype = DType::f64;
  });
  refused(4, ErrorCode::usage, {"gate_up", "compact f16"}, [](auto& l) { l.parts[0].matrix.dtype = DType::f16; });
  refused(4, ErrorCode::usage, {"gate_up", "auto"}, [](auto& l) { l.parts[0].matrix.storage = Storage::automatic; });
  refused(4, ErrorCode::usage, {"gate_up", "-1"}, [](auto& l) { l.parts[0].matrix.index_bytes = -1; });
  refused(4, ErrorCode::usage, {"down", "-1"}, [](auto& l) { l.parts[1].matrix.payload_bytes = -1; });
  EXPECT_EQ(before.size() + 1, names().size());  // the temporary one
  EXPECT_FALSE(std::filesystem::exists(path_));
  writer.commit();  // what was refused has left no trace
  EXPECT_EQ(open().layer_numbers(), (std::vector<std::int64_t>{3}));
  open().check_payloads();
  expect_error(ErrorCode::usage, {"nothing can be added"}, [&] { writer.add(4, good, good.norm); });
  expect_error(ErrorCode::usage, {"committed"}, [&] { writer.commit(); });
  expect_error(ErrorCode::not_found, {"nowhere"}, [&] { PackedWriter(folder_ / "nowhere/x", original()); });
}

TEST_F(Packed, leaves_nothing_when_the_source_or_the_caller_fails_at_any_moment) {
  const auto before = names();
  FakeLayer good(16, 2 * kChunk + 1, 100, 1);
  for (std::int64_t moment = 0; moment < 6; ++moment) {
    FakeLayer layer = FakeLayer(16, 2 * kChunk + 1, 100, 1);
    layer.fail_at_read = moment;
    {
      PackedWriter writer(path_, original());
      writer.add(0, good, good.norm);
      expect_error(ErrorCode::io, {"source gone"}, [&] { writer.add(1, layer, layer.norm); });
      expect_error(ErrorCode::usage, {"a layer failed"}, [&] { writer.add(2, good, good.norm); });
      expect_error(ErrorCode::usage, {"a layer failed"}, [&] { writer.commit(); });
    }
    EXPECT_EQ(names(), before);
  }
  {
    PackedWriter writer(path_, original());
    EXPECT_THROW(writer.add(0, good, good.norm, [](auto, auto) { throw std::runtime_error("stop"); }),
                 std::runtime_error);
  }
  EXPECT_EQ(names(), before);
}

TEST_F(Packed, leaves_nothing_when_the_disk_is_full) {
  const FakeLayer layer(16, 20'000, 100, 1);
  write({{0, &layer}});
  const rlim_t size = std::filesystem::file_size(path_);
  std::filesystem::remove(path_);
  const auto names_before = names();
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const Checkpoint model = original();
  for (const rlim_t limit : {rlim_t{0}, rlim_t{60}, rlim_t{100}, rlim_t{4096}, rlim_t{20'000}, size - 64, size - 1}) {
    const struct rlimit small{.rlim_cur = limit, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string text;
    try {
      PackedWriter writer(path_, model);
      writer.add(0, layer, layer.norm);
      writer.commit();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      text = e.text();
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(text.find("File too large"), std::string::npos) << limit << text;
    EXPECT_NE(text.find("model.swiglu"), std::string::npos) << limit << text;
    EXPECT_EQ(names(), names_before) << limit;
  }
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace swiglu
