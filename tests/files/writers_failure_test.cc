// What write_checkpoint refuses, and that a call which fails, for whatever reason and at whatever moment,
// leaves the folder as it was.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;

constexpr CheckpointFormat kHuggingFace = CheckpointFormat::huggingface;
constexpr CheckpointFormat kMeta = CheckpointFormat::meta;
constexpr CheckpointFormat kGguf = CheckpointFormat::gguf;

// Everything below a folder.
std::set<std::string> tree(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) out.insert(entry.path().string());
  return out;
}

void zeros(std::int64_t, const std::string&, std::int64_t, std::int64_t rows, std::int64_t, std::int64_t cols,
           void* dst) {
  std::memset(dst, 0, static_cast<std::size_t>(rows * cols * 2));
}

CheckpointRecipe recipe(CheckpointFormat format, int shards = 1) {
  CheckpointRecipe out;
  out.format = format;
  out.config = {.dim = 64, .hidden = 172, .eps = 1e-5};
  out.layers = 3;
  out.shards = shards;
  return out;
}

struct WritersFailing : ::testing::Test {
  testing::TemporaryFolder scratch;
  fs::path folder = scratch / "new/model";

  // The error of a call that fails; nothing may have changed.
  std::string refusal(const CheckpointRecipe& r, ErrorCode code = ErrorCode::usage, const FillTensor& fill = zeros) {
    const auto before = tree(scratch.path());
    std::string text;
    try {
      write_checkpoint(folder, r, fill);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.text();
      text = e.text();
    }
    EXPECT_EQ(tree(scratch.path()), before);
    return text;
  }
};

TEST_F(WritersFailing, refuses_sizes_that_make_no_checkpoint) {
  for (const CheckpointFormat format : {kHuggingFace, kMeta, kGguf}) {
    const auto with = [&](auto change) {
      CheckpointRecipe r = recipe(format);
      change(r);
      (void)refusal(r);
    };
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
      with([&](auto& r) { r.config.dim = bad; });
      with([&](auto& r) { r.config.hidden = bad; });
      with([&](auto& r) { r.layers = bad; });
    }
    with([](auto& r) { r.config = {.dim = std::int64_t{1} << 31, .hidden = std::int64_t{1} << 31, .eps = 1e-5}; });
    for (const int bad : {0, -1, INT32_MIN, INT32_MAX}) with([&](auto& r) { r.shards = bad; });
    for (const double bad : {0.0, -1e-5, std::numeric_limits<double>::infinity(), std::nan("")}) {
      with([&](auto& r) { r.config.eps = bad; });
    }
  }
  (void)refusal(recipe(kMeta), ErrorCode::usage, FillTensor());
}

TEST_F(WritersFailing, refuses_shards_that_do_not_divide_hidden_and_names_those_that_do) {
  const std::string text = refusal(recipe(kMeta, 3));
  EXPECT_NE(text.find("172"), std::string::npos) << text;
  EXPECT_NE(text.find("1, 2, 4, 43, 86"), std::string::npos) << text;
  (void)refusal(recipe(kMeta, 172));  // would need consolidated.171.pth
}

TEST_F(WritersFailing, refuses_more_shards_than_tensors) {
  EXPECT_NE(refusal(recipe(kHuggingFace, 13)).find("12 tensors"), std::string::npos);
}

TEST_F(WritersFailing, refuses_a_folder_that_holds_a_checkpoint) {
  for (const char* name : {"config.json", "params.json", "model.safetensors", "x.safetensors", "consolidated.00.pth",
                           "model.safetensors.index.json", "pytorch_model.bin", "a.gguf"}) {
    fs::create_directories(folder);
    std::ofstream(folder / name) << "old";
    EXPECT_NE(refusal(recipe(kMeta)).find(name), std::string::npos);
    EXPECT_NE(refusal(recipe(kHuggingFace)).find(name), std::string::npos);
    EXPECT_NE(refusal(recipe(kGguf)).find(name), std::string::npos);
    fs::remove_all(folder);
  }
  fs::create_directories(folder);
  std::ofstream(folder / "README.md") << "notes";
  write_checkpoint(folder, recipe(kMeta), zeros);
  EXPECT_TRUE(fs::exists(folder / "README.md"));
  (void)refusal(recipe(kMeta));  // its own
}

TEST_F(WritersFailing, refuses_a_folder_that_cannot_be_one) {
  std::ofstream(scratch / "new") << "a file";
  EXPECT_NE(refusal(recipe(kMeta), ErrorCode::io).find("new/model"), std::string::npos);
  folder = scratch / "new";
  (void)refusal(recipe(kMeta), ErrorCode::io);
  folder = "";
  (void)refusal(recipe(kMeta), ErrorCode::io);
}

TEST_F(WritersFailing, leaves_nothing_when_the_caller_throws_at_any_moment) {
  for (const CheckpointRecipe& good : {recipe(kHuggingFace, 5), recipe(kMeta, 4), recipe(kGguf, 5)}) {
    for (const bool in_progress : {false, true}) {
      for (int moment = 0;; ++moment) {
        int calls = 0;
        const auto step = [&] {
          if (calls++ == moment) throw std::runtime_error("stop");
        };
        CheckpointRecipe r = good;
        if (in_progress) r.progress = [&](auto, auto) { step(); };
        const FillTensor fill = [&](auto layer, const auto& role, auto row0, auto rows, auto col0, auto cols,
                                    void* dst) {
          if (!in_progress) step();
          zeros(layer, role, row0, rows, col0, cols, dst);
        };
        bool thrown = false;
        try {
          write_checkpoint(folder, r, fill);
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        if (!thrown) {
          EXPECT_GE(moment, 12);
          break;
        }
        ASSERT_TRUE(tree(scratch.path()).empty()) << moment;  // the folders too
      }
      fs::remove_all(scratch / "new");
    }
  }
}

TEST_F(WritersFailing, keeps_what_was_in_the_folder_before) {
  fs::create_directories(folder);
  std::ofstream(folder / "README.md") << "notes";
  int calls = 0;
  const FillTensor fill = [&](auto...) {
    if (++calls == 8) throw Error(ErrorCode::io, "source gone");
  };
  EXPECT_EQ(refusal(recipe(kHuggingFace, 4), ErrorCode::io, fill), "source gone");
  EXPECT_TRUE(fs::exists(folder / "README.md"));
}

TEST_F(WritersFailing, leaves_nothing_when_the_disk_is_full) {
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const CheckpointRecipe& r :
       {recipe(kHuggingFace), recipe(kHuggingFace, 3), recipe(kMeta), recipe(kMeta, 4), recipe(kGguf)}) {
    for (const rlim_t limit : {rlim_t{0}, rlim_t{60}, rlim_t{700}, rlim_t{3000}, rlim_t{40000}}) {
      const struct rlimit small{.rlim_cur = limit, .rlim_max = before.rlim_max};
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
      std::string text;
      try {
        write_checkpoint(folder, r, zeros);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io);
        text = e.text();
      }
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
      EXPECT_NE(text.find("new/model/"), std::string::npos) << text;
      EXPECT_NE(text.find("File too large"), std::string::npos) << text;
      EXPECT_TRUE(tree(scratch.path()).empty()) << limit;
    }
  }
  std::signal(SIGXFSZ, handler);
}

TEST_F(WritersFailing, memory_and_progress_do_not_depend_on_the_size) {
  CheckpointRecipe r = recipe(kMeta, 2);
  r.config = {.dim = 3, .hidden = 6000002, .eps = 1e-5};  // rows of down are longer than a slice
  r.layers = 1;
  std::int64_t last = 0;
  std::int64_t total = 0;
  r.progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  std::int64_t largest = 0;
  write_checkpoint(folder, r, [&](auto, const auto&, auto, std::int64_t rows, auto, std::int64_t cols, void*) {
    largest = std::max(largest, rows * cols * 2);
  });
  EXPECT_LE(largest, 4 << 20);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 2 * (3 * 3 * 6000002 + 2 * 3));
}

}  // namespace
}  // namespace swiglu
