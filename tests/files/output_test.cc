// Writing .npy: numpy's bytes, and files that appear complete or not at all.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

struct NpyOutput : ::testing::Test {
  testing::TemporaryFolder folder;
};

TEST_F(NpyOutput, round_trips_every_type_and_rank) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {3}, {0}, {2, 3}, {0, 5}, {2, 3, 4}}) {
      std::size_t count = static_cast<std::size_t>(size_of(dtype));
      for (const auto dim : shape) count *= static_cast<std::size_t>(dim);
      std::vector<std::byte> bytes(count);
      for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
      write_npy(folder / "out.npy", dtype, shape, bytes);
      const Array back = read_npy(folder / "out.npy");
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.bytes, bytes);
      EXPECT_EQ((get(folder / "out.npy").size() - count) % 64, 0U);
    }
  }
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST_F(NpyOutput, writes_numpys_header) {
  const std::vector<std::byte> bytes(48);
  const auto header = [&](DType dtype, std::vector<std::int64_t> shape) {
    write_npy(folder / "out.npy", dtype, shape, bytes);
    const std::string file = get(folder / "out.npy");
    return file.substr(0, file.size() - bytes.size());
  };
  EXPECT_EQ(header(DType::f32, {12}), std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                                          "{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }" +
                                          std::string(59, ' ') + "\n");
  EXPECT_EQ(header(DType::bf16, {1, 2, 3, 4}), std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                                                   "{'descr': '<V2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }" +
                                                   std::string(52, ' ') + "\n");
  // 97 characters of text, numpy's 20 spare blanks, 10 bytes before and a newline: already at 128, and numpy
  // then adds 64.
  write_npy(folder / "out.npy", DType::f32, std::vector<std::int64_t>{1, 10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
            std::vector<std::byte>(400));
  EXPECT_EQ(get(folder / "out.npy").size(), 192U + 400U);
}

TEST_F(NpyOutput, refuses_to_write_bytes_that_do_not_fill_the_shape) {
  const std::vector<std::byte> bytes(16);
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{3}, {-4, -1}, {4, 2}, {}, {INT64_MAX, 2}, std::vector<std::int64_t>(40, 1)}) {
    try {
      write_npy(folder / "out.npy", DType::f32, shape, bytes);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
    }
  }
  EXPECT_EQ(entries(folder.path()), 0U);
}

TEST_F(NpyOutput, replaces_a_file_through_a_link_and_refuses_what_is_no_file) {
  const std::vector<std::int64_t> shape = {4};
  const std::vector<std::byte> bytes(16);
  put(folder / "real.npy", "old");
  fs::create_symlink("real.npy", folder / "link.npy");
  write_npy(folder / "link.npy", DType::f32, shape, bytes);
  EXPECT_TRUE(fs::is_symlink(folder / "link.npy"));
  EXPECT_EQ(read_npy(folder / "real.npy").shape, shape);

  const auto refused = [&](const fs::path& path, ErrorCode code) {
    try {
      write_npy(path, DType::f32, shape, bytes);
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.text();
      EXPECT_NE(e.text().find(path.string()), std::string::npos) << e.text();
    }
  };
  refused("/dev/null", ErrorCode::io);
  refused(folder.path(), ErrorCode::io);
  refused(folder / "missing" / "y.npy", ErrorCode::not_found);
  refused(folder / "real.npy" / "y.npy", ErrorCode::not_found);
  refused(folder / "", ErrorCode::io);
  EXPECT_EQ(entries(folder.path()), 2U);
}

TEST_F(NpyOutput, leaves_the_old_file_when_the_disk_is_full) {
  put(folder / "out.npy", "old");
  struct rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{5}, rlim_t{100}, rlim_t{1000}, rlim_t{70000}}) {
    const struct rlimit small{.rlim_cur = limit, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string text;
    try {
      const std::vector<std::int64_t> shape = {25000};
      write_npy(folder / "out.npy", DType::f32, shape, std::vector<std::byte>(100000));
    } catch (const Error& e) {
      text = e.text();
      EXPECT_EQ(e.code(), ErrorCode::io);
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(text.find("out.npy"), std::string::npos) << text;
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_EQ(get(folder / "out.npy"), "old");
    EXPECT_EQ(entries(folder.path()), 1U);
  }
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace swiglu
