// GGUF files of other writers: the good ones open, the malformed ones are refused for the right reason.
#include <sstream>

#include "files/gguf.h"
#include "support/data.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using swiglu::testing::expect_error;
using swiglu::testing::test_data;

GgufFile open_path(const std::filesystem::path& path) { return read_gguf(std::make_shared<const File>(path)); }

TEST(GgufFiles, of_other_writers_open) {
  SWIGLU_NEEDS_TEST_DATA();
  EXPECT_TRUE(open_path(test_data() / "gguf/misc/v3-empty.gguf").tensors.empty());  // G70
  EXPECT_GT(open_path(test_data() / "gguf/misc/valid-small.gguf").pairs.size(), 0U);
  EXPECT_TRUE(open_path(test_data() / "gguf/misc/weight_inspect_no_tensors.gguf").tensors.empty());
  const GgufFile vocabulary = open_path(test_data() / "gguf/misc/vocab-spm.gguf");
  EXPECT_GT(vocabulary.find("tokenizer.ggml.tokens")->count, 10'000U);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_data() / "derived/stories260K/gguf")) {
    if (entry.path().filename() == "ffn.f32.bigendian.gguf") {
      expect_error(ErrorCode::unsupported, {"bigendian.gguf", "big-endian"}, [&] { (void)open_path(entry.path()); });
      continue;
    }
    EXPECT_EQ(open_path(entry.path()).tensors.size(), 20U) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(GgufFiles, with_a_key_twice_are_refused) {  // G14
  SWIGLU_NEEDS_TEST_DATA();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_data() / "gguf/iree")) {
    expect_error(ErrorCode::format, {"key general.architecture", "twice"}, [&] { (void)open_path(entry.path()); });
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(GgufFiles, that_are_malformed_are_refused) {
  SWIGLU_NEEDS_TEST_DATA();
  const std::pair<const char*, const char*> files[] = {
      {"magic-only.bin", "a version"},                         // G01
      {"trunc-magic.bin", "3 bytes"},                          // G01
      {"huge-counts.bin", "number of tensors"},                // G07
      {"kv-huge-strlen.bin", "room for"},                         // G11, G16
      {"kv-arr-huge-n.bin", "array of"},                       // G18
      {"tensor-huge-dims.bin", "overflows"},                   // G34
      {"constructed_wrap0.gguf", "overflows"},                 // G36
      {"constructed_padwrap.gguf", "overflows"},           // G37
      {"constructed_wrap0b.gguf", "overflows"},                // G38
      {"hdr-wrap-first-offset.gguf", "18446744073709551600"},  // G43
      {"hdr-suppress-eos.gguf", "expected"},                   // G22
      {"weight_inspect_tiny_truncated.gguf", "truncated"},     // G49
  };
  for (const auto& [name, words] : files) {
    SCOPED_TRACE(name);
    expect_error(ErrorCode::format, {name, words}, [&] { (void)open_path(test_data() / "malformed/gguf" / name); });
  }
  expect_error(ErrorCode::unsupported, {"version 2 or 3"},  // G04
               [] { (void)open_path(test_data() / "malformed/gguf/bad-version.bin"); });
}

TEST(GgufFiles, of_a_fuzzer_get_the_verdicts_of_ggml) {
  SWIGLU_NEEDS_TEST_DATA();
  const auto folder = test_data() / "malformed/gguf/bitnet_fuzz";
  std::istringstream lines(testing::read_file(folder / "verdicts.tsv"));
  std::string name, size, verdict, rest;
  std::getline(lines, rest);
  int files = 0;
  while (std::getline(lines, name, '\t') && std::getline(lines, size, '\t') && std::getline(lines, verdict, '\t') &&
         std::getline(lines, rest)) {
    ++files;
    SCOPED_TRACE(name + ": " + rest);
    bool accepted = true;
    try {
      (void)open_path(folder / name);
    } catch (const Error& error) {
      accepted = false;
      EXPECT_TRUE(error.code() == ErrorCode::format || error.code() == ErrorCode::unsupported) << error.text();
    }
    EXPECT_EQ(accepted, verdict == "ACCEPT");
  }
  EXPECT_EQ(files, 29);
}

}  // namespace
}  // namespace swiglu::files
