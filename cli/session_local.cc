// One process: nobody to agree with or to wait for.
#include <cstdlib>

#include "session.h"

namespace swiglu::cli {
namespace {

class LocalSession final : public Session {
 public:
  [[nodiscard]] const char* program() const override { return "swiglu"; }
  [[nodiscard]] bool leads() const override { return true; }
  [[nodiscard]] std::string place() const override { return ""; }
  [[nodiscard]] Team* team() override { return nullptr; }
  void agree(std::span<char* const> /*arguments*/) override {}
  void configure(const RanksOptions& /*options*/) override {}
  void follow() override {}
  Ending end(int code) override { return {code, true, true, ""}; }
  void close() override {}
  [[noreturn]] void leave(int code) override { std::exit(code); }
};

}  // namespace

std::unique_ptr<Session> open_session(std::span<char* const> /*arguments*/) { return std::make_unique<LocalSession>(); }

}  // namespace swiglu::cli
