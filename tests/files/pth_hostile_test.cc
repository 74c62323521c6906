// .pth files that would cost far more than they weigh: every one ends in seconds, in little memory.
#include <chrono>
#include <functional>

#include <fmt/format.h>
#include <sys/resource.h>

#include "files/pickle.h"
#include "files/tensor_table.h"
#include "files/torch_file.h"
#include "files/zip.h"

namespace swiglu::testing {
namespace {

using files::read_pickle;
using files::read_pth;
namespace p = pickled;

const std::string kTensor = p::tensor(p::storage("0", 6), 0, {2, 3}, {3, 1});

// A hundred times what the slowest of these takes, for sanitizers on a busy machine; without its limit each would
// take hours.
constexpr double kSeconds = 300.0;

template <class Action>
void quickly(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), kSeconds);
}
void refuses_quickly(const std::string& body, const std::vector<std::string>& pieces, ErrorCode code) {
  quickly([&] { expect_error(code, pieces, [&] { (void)read_pickle(p::whole(body), "x.pth"); }); });
}

TEST(PthHostile, a_wrapper_name_that_repeats_is_looked_into_once) {  // P62
  std::string body = "}q\1(";
  for (int i = 0; i < 300000; ++i) body += "NN";
  body += "u0" + p::text("model") +
          "q\2"
          "0}(";
  for (int i = 0; i < 300000; ++i) body += "h\2h\1";
  refuses_quickly(body + "u", {"'model'", "twice"}, ErrorCode::format);
}

TEST(PthHostile, a_hundred_million_opcodes_are_refused_by_their_number) {  // P48
  // In a zip by the size of the entry, in the older form after as many as a checkpoint may have.
  const std::string opcodes(100000000, ')');
  const BytesFile zip(zip_bytes(torch_parts(opcodes, {})));
  quickly([&] {
    expect_error(ErrorCode::unsupported, {"x.pth", "archive/data.pkl", "100000000"}, [&] { (void)read_pth(*zip); });
  });
  OldFile old;
  old.object = opcodes;
  const BytesFile row(old.bytes());
  quickly([&] { expect_error(ErrorCode::unsupported, {"x.pth", "4194304 values"}, [&] { (void)read_pth(*row); }); });
}

TEST(PthHostile, the_work_of_calls_is_limited) {
  std::string body = p::storage("0", 6) +
                     "q\1"
                     "0(";
  for (int i = 0; i < 16; ++i) body += "K\1";
  body +=
      "tq\2"
      "0" +
      p::global("torch._utils", "_rebuild_tensor_v2") +
      "q\3"
      "0(h\1" +
      std::string("K\0", 2) +
      "h\2h\2NNtq\5"
      "0";
  for (int i = 0; i < 2500000; ++i) body += "h\3h\5R0";
  refuses_quickly(body + "}", {"steps"}, ErrorCode::unsupported);
}

TEST(PthHostile, long_prefixes_and_long_numbers_are_read_once) {
  std::string name;
  for (int i = 0; i < 1000000; ++i) name += i % 2 == 0 ? "module." : "_orig_mod.";
  const std::string pickle = p::whole(std::string("}").append(p::text(name + "w")).append(kTensor).append("s"));
  quickly([&] { EXPECT_EQ(read_pickle(pickle, "x").tensors.size(), 1U); });
  refuses_quickly(std::string("L") + std::string(10000000, '9') + "\n", {"a huge integer"}, ErrorCode::format);
  refuses_quickly(std::string("\x8b") + little(10000000, 4) + std::string(10000000, '\1'), {"a huge integer"},
                  ErrorCode::format);
  refuses_quickly(std::string("c") + std::string(10000000, 'x') + "\ny\n", {"refuses xxxx"}, ErrorCode::unsupported);
}

TEST(PthHostile, as_many_tensors_as_large_models_have_are_read) {
  // A mixture of experts has tens of thousands; the limit is 131072, in 35 opcodes each.
  std::string body = "}(";
  for (int i = 0; i < 131072; ++i) {
    body += p::text(fmt::format("layers.{}.w", i)) + "q\7" +
            p::tensor(p::storage(std::to_string(i), 6), 0, {2, 3}, {3, 1}) + "q\7";
  }
  quickly([&] { EXPECT_EQ(read_pickle(p::whole(body + "u"), "x").tensors.size(), 131072U); });
}

TEST(PthHostile, overlapping_entries_are_refused_whatever_their_number) {  // P13
  // Each entry claims all that follows, the headers and bodies of the others too.
  ZipShape plain;
  plain.torch = false;
  std::vector<ZipPart> parts;
  constexpr std::uint32_t kCount = 40000;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    ZipPart part{fmt::format("r/data/{:06}", i), "x"};
    const auto each = static_cast<std::uint32_t>(30 + part.name.size() + 1);
    part.csize = part.usize = 1 + (kCount - 1 - i) * each;
    parts.push_back(part);
  }
  const BytesFile quilt(zip_bytes(parts, plain));
  quickly([&] { expect_error(ErrorCode::format, {"r/data/000000"}, [&] { const files::ZipArchive zip(*quilt); }); });
  // One body under one name, listed again and again.
  parts.assign(kCount, {"r/data/0", "x"});
  for (ZipPart& part : parts) part.header = 0;
  const BytesFile same(zip_bytes(parts, plain));
  quickly([&] { expect_error(ErrorCode::format, {"r/data/0", "twice"}, [&] { const files::ZipArchive zip(*same); }); });
}

TEST(PthHostile, a_directory_larger_than_any_checkpoints_is_refused) {
  ZipShape plain;
  plain.torch = false;
  std::vector<ZipPart> parts;
  for (int i = 0; i < 700; ++i) parts.push_back({fmt::format("r/{:060000}", i), ""});
  const BytesFile file(zip_bytes(parts, plain));
  expect_error(ErrorCode::format, {"x.pth", "700 entries"}, [&] { const files::ZipArchive zip(*file); });
}

TEST(PthHostile, an_expanded_tensor_of_the_older_form_is_not_materialised) {  // P59
  OldFile old;
  old.object = p::dict({{"w", p::tensor(p::old_storage("7", 1), 0, {1LL << 40, 3}, {0, 0})}});
  old.keys = {"7"};
  old.storages = {{1, "abcd"}};
  const BytesFile file(old.bytes());
  EXPECT_EQ(read_pth(*file).at("w").shape[0], 1LL << 40);
}

TEST(PthHostile, structure_nests_and_doubles_for_nothing_in_the_older_form) {  // P47, P49, P50
  std::string doubling = ")";
  for (int i = 0; i < 64; ++i) doubling += "2\x86";
  for (const std::string& value :
       {doubling, std::string(")") + std::string(1000000, '\x85'), std::string("]q\1h\1a")}) {
    OldFile old;
    old.object = p::dict({{"x", value}, {"w", p::tensor(p::old_storage("7", 1), 0, {1}, {1})}});
    old.keys = {"7"};
    old.storages = {{1, "abcd"}};
    const BytesFile file(old.bytes());
    quickly([&] { EXPECT_EQ(read_pth(*file).size(), 1U); });
    old.system = p::whole(value);
    const BytesFile elsewhere(old.bytes());
    quickly([&] { expect_error(ErrorCode::format, {"'little_endian'"}, [&] { (void)read_pth(*elsewhere); }); });
  }
}

}  // namespace
}  // namespace swiglu::testing
