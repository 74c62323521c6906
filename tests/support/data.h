// Where tests find real files, and how they skip without them; temporary folders.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <unistd.h>

namespace swiglu::testing {

inline std::filesystem::path test_data() {
  const char* set = std::getenv("SWIGLU_TEST_DATA");
  return set != nullptr ? set : SWIGLU_DEFAULT_TEST_DATA;
}

/// A folder that is removed with its contents at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / ("swiglu-test-" + std::string(6, 'X'))).string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace swiglu::testing

/// Skips the test with one line when the real files are not on this machine.
#define SWIGLU_NEEDS_TEST_DATA()                                                \
  if (!std::filesystem::exists(swiglu::testing::test_data())) {                 \
    GTEST_SKIP() << "needs the real files: set SWIGLU_TEST_DATA (not found at " \
                 << swiglu::testing::test_data().string() << ")";               \
  }                                                                             \
  static_assert(true, "")
