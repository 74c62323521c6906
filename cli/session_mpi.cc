// The processes that mpirun started. Rank 0's Team turns what it is asked for into orders for all; each rank, also
// rank 0, carries them out by its Rank.
#include "session.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "orders.h"
#include "rank.h"
#include "report.h"
#include "swiglu/mpi.hpp"

namespace swiglu::cli {
namespace {

enum class Kind : std::uint8_t { input, make, drop, run, overlap, report, stop };

struct RunOrder {
  int id;
  bool block;
  DType dtype;  ///< of the output
  std::int64_t first, rows;
};

struct Arithmetic {
  int id;
  Compute compute;
  Storage storage;
  Isa isa;
  int threads;
};

void put_origin(OrderWriter& order, const LayerOrigin& o) {
  order.put_text(o.model.native()).put(o.layer).put(o.expert).put(o.open).put(o.made_up).put(o.dtype).put(o.seed);
}

LayerOrigin get_origin(OrderReader& order) {
  LayerOrigin o;
  o.model = order.get_text();
  o.layer = order.get<decltype(o.layer)>();
  o.expert = order.get<decltype(o.expert)>();
  o.open = order.get<decltype(o.open)>();
  o.made_up = order.get<decltype(o.made_up)>();
  o.dtype = order.get<decltype(o.dtype)>();
  o.seed = order.get<decltype(o.seed)>();
  return o;
}

/// The threads this rank may take without taking another's: its CPUs / the ranks here that may use any of them.
int fair_threads(mpi::Session& session) {
  const int usual = ThreadPool().threads();
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<std::byte> all;
  for (const auto& one : session.gather(std::as_bytes(std::span(&mine, 1))))
    all.insert(all.end(), one.begin(), one.end());
  session.broadcast(all);
  int sharing = 0;
  for (const int rank : session.ranks_here()) {
    cpu_set_t theirs, both;
    std::memcpy(&theirs, all.data() + static_cast<std::size_t>(rank) * sizeof theirs, sizeof theirs);
    CPU_AND(&both, &mine, &theirs);
    if (CPU_COUNT(&both) > 0) ++sharing;
  }
  // Only now: ranks need not agree on this, but must have made the same calls.
  if (std::getenv("SWIGLU_THREADS") != nullptr) return usual;
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (session.rank() == 0 && 2 * std::ssize(session.ranks_here()) * CPU_COUNT(&mine) <= cpus) {
    tell(fmt::format("swiglu: note: rank 0 may use {} of {}: mpirun --bind-to none (or numa) gives ranks more\n",
                     CPU_COUNT(&mine), plural(cpus, "CPU")));
  }
  return std::max(1, usual / std::max(1, sharing));
}

class MpiTeam final : public Team {
 public:
  MpiTeam(mpi::Session& session, Rank& rank, mpi::Wire wire, int threads)
      : session_(session), rank_(rank), wire_(wire), threads_(threads) {}
  [[nodiscard]] int size() const override { return session_.size(); }
  [[nodiscard]] bool one_machine() const override { return std::ssize(session_.ranks_here()) == session_.size(); }
  [[nodiscard]] int default_threads() const override { return threads_; }
  [[nodiscard]] std::string wire() const override { return mpi::name_of(wire_); }

  void input(const TensorView& h) override {
    OrderWriter order = order_of(Kind::input);
    order.put(h.dtype).put(h.rows).put(h.cols);
    const std::span bytes(static_cast<const std::byte*>(h.data),
                          static_cast<std::size_t>(h.rows * h.cols * size_of(h.dtype)));
    order.put_bytes(bytes);
    session_.broadcast(order.bytes());
    rank_.input(h.dtype, h.rows, h.cols, bytes);
  }

  std::unique_ptr<TeamLayer> make(const LayerOrigin& origin, Compute compute, Storage storage, Isa isa,
                                  int threads) override {
    const int id = next_++;
    OrderWriter order = order_of(Kind::make);
    order.put(Arithmetic{id, compute, storage, isa, threads});
    put_origin(order, origin);
    session_.broadcast(order.bytes());
    rank_.make(id, origin, compute, storage, isa, threads);
    return std::make_unique<Layer>(*this, id);
  }

  void overlap(const std::string& kind) override {
    OrderWriter order = order_of(Kind::overlap);
    order.put_text(kind);
    session_.broadcast(order.bytes());
    session_.remake_reducer(wire_, mpi::parse_overlap(kind));
  }

  std::vector<RankReport> report() override {
    session_.broadcast(order_of(Kind::report).bytes());
    const RankReport own = rank_.report();
    std::vector<RankReport> reports;
    for (const auto& bytes : session_.gather(std::as_bytes(std::span(&own, 1)))) {
      std::memcpy(&reports.emplace_back(), bytes.data(), sizeof own);
    }
    return reports;
  }

  void release() override {
    stop();
    ending_ = session_.end(0);
    if (ending_->orderly) return session_.close();
    throw Error(ErrorCode::communication, ending_->text.empty() ? "another rank has failed" : ending_->text);
  }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    session_.broadcast(order_of(Kind::stop).bytes());
  }
  [[nodiscard]] const std::optional<mpi::Session::Ending>& ending() const { return ending_; }

 private:
  class Layer final : public TeamLayer {
   public:
    Layer(MpiTeam& team, int id) : team_(team), id_(id) {}
    ~Layer() override { team_.drop(id_); }
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;
    [[nodiscard]] const FeedForwardInfo& info() const override { return team_.rank_.info(id_); }
    void run(std::int64_t first, bool block, const MutableTensorView& out) override {
      OrderWriter order = order_of(Kind::run);
      order.put(RunOrder{id_, block, out.dtype, first, out.rows});
      team_.session_.broadcast(order.bytes());
      team_.rank_.run(id_, first, block, out);
    }

   private:
    MpiTeam& team_;
    int id_;
  };

  static OrderWriter order_of(Kind kind) {
    OrderWriter order;
    order.put(kind);
    return order;
  }
  /// Also while an error makes its way up: then nobody may be listening any more.
  void drop(int id) noexcept {
    rank_.drop(id);
    if (stopped_) return;
    try {
      OrderWriter order = order_of(Kind::drop);
      order.put(id);
      session_.broadcast(order.bytes());
    } catch (const Error&) {  // is told where it is waited for next
      stopped_ = true;
    }
  }

  mpi::Session& session_;
  Rank& rank_;
  mpi::Wire wire_;
  int threads_;
  int next_ = 0;
  bool stopped_ = false;
  std::optional<mpi::Session::Ending> ending_;
};

class MpiSession final : public Session {
 public:
  explicit MpiSession(const mpi::Options& options) : session_(options), rank_(session_) {}
  [[nodiscard]] const char* program() const override { return "swiglu-mpi"; }
  [[nodiscard]] bool leads() const override { return session_.rank() == 0; }
  [[nodiscard]] std::string place() const override {
    if (session_.size() == 1) return "";
    char host[65] = {};
    gethostname(host, sizeof host - 1);
    return fmt::format("rank {} ({}): ", session_.rank(), host);
  }
  [[nodiscard]] Team* team() override { return team_.get(); }

  void agree(std::span<char* const> arguments) override {
    session_.agree("the version", version());
    session_.agree("the command line", fmt::format("{}", fmt::join(arguments.begin(), arguments.end(), " ")));
  }

  void configure(const RanksOptions& options) override {
    session_.set_timeout(options.timeout_seconds);
    wire_ = mpi::parse_wire(options.wire);
    session_.remake_reducer(wire_, mpi::Overlap::posted);
    const int threads = fair_threads(session_);
    if (leads()) team_ = std::make_unique<MpiTeam>(session_, rank_, wire_, threads);
  }

  void follow() override {
    std::vector<std::byte> bytes;
    for (;;) {
      session_.broadcast(bytes);
      OrderReader order(bytes);
      switch (order.get<Kind>()) {
        case Kind::input: {
          const auto dtype = order.get<DType>();
          const auto rows = order.get<std::int64_t>(), dim = order.get<std::int64_t>();
          rank_.input(dtype, rows, dim, order.rest());
          break;
        }
        case Kind::make: {
          const auto how = order.get<Arithmetic>();
          rank_.make(how.id, get_origin(order), how.compute, how.storage, how.isa, how.threads);
          break;
        }
        case Kind::drop:
          rank_.drop(order.get<int>());
          break;
        case Kind::run: {
          const auto run = order.get<RunOrder>();
          rank_.run(run.id, run.first, run.block, run.dtype, run.rows);
          break;
        }
        case Kind::overlap:
          session_.remake_reducer(wire_, mpi::parse_overlap(order.get_text()));
          break;
        case Kind::report: {
          const RankReport own = rank_.report();
          static_cast<void>(session_.gather(std::as_bytes(std::span(&own, 1))));
          break;
        }
        case Kind::stop:
          return;
      }
    }
  }

  Ending end(int code) override {
    if (team_ != nullptr && team_->ending()) return {code, true, true, ""};  // alone since then
    std::string text;
    if (team_ != nullptr && code <= 1) {
      try {
        team_->stop();
      } catch (const Error& fault) {
        code = 4;
        text = fault.text();
      }
    }
    const mpi::Session::Ending ending = session_.end(code);
    return {ending.code, ending.speaks, ending.orderly, text.empty() ? ending.text : text};
  }
  void close() override {
    if (team_ == nullptr || !team_->ending()) session_.close();
  }
  [[noreturn]] void leave(int code) override { session_.leave(code); }

 private:
  mpi::Session session_;
  Rank rank_;
  mpi::Wire wire_ = mpi::Wire::f32;
  std::unique_ptr<MpiTeam> team_;
};

}  // namespace

std::unique_ptr<Session> open_session(std::span<char* const> arguments) {
  mpi::Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    const char* text = word == "--timeout" && i + 1 < arguments.size() ? arguments[i + 1]
                       : word.starts_with("--timeout=")                ? arguments[i] + std::strlen("--timeout=")
                                                                       : "";
    if (const double seconds = std::atof(text); seconds > 0) options.timeout_seconds = seconds;
  }
  options.stuck = [](std::string_view text) { tell(fmt::format("swiglu: error: {}\n", text)); };
  return std::make_unique<MpiSession>(options);
}

}  // namespace swiglu::cli
