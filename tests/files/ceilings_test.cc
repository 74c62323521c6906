// What refusing may cost: every malformed file is opened in a process that may take 256 MB more than it has,
// within a second of processor time, and says what is wrong in text that is safe to print. The rest of the
// list is about answers; this is about files that are small and could make a reader large.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "files/torch_file.h"
#include "support/huggingface.h"
#include "support/sanitized.h"
#include "swiglu/files.hpp"

namespace swiglu::testing {
namespace {

namespace p = pickled;

std::string repeated(std::string_view piece, int times) {
  std::string out;
  out.reserve(piece.size() * static_cast<std::size_t>(times));
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

void open_anything(const std::filesystem::path& path) {
  if (path.extension() == ".npy") {
    (void)read_npy(path);
    return;
  }
  const Checkpoint model = Checkpoint::open(path);
  for (const std::int64_t i : model.layer_numbers()) (void)model.layer(i);
}

enum Outcome : std::uint8_t { kOpened, kRefused, kWrongText, kMemory, kSlow, kOther };

double seconds_used() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Outcome answer(const std::filesystem::path& path) {
  try {
    open_anything(path);
    return kOpened;
  } catch (const Error& error) {
    for (const char c : error.text()) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return kWrongText;  // X8
    }
    return error.code() == ErrorCode::no_memory ? kMemory : kRefused;
  } catch (...) {
    return kOther;
  }
}

/// In a process of its own, so that the limit and what was allocated end with it.
int outcome_within(std::uint64_t bytes, const std::filesystem::path& path) {
  const pid_t child = fork();
  if (child == 0) {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit space{limit, limit};
    if (setrlimit(RLIMIT_AS, &space) != 0) _exit(kOther);
    const double start = seconds_used();
    const Outcome outcome = answer(path);
    _exit(seconds_used() - start > 1.0 ? kSlow : outcome);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class Ceilings : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers need address space of their own";
  }
  static constexpr std::uint64_t kLimit = std::uint64_t{256} << 20;  // X6
  static void expect_outcome(const std::filesystem::path& path, int expected, std::uint64_t bytes = kLimit) {
    EXPECT_EQ(outcome_within(bytes, path), expected) << path;  // X7: kSlow
  }
  void expect_file(const std::string& name, std::string_view bytes, int expected = kRefused) const {
    write_file(folder_ / name, bytes);
    expect_outcome(folder_ / name, expected);
    std::filesystem::remove(folder_ / name);
  }
  void expect_pickle(const std::string& body) const {
    SCOPED_TRACE(body.substr(0, 20));
    expect_file("x.pth", zip_bytes(torch_parts(p::whole(body), {"abcd"})));
  }
  /// A folder in which one file has this text.
  void expect_json(const std::string& name, std::string_view text) const {
    SCOPED_TRACE(name);
    const std::filesystem::path model = folder_ / "model";
    std::filesystem::create_directory(model);
    write_file(model / "config.json", config_text());
    if (name != "params.json") write_file(model / (name == "config.json" ? "model.safetensors" : name), two_layers());
    write_file(model / name, text);
    expect_outcome(model, kRefused);
    std::filesystem::remove_all(model);
  }

  TemporaryFolder folder_;
};

TEST_F(Ceilings, hold_for_every_malformed_file_of_the_collection) {  // X6, X7, X8
  SWIGLU_NEEDS_TEST_DATA();
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test_data() / "malformed")) {
    if (!entry.is_regular_file()) continue;
    const int outcome = outcome_within(kLimit, entry.path());
    EXPECT_TRUE(outcome == kRefused || outcome == kOpened) << entry.path() << ": " << outcome;
    ++files;
  }
  EXPECT_GT(files, 20);
}

TEST_F(Ceilings, are_felt_by_a_file_that_needs_more) {  // or the other tests could not fail
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000,)}\n";
  write_file(folder_ / "w.npy", std::string("\x93NUMPY\1\0", 8) + little(header.size(), 2) + header);
  std::filesystem::resize_file(folder_ / "w.npy", 10 + header.size() + 400'000'000);
  expect_outcome(folder_ / "w.npy", kMemory);
}

TEST_F(Ceilings, hold_for_json_of_very_many_values) {
  // 3 MB and a million values: the tree is what could grow.
  const std::string million = "[0" + repeated(",0", 999'990) + "]";
  const std::string lists = "[[]" + repeated(",[0]", 499'990) + "]";
  std::string keys = "{\"\":0";
  for (int i = 0; i < 400'000; ++i) keys += fmt::format(",\"{}\":0", i);
  keys += "}";
  for (const std::string& values :
       {million, lists, keys, std::string(3'000'000, '['), "[" + repeated("NaN,", 750'000)}) {
    for (const char* name : {"config.json", "params.json", "model.safetensors.index.json"}) expect_json(name, values);
    expect_file("w.safetensors", container(values));
    expect_file("w.safetensors", container("{\"__metadata__\":" + values + "}"));
  }
  write_file(folder_ / "params.json", million);
  expect_outcome(folder_.path(), kRefused, std::uint64_t{110} << 20);
}

TEST_F(Ceilings, hold_for_headers_of_very_many_tensors) {
  std::string header = "{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  for (int i = 0; i < 140'000; ++i)
    header += fmt::format(R"(,"{}":{{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", i);
  expect_file("w.safetensors", container(header + "}", "x"));  // S43
  expect_file(
      "w.safetensors",
      container("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4],\"shape\":[1" + repeated(",1", 900'000) + "]}}",
                "1234"),
      kOpened);
}

TEST_F(Ceilings, hold_for_pickles_that_grow) {
  expect_pickle(repeated(")", 20'000'000));                          // P48
  expect_pickle("]" + repeated("]", 4'000'000));                     // values that nothing holds
  expect_pickle(repeated("(", 10'000'000));                          // marks
  expect_pickle(repeated("}q\1", 4'000'000));                        // one place of the memo, again and again
  expect_pickle(")" + repeated("2\x86", 2'000'000));                 // P47
  expect_pickle("]" + repeated("]2ae", 1'000'000));                  // lists in lists
  expect_pickle(")" + repeated("\x85", 4'000'000));                  // P49
  expect_pickle(")r\xff\xff\xff\xff");                               // P40
  expect_pickle("B\xff\xff\xff\x7f");                                // P41, P42
  expect_pickle(std::string("\x8d\0\0\0\0\0\0\0\x10", 9));
  std::string memo;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) memo += ")r" + little(i * 4096ULL & 0xffffffffU, 4) + "0";
  expect_pickle(memo);
}

TEST_F(Ceilings, hold_for_directories_of_very_many_entries) {
  std::vector<ZipPart> parts;
  for (int i = 0; i < 60'000; ++i) parts.push_back({fmt::format("a/data/{}", i), ""});
  expect_file("x.pth", zip_bytes(parts));
}

}  // namespace
}  // namespace swiglu::testing
