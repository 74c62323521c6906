// torch in a Python process of its own: its oneDNN is linked into it and would clash with Debian's here. The
// two processes share memory and take turns over a pair of pipes; the child times its own call, so the pipes
// cost nothing. See torch_peer.py for what is said.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "peer.h"

namespace swiglu::bench {
namespace {

/// Memory that a child can inherit; the descriptor is closed with it.
class Shared {
 public:
  explicit Shared(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)), file_(memfd_create("swiglu_peers", 0)) {
    if (file_ < 0 || ftruncate(file_, bytes) != 0) throw Error(ErrorCode::no_memory, "no shared memory for torch");
    void* address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (address == MAP_FAILED) throw Error(ErrorCode::no_memory, "no shared memory for torch");
    data_ = static_cast<std::byte*>(address);
  }
  ~Shared() {
    munmap(data_, bytes_);
    close(file_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] int file() const { return file_; }

 private:
  std::size_t bytes_;
  int file_;
  std::byte* data_;
};

/// The child: a line to it, a line from it.
class Child {
 public:
  explicit Child(std::vector<std::string> words) {
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) throw Error(ErrorCode::io, "no pipe to torch");
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    setenv("THP_MEM_ALLOC_ENABLE", "1", 1);  // NOLINT(concurrency-mt-unsafe): torch, too, gets its huge pages
    id_ = fork();
    if (id_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
    if (id_ < 0 || to_ == nullptr || from_ == nullptr) throw Error(ErrorCode::io, "cannot start a process for torch");
  }
  ~Child() {
    std::fclose(to_);  // the end of its input ends it
    std::fclose(from_);
    waitpid(id_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void tell(const std::string& line) {
    fmt::print(to_, "{}\n", line);
    std::fflush(to_);
  }
  /// "" when it has ended.
  [[nodiscard]] std::string hear() {
    char* line = nullptr;
    std::size_t room = 0;
    const ssize_t length = getline(&line, &room, from_);
    const std::string text(line, length > 0 ? static_cast<std::size_t>(length) - (line[length - 1] == '\n') : 0);
    std::free(line);
    return text;
  }

 private:
  pid_t id_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

std::string after(const std::string& word, const std::string& line) {
  return line.rfind(word + ' ', 0) == 0 ? line.substr(word.size() + 1) : "";
}

class Torch final : public Peer {
 public:
  Torch(const Problem& problem, const std::string& python, const std::string& script)
      : io_(2 * problem.h.size()), out_(io_.data() + problem.h.size()) {
    std::memcpy(io_.data(), problem.h.data(), static_cast<std::size_t>(problem.h.size()));
    const std::span norm = std::as_bytes(std::span(problem.norm));
    const Shared weights(static_cast<std::int64_t>(norm.size()) + 3 * problem.gate.size());
    std::byte* at = weights.data();
    std::memcpy(at, norm.data(), norm.size());
    at += norm.size();
    for (const Buffer* matrix : {&problem.gate, &problem.up, &problem.down}) {
      std::memcpy(at, matrix->data(), static_cast<std::size_t>(matrix->size()));
      at += matrix->size();
    }
    child_ = std::make_unique<Child>(std::vector<std::string>{
        python, script, std::to_string(weights.file()), std::to_string(io_.file()), std::to_string(problem.config.dim),
        std::to_string(problem.config.hidden), fmt::format("{}", problem.config.eps), name_of(problem.dtype),
        std::to_string(problem.threads), std::to_string(problem.most_tokens)});
    const std::string line = child_->hear();  // by now it has its own copy of the weights
    const std::string ready = after("ready", line);
    name_ = ready.substr(0, ready.find('\t'));
    if (!ready.empty()) about_ = ready.substr(name_.size() + 1);
    missing_ = line.empty() ? fmt::format("{} ended without a word", python) : after("missing", line);
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }  ///< "" when it is there
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string about() const override { return about_; }
  [[nodiscard]] std::string setting() const override { return setting_; }
  void prepare(std::int64_t tokens) override { setting_ = ask(fmt::format("prepare {}", tokens)); }
  double run() override { return std::strtod(ask("run").c_str(), nullptr); }
  [[nodiscard]] const std::byte* output() const override { return out_; }

 private:
  std::string ask(const std::string& question) {
    child_->tell(question);
    const std::string line = child_->hear();
    const std::string answer = after("ok", line);
    if (answer.empty()) throw Error(ErrorCode::communication, fmt::format("torch: {}: {}", question, line));
    return answer;
  }

  Shared io_;
  std::byte* out_;
  std::unique_ptr<Child> child_;
  std::string name_, about_, setting_, missing_;
};

}  // namespace

std::unique_ptr<Peer> make_torch(const Problem& problem, const std::string& python, const std::string& script,
                                 std::string& why) {
  // A Python without torch is told apart before any weight is copied for it.
  Child probe({python, "-c", "import importlib.util as u; print('yes' if u.find_spec('torch') else 'no')"});
  const std::string found = probe.hear();
  if (found != "yes") {
    why = found == "no" ? "not installed" : fmt::format("{} does not run", python);
    return nullptr;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a child that died is an error with a text
  auto torch = std::make_unique<Torch>(problem, python, script);
  why = torch->missing();
  return why.empty() ? std::move(torch) : nullptr;
}

}  // namespace swiglu::bench
