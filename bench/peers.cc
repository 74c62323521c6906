// swiglu beside its peers, in one process and in turns, so that a busy neighbour or a slow moment of the machine
// falls on all of them alike. The figure that counts is the ratio within a round; times of different runs mean
// nothing on a shared machine. Results are compared first: wrong programs are fast.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "peer.h"
#include "peer_options.h"
#include "swiglu/machine.hpp"

namespace swiglu::bench {
namespace {

using Samples = std::vector<double>;

/// One number of tokens: seconds[peer][round]; peer 0 is swiglu.
struct Row {
  std::int64_t tokens = 0;
  std::vector<Samples> seconds;
  std::vector<double> difference;  ///< from swiglu's result, relative L2, without the residual
};

double quantile(Samples samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double at = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (at - std::floor(at)) * (samples[above] - samples[below]);
}

/// How many times faster swiglu was, round by round.
Samples ratios(const Row& row, std::size_t peer) {
  Samples result;
  for (std::size_t round = 0; round < row.seconds[0].size(); ++round) {
    result.push_back(row.seconds[peer][round] / row.seconds[0][round]);
  }
  return result;
}

double element(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
  const std::uint32_t upper = reinterpret_cast<const std::uint16_t*>(data)[i];
  return static_cast<double>(std::bit_cast<float>(upper << 16));
}

double difference(const Problem& problem, std::int64_t tokens, const std::byte* ours, const std::byte* theirs) {
  double errors = 0;
  double values = 0;
  for (std::int64_t i = 0; i < tokens * problem.config.dim; ++i) {
    const double mine = element(ours, problem.dtype, i);
    const double error = element(theirs, problem.dtype, i) - mine;
    const double value = mine - element(problem.h.data(), problem.dtype, i);
    errors += error * error;
    values += value * value;
  }
  return std::sqrt(errors / values);
}

/// One turn of one peer. The workers of the peer before it still spin for some milliseconds, and its own
/// sleep; so with several threads there is a pause, and a short call is made twice, and the second counts.
double turn(Peer& peer, int threads) {
  constexpr double kShort = 0.15;
  if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const double first = peer.run();
  return first < kShort ? peer.run() : first;
}

Row measure(const std::vector<std::unique_ptr<Peer>>& peers, const Problem& problem, std::int64_t tokens,
            double seconds) {
  constexpr std::size_t kFewest = 5;
  constexpr std::size_t kMost = 101;
  Row row{.tokens = tokens, .seconds = std::vector<Samples>(peers.size()), .difference = {}};
  for (const auto& peer : peers) {
    peer->prepare(tokens);
    peer->run();
    row.difference.push_back(difference(problem, tokens, peers[0]->output(), peer->output()));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  while (row.seconds[0].size() < kFewest || (spent() < seconds && row.seconds[0].size() < kMost)) {
    const std::size_t first = row.seconds[0].size();  // nobody always follows the same neighbour
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const std::size_t peer = (first + i) % peers.size();
      row.seconds[peer].push_back(turn(*peers[peer], problem.threads));
    }
  }
  return row;
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f} ms", ms, ms < 1 ? 3 : ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

void print_head() {
  fmt::print("\n  {:>6}  {:>9}   {:<16}  {:>9}   {:<28}  {:>10}  {}\n", "tokens", "swiglu", "peer", "",
             "swiglu is faster (quartiles)", "difference", "what the peer ran");
}

void print_row(const Row& row, const std::vector<std::unique_ptr<Peer>>& peers) {
  for (std::size_t i = 1; i < peers.size(); ++i) {
    const Samples ratio = ratios(row, i);
    const std::string faster = fmt::format("{:.2f} times  ({:.2f}-{:.2f})", quantile(ratio, 0.5), quantile(ratio, 0.25),
                                           quantile(ratio, 0.75));
    fmt::print("  {:>6}  {:>9}   {:<16}  {:>9}   {:<28}  {:>10.1e}  {}\n", i == 1 ? std::to_string(row.tokens) : "",
               i == 1 ? milliseconds(quantile(row.seconds[0], 0.5)) : "", peers[i]->name(),
               milliseconds(quantile(row.seconds[i], 0.5)), faster, row.difference[i], peers[i]->setting());
  }
  std::fflush(stdout);
}

void write_json(const std::string& path, const PeerOptions& options, const Machine& machine,
                const std::vector<std::unique_ptr<Peer>>& peers, const std::vector<Row>& rows) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw Error(ErrorCode::io, fmt::format("{}: cannot be written", path));
  fmt::print(file, "{{\"schema_version\": 1, \"cpu\": \"{}\", \"threads\": {}, \"compute\": \"{}\", ", machine.cpu,
             options.threads, name_of(options.dtype));
  fmt::print(file, "\"dim\": {}, \"hidden\": {}, \"rows\": [", options.config.dim, options.config.hidden);
  const char* comma = "";
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
      fmt::print(file, "{}\n  {{\"tokens\": {}, \"name\": \"{}\", \"about\": \"{}\", \"difference\": {}, ", comma,
                 row.tokens, peers[i]->name(), peers[i]->about(), row.difference[i]);
      fmt::print(file, "\"time_s\": [{}]}}", fmt::join(row.seconds[i], ", "));
      comma = ",";
    }
  }
  fmt::print(file, "\n]}}\n");
  if (std::fclose(file) != 0) throw Error(ErrorCode::io, fmt::format("{}: cannot be written", path));
}

int run(const PeerOptions& options) {
  const Machine machine = describe_machine();
  const Problem problem = make_problem(options.config, options.dtype, options.threads,
                                       *std::max_element(options.tokens.begin(), options.tokens.end()));
  std::vector<std::unique_ptr<Peer>> peers;
  peers.push_back(make_swiglu(problem));
  peers.push_back(make_onednn(problem, options.onednn));
  std::vector<std::string> left_out;
#ifdef SWIGLU_PEERS_OPENBLAS
  if (options.dtype == DType::f32) peers.push_back(make_openblas(problem));
#else
  if (options.dtype == DType::f32) left_out.emplace_back("OpenBLAS: not installed when this was built, left out");
#endif
  if (options.python != "none") {
    std::string why;
    auto torch = make_torch(problem, options.python, SWIGLU_TORCH_PEER, why);
    if (torch != nullptr) {
      peers.push_back(std::move(torch));
    } else {
      left_out.push_back(fmt::format("torch: {}, left out", why));
    }
  }

  fmt::print("The Llama 3 feed-forward sublayer: dim {}, hidden {}; {} weights, activations, input and output\n",
             options.config.dim, options.config.hidden, name_of(options.dtype));
  fmt::print("  {}, {} of {} CPUs used, L3 {} MB; {}\n", machine.cpu, options.threads, machine.cpus,
             machine.l3_bytes >> 20, machine.compiler);
  for (const auto& peer : peers) fmt::print("  {:<16} {}\n", peer->name(), peer->about());
  for (const std::string& line : left_out) fmt::print("  {}\n", line);
  print_head();
  std::vector<Row> rows;
  double largest = 0;
  for (const std::int64_t tokens : options.tokens) {
    rows.push_back(measure(peers, problem, tokens, options.seconds));
    print_row(rows.back(), peers);
    for (const double d : rows.back().difference) largest = std::isnan(d) ? INFINITY : std::max(largest, d);
  }
  if (!options.json.empty()) write_json(options.json, options, machine, peers, rows);
  const double allowed = options.dtype == DType::bf16 ? 2e-2 : 1e-4;
  if (largest <= allowed) return 0;
  fmt::print("\n  The results differ by {:.1e}, more than {:.0e}: these ratios compare different programs\n", largest,
             allowed);
  return 1;
}

}  // namespace
}  // namespace swiglu::bench

int main(int argc, char** argv) try {
  const auto options = swiglu::bench::parse_peer_options(argc, argv);
#ifdef SWIGLU_PEERS_OPENBLAS
  if (options.dtype == swiglu::DType::f32) swiglu::bench::help_openblas(argv, swiglu::available_isas().back());
#endif
  return swiglu::bench::run(options);
} catch (const swiglu::Error& error) {
  fmt::print(stderr, "swiglu_peers: error: {}\n", error.text());
  return 2;
} catch (const std::exception& error) {  // of a peer's library
  fmt::print(stderr, "swiglu_peers: error: {}\n", error.what());
  return 4;
}
