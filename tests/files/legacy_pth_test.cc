// Checkpoints from before PyTorch 1.6: pickles in a row, then storages; right ones, wrong ones and the real files.
#include <cmath>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "files/tensor_table.h"
#include "files/torch_file.h"

namespace swiglu::testing {
namespace {

using files::read_pth;
using files::StoredTensor;
using files::TensorTable;
namespace p = pickled;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// "w" of shape [2, 3] in storage 7.
OldFile good() {
  OldFile file;
  file.object = p::dict({{"w", p::tensor(p::old_storage("7", 6), 0, {2, 3}, {3, 1})}});
  file.keys = {"7"};
  file.storages = {{6, floats({0, 1, 2, 3, 4, 5})}};
  return file;
}

void refuses(const std::string& bytes, const std::vector<std::string>& pieces, ErrorCode code = ErrorCode::format) {
  const BytesFile file(bytes);
  std::vector<std::string> all = pieces;
  all.push_back("x.pth");
  expect_error(code, all, [&] { (void)read_pth(*file); });
}

std::string element_bytes(const StoredTensor& t, std::size_t item) {
  std::string out;
  const std::int64_t count = std::accumulate(t.shape.begin(), t.shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t element = 0;
    for (std::size_t d = t.shape.size(); d-- > 0;) {
      element += rest % t.shape[d] * t.strides[d];
      rest /= t.shape[d];
    }
    std::string piece(item, '\0');
    t.file->read(t.offset + static_cast<std::uint64_t>(element) * item, std::as_writable_bytes(std::span(piece)));
    out += piece;
  }
  return out;
}
std::vector<float> values_of(const StoredTensor& t) {
  const std::string bytes = element_bytes(t, sizeof(float));
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(LegacyPth, reads_a_tensor) {
  const BytesFile file(good().bytes());
  const TensorTable table = read_pth(*file);
  ASSERT_EQ(table.size(), 1U);
  const StoredTensor& w = table.at("w");
  EXPECT_EQ(w.dtype, DType::f32);
  EXPECT_EQ(w.dtype_name, "torch.FloatStorage");
  EXPECT_EQ(w.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(values_of(w), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  files::check_pth_payloads(*file);  // has no checksums: nothing to find
}

TEST(LegacyPth, storages_stand_in_the_order_of_the_list) {
  OldFile old = good();
  old.object = p::dict({{"a", p::tensor(p::old_storage("10", 2), 1, {1}, {1})},
                        {"b", p::tensor(p::old_storage("9", 3), 0, {3}, {1})},
                        {"c", p::tensor(p::old_storage("10", 2), 0, {2}, {1})}});
  old.keys = {"9", "10"};
  old.storages = {{3, floats({1, 2, 3})}, {2, floats({8, 9})}};
  const BytesFile file(old.bytes());
  const TensorTable table = read_pth(*file);
  EXPECT_EQ(values_of(table.at("a")), (std::vector<float>{9}));
  EXPECT_EQ(values_of(table.at("b")), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(values_of(table.at("c")), (std::vector<float>{8, 9}));
}

std::string window(const std::string& key, std::int64_t begin, std::int64_t elements) {
  return p::tuple({p::text(key), p::number(begin), p::number(elements)});
}

TEST(LegacyPth, reads_windows_of_storages) {
  OldFile old = good();
  old.object = p::dict({{"a", p::tensor(p::old_storage("7", 6, window("8", 2, 3)), 1, {2}, {1})},
                        {"b", p::tensor(p::old_storage("7", 6, window("8", 2, 3)), 0, {3}, {1})},
                        {"c", p::tensor(p::old_storage("7", 6), 5, {1}, {1})},
                        {"d", p::tensor(p::old_storage("7", 6, window("9", 6, 0)), 0, {0}, {1})}});
  const BytesFile file(old.bytes());
  const TensorTable table = read_pth(*file);
  EXPECT_EQ(values_of(table.at("a")), (std::vector<float>{3, 4}));
  EXPECT_EQ(values_of(table.at("b")), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(values_of(table.at("c")), (std::vector<float>{5}));
  EXPECT_TRUE(values_of(table.at("d")).empty());
}

TEST(LegacyPth, refuses_windows_outside_their_storage) {  // P75
  const auto with = [](const std::string& view, std::int64_t offset = 0) {
    OldFile old = good();
    old.object = p::dict({{"w", p::tensor(p::old_storage("7", 6, view), offset, {2}, {1})}});
    return old.bytes();
  };
  refuses(with(window("8", 5, 2)), {"storage 7", "6 elements", "2 elements from 5"});
  refuses(with(window("8", 7, 0)), {"storage 7", "0 elements from 7"});
  refuses(with(window("8", -1, 2)), {"storage 7", "from -1"});
  refuses(with(window("8", 1, -1)), {"storage 7", "-1 elements"});
  refuses(with(window("8", INT64_MAX, INT64_MAX)), {"storage 7"});
  refuses(with(window("8", 2, 3), 2), {"tensor w", "storage of 3", "element 3"});
  refuses(with(window("../8", 0, 6)), {"decimal storage key", "../8"});
  refuses(with(p::tuple({p::text("8"), p::number(0)})), {"storage 7", "view", "a tuple of 2"});
  refuses(with(p::tuple({p::number(8), p::number(0), p::number(2)})), {"storage 7", "view"});
  refuses(with(p::text("8")), {"storage 7", "view", "a string"});
}

TEST(LegacyPth, a_key_names_one_place) {  // P61
  const auto two = [](const std::string& a, const std::string& b) {
    OldFile old = good();
    old.object = p::dict({{"a", p::tensor(a, 0, {1}, {1})}, {"b", p::tensor(b, 0, {1}, {1})}});
    return old.bytes();
  };
  refuses(two(p::old_storage("7", 6, window("8", 0, 2)), p::old_storage("7", 6, window("8", 1, 2))),
          {"storage 8", "same place"});
  refuses(two(p::old_storage("7", 6, window("8", 0, 2)), p::old_storage("7", 6, window("8", 0, 3))), {"storage 8"});
  refuses(two(p::old_storage("7", 6, window("8", 0, 6)), p::old_storage("8", 6)), {"storage 8", "same place"});
  refuses(two(p::old_storage("7", 6, window("8", 0, 6)), p::old_storage("8", 6, window("9", 0, 6))), {"storage 8"});
  refuses(two(p::old_storage("7", 6), p::old_storage("7", 6, window("7", 0, 6))), {"storage 7", "same place"});
  refuses(two(p::old_storage("7", 6), p::old_storage("7", 5)), {"storage 7", "6", "5"});
  refuses(two(p::old_storage("7", 6), p::old_storage("7", 6, "N", "IntStorage")), {"storage 7", "IntStorage"});
}

TEST(LegacyPth, persistent_ids_have_six_items) {  // P51
  OldFile old = good();
  old.object = p::dict({{"w", p::tensor(p::storage("7", 6), 0, {6}, {1})}});
  refuses(old.bytes(), {"persistent id", "view", "5"});
  // A whole module instead of a state dict.
  old.object =
      p::tuple({p::text("module"), p::global("collections", "OrderedDict"), p::text("m.py"), p::text("")}) + "Q";
  refuses(old.bytes(), {"persistent id", "4"});
  const std::string zip = zip_bytes(torch_parts(
      p::whole(p::dict({{"w", p::tensor(p::old_storage("0", 6), 0, {6}, {1})}})), {old.storages[0].second}));
  refuses(zip, {"persistent id", "6"});
}

TEST(LegacyPth, refuses_another_magic_or_version) {  // P71
  OldFile old = good();
  old.magic[4] = 'x';
  refuses(old.bytes(), {"magic number", "another number", "torch.save"});
  old.magic = p::whole(p::dict({{"w", "N"}}));  // some pickle
  refuses(old.bytes(), {"magic number", "a dict", "torch.save"});
  old = good();
  old.version = p::whole(p::number(1002));
  refuses(old.bytes(), {"version 1001", "version 1002"}, ErrorCode::unsupported);
  old.version = p::whole("N");
  refuses(old.bytes(), {"version 1001", "None"}, ErrorCode::unsupported);
}

TEST(LegacyPth, refuses_big_endian_bytes) {  // P72
  OldFile old = good();
  old.system = p::whole(p::dict({{"little_endian", "\x89"}}));
  refuses(old.bytes(), {"little-endian", "big-endian"}, ErrorCode::unsupported);
  for (const std::string& system : {std::string("}"), p::dict({{"little_endian", "N"}}), std::string("N")}) {
    old.system = p::whole(system);
    refuses(old.bytes(), {"'little_endian'"});
  }
}

TEST(LegacyPth, storages_have_the_size_of_the_state_dict) {  // P73, P74
  OldFile old = good();
  old.storages[0].first = 5;
  refuses(old.bytes(), {"storage 7", "6 elements", "5"});
  old.storages[0].first = std::int64_t{1} << 62;
  refuses(old.bytes(), {"storage 7", "6 elements", "4611686018427387904"});
  old.storages[0].first = -1;
  refuses(old.bytes(), {"storage 7", "-1"});
  // Both agree, but the file is not that long; the product of the last wraps to 4.
  for (const std::int64_t count : {std::int64_t{7}, std::int64_t{1} << 62, std::int64_t{0x4000000000000001}}) {
    old.object = p::dict({{"w", p::tensor(p::old_storage("7", count), 0, {1}, {1})}});
    old.storages[0].first = count;
    refuses(old.bytes(), {"storage 7", "truncated", fmt::format("{} elements", count)});
  }
}

TEST(LegacyPth, the_list_names_every_storage_once) {  // P73
  OldFile old = good();
  old.keys = {};
  refuses(old.bytes(), {"storage 7", "none"});
  old.keys = {"8"};
  refuses(old.bytes(), {"'8'"});
  old.keys = {"\x1b"};
  refuses(old.bytes(), {"'\\x1b'"});
  old.object = p::dict(
      {{"a", p::tensor(p::old_storage("1", 1), 0, {1}, {1})}, {"b", p::tensor(p::old_storage("2", 1), 0, {1}, {1})}});
  old.storages = {{1, floats({1})}, {1, floats({2})}};
  old.keys = {"1", "1"};
  refuses(old.bytes(), {"'1'"});
  old.keys = {"1", "2"};
  EXPECT_EQ(read_pth(*BytesFile(old.bytes())).size(), 2U);
  const std::string row = old.pickles().substr(0, old.pickles().size() - p::whole(p::strings(old.keys)).size());
  refuses(row + p::whole("}"), {"list of storage keys", "a dict"});
  refuses(row + p::whole("]K\x01"
                         "a"),
          {"storage key", "an integer"});
}

TEST(LegacyPth, a_storage_that_nothing_uses_may_stand_at_the_end) {  // P73
  OldFile old = good();
  old.keys.emplace_back("8");
  old.storages.emplace_back(3, "abc");
  const BytesFile file(old.bytes());
  EXPECT_EQ(values_of(read_pth(*file).at("w")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  std::swap(old.keys[0], old.keys[1]);
  std::swap(old.storages[0], old.storages[1]);
  refuses(old.bytes(), {"'8'"});
}

TEST(LegacyPth, refuses_every_truncation_and_bytes_after_the_end) {  // P76
  const std::string bytes = good().bytes();
  const TemporaryFolder folder;
  write_file(folder / "x.pth", bytes);
  for (std::size_t n = bytes.size(); n-- > 0;) {
    std::filesystem::resize_file(folder / "x.pth", n);
    EXPECT_THROW((void)read_pth(std::make_shared<const files::File>(folder / "x.pth")), Error) << n;
  }
  refuses(bytes.substr(0, bytes.size() - 1), {"truncated", "storage 7"});
  refuses(bytes + "x", {"end of the file", "1 more byte"});
}

TEST(LegacyPth, views_stay_inside_their_storage) {
  OldFile old = good();
  old.object = p::dict({{"w", p::tensor(p::old_storage("7", 6), 1, {6}, {1})}});
  refuses(old.bytes(), {"tensor w", "storage of 6", "element 6"});
}

TEST(LegacyPth, refuses_the_text_protocol_with_a_hint) {  // P77
  refuses("L119547037146038801333356L\n.I1001\n.(dp0\n", {"protocol 0", "torch.save"}, ErrorCode::unsupported);
  refuses("L119547037146038801333356L\n.I1002\n.", {"version 1002"}, ErrorCode::unsupported);
}

TEST(LegacyPth, refuses_other_names_in_every_pickle) {  // P26
  const std::string call = p::call(p::global("os", "system"), p::text("id") + "\x85");
  OldFile old = good();
  old.object = call;
  refuses(old.bytes(), {"os.system"}, ErrorCode::unsupported);
  old = good();
  old.version = p::whole(call);
  refuses(old.bytes(), {"os.system"}, ErrorCode::unsupported);
  old = good();
  old.system = p::whole(call);
  refuses(old.bytes(), {"os.system"}, ErrorCode::unsupported);
}

TEST(LegacyPth, a_changed_byte_gives_an_error_or_tensors_inside_the_file) {  // X4
  const std::string bytes = good().bytes();
  const TemporaryFolder folder;
  write_file(folder / "x.pth", bytes);
  int refused = 0;
  for (std::size_t i = 0; i < good().pickles().size() + 8; ++i) {
    for (const int flip : {0x01, 0x02, 0x80, 0xff}) {
      std::string bad = bytes;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      write_file(folder / "x.pth", bad);
      try {
        for (const auto& [name, t] : read_pth(std::make_shared<const files::File>(folder / "x.pth"))) {
          (void)element_bytes(t, 1);
        }
      } catch (const Error& error) {
        EXPECT_LT(error.text().size(), 1000U);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

// ---- real files

TEST(LegacyPth, reads_the_real_shared_views) {
  SWIGLU_NEEDS_TEST_DATA();
  const auto open = [](const char* name) {
    return read_pth(std::make_shared<const files::File>(test_data() / "pth/burn" / name));
  };
  const TensorTable views = open("legacy_uncloned_views.pt");
  const std::uint64_t start = views.at("tensor1").offset - 40;
  EXPECT_EQ(views.at("tensor2").offset, start + 200);
  EXPECT_EQ(start + 400, views.at("tensor1").file->size());
  for (const auto& [name, first] : {std::pair{"tensor1", 10}, {"tensor2", 50}}) {
    EXPECT_EQ(views.at(name).shape, std::vector<std::int64_t>{10});
    for (std::size_t i = 0; i < 10; ++i)
      EXPECT_EQ(values_of(views.at(name))[i], static_cast<float>(first) + static_cast<float>(i));
  }
  EXPECT_EQ(open("legacy_with_offsets.pt").size(), 3U);
  EXPECT_EQ(open("legacy_shared_storage.pt").size(), 3U);
  EXPECT_EQ(open("simple_legacy.pt").size(), 3U);
}

TEST(LegacyPth, reads_the_real_files_of_every_protocol) {  // P63, P77
  SWIGLU_NEEDS_TEST_DATA();
  struct Type {
    const char* name;
    const char* storage;
    std::optional<DType> dtype;
    std::size_t item;
    bool every_protocol;
  };
  const Type types[] = {{"bfloat16", "BFloat16", DType::bf16, 2, true},
                        {"float16", "Half", DType::f16, 2, true},
                        {"float32", "Float", DType::f32, 4, true},
                        {"float64", "Double", DType::f64, 8, true},
                        {"int64", "Long", {}, 8, false},
                        {"uint8", "Byte", {}, 1, false},
                        {"bool", "Bool", {}, 1, false}};
  int read = 0;
  for (const Type& type : types) {
    std::string before;
    for (int protocol = type.every_protocol ? 1 : 2; protocol <= (type.every_protocol ? 5 : 2); ++protocol) {
      const std::string name = fmt::format("pth/gopickle/tensor_{}_proto{}.pt", type.name, protocol);
      SCOPED_TRACE(name);
      const TensorTable table = read_pth(std::make_shared<const files::File>(test_data() / name));
      ASSERT_EQ(table.size(), 1U);
      const StoredTensor& t = table.at("tensor");
      EXPECT_EQ(t.dtype_name, fmt::format("torch.{}Storage", type.storage));
      EXPECT_EQ(t.dtype, type.dtype);
      const std::string bytes = element_bytes(t, type.item);
      EXPECT_EQ(t.offset + bytes.size(), t.file->size());
      EXPECT_EQ(bytes, before.empty() ? bytes : before);
      before = bytes;
      ++read;
    }
    if (type.dtype == DType::f32) {
      std::vector<float> values(before.size() / 4);
      std::memcpy(values.data(), before.data(), before.size());
      EXPECT_EQ(values, (std::vector<float>{1.2F, -3.4F, 5.6F, -7.8F}));
    }
  }
  EXPECT_EQ(read, 23);
}

}  // namespace
}  // namespace swiglu::testing
