// Atomic output files and folders; see output.h. Temporary names are hidden, and made with O_EXCL, so that
// several processes and threads may write in one folder. No fsync: a power failure may cost the file,
// a failure of the process or the disk never leaves half of one under its final name.
#include "files/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

namespace fs = std::filesystem;

// Where the bytes finally go. Replacing a device or pipe by a file would be worse than refusing it.
fs::path followed(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot write: {}", escaped(path.string()),
                                           fs::is_directory(status) ? "it is a folder" : "it is not a regular file"));
  }
  if (path.filename().empty()) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot write: expected the name of a file", escaped(path.string())));
  }
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

}  // namespace

OutputFile::OutputFile(const fs::path& path) : path_(path), target_(followed(path)) {
  // Renaming needs no permission on the old file; asking keeps write-protected files from being replaced.
  if (access(target_.c_str(), F_OK) == 0 && access(target_.c_str(), W_OK) != 0) fail("cannot write", errno);
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; fd_ < 0; ++attempt) {
    auto temporary = target_.parent_path() / fmt::format(".swiglu-{}-{}.partial", getpid(), counter++);
    fd_ = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = std::move(temporary);
    } else if (errno != EINTR && (errno != EEXIST || attempt > 1000)) {
      fail("cannot create", errno);
    }
  }
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void OutputFile::fail(const char* what, int error) const {
  throw Error(error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io,
              fmt::format("{}: {}: {}", escaped(path_.string()), what, std::generic_category().message(error)));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      fail(fmt::format("cannot write {} bytes at {}", bytes.size(), position_).c_str(), error);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    position_ += static_cast<std::uint64_t>(written);
  }
}

void OutputFile::commit() {
  // Network file systems and quotas report what write() could not at close().
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail("cannot complete", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename the complete file", errno);
  temporary_.clear();
}

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
  std::vector<fs::path> missing;  // innermost first
  std::error_code error;
  for (fs::path p = path_.has_filename() ? path_ : path_.parent_path(); !p.empty(); p = p.parent_path()) {
    if (fs::exists(fs::symlink_status(p, error))) break;
    missing.push_back(p);
  }
  made_.reserve(missing.size());
  for (; !missing.empty(); missing.pop_back()) {
    // Two writers may make a common parent at once: what exists already is not ours to remove.
    if (fs::create_directory(missing.back(), error)) made_.push_back(missing.back());
    if (error) break;
  }
  if (error || !fs::is_directory(path_, error)) {
    for (; !made_.empty(); made_.pop_back()) ::rmdir(made_.back().c_str());
    throw Error(ErrorCode::io, fmt::format("{}: cannot make the folder: {}", escaped(path_.string()),
                                           error ? error.message() : "something that is not a folder has its name"));
  }
}

OutputFolder::~OutputFolder() {
  if (kept_) return;
  for (const auto& file : added_) ::unlink(file.c_str());
  for (; !made_.empty(); made_.pop_back()) ::rmdir(made_.back().c_str());
}

void OutputFolder::add(const std::string& name, const std::function<void(OutputFile&)>& make) {
  OutputFile file(path_ / name);
  make(file);
  added_.reserve(added_.size() + 1);  // nothing may fail between the rename and the note of it
  fs::path final_name = path_ / name;
  file.commit();
  added_.push_back(std::move(final_name));
}

}  // namespace swiglu::files
