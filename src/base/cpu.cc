// CPU detection, cgroup quota and MXCSR; see cpu.h.
#include "base/cpu.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

namespace swiglu {
namespace {

constexpr std::array<const char*, 5> kIsaNames = {"automatic", "scalar", "avx2", "avx512", "avx512bf16"};
constexpr std::array<const char*, 3> kComputeNames = {"automatic", "f32", "bf16"};
constexpr std::array<const char*, 3> kStorageNames = {"automatic", "plain", "compact"};

template <std::size_t N>
std::size_t index_of(const std::array<const char*, N>& names, std::string_view name, const char* what) {
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return i;
    known += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
  }
  throw Error(ErrorCode::usage, fmt::format("unknown {} '{}': expected one of {}", what, name, known));
}

// "max 100000" or "150000 100000" (version 2), or quota and period in two files (version 1; -1 is none).
double cpu_limit(const std::string& folder, bool version_2) {
  std::string quota;
  double period = 0;
  if (version_2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return period > 0 ? std::strtod(quota.c_str(), nullptr) / period : 0;  // "max" is 0
}

// The CPU quota of the process's cgroup, in CPUs; 0 when there is none. Limits apply at every level.
double cgroup_quota() {
  double least = 0;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "number:controllers:/path"; version 2 names none
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && (',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
    const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);;) {
      const double limit = cpu_limit(root + path, version_2);
      if (limit > 0 && (least == 0 || limit < least)) least = limit;
      const auto slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return least;
}

}  // namespace

const char* name_of(Isa isa) noexcept { return kIsaNames[static_cast<std::size_t>(isa)]; }
Isa parse_isa(std::string_view name) { return static_cast<Isa>(index_of(kIsaNames, name, "ISA")); }
const char* name_of(Compute compute) noexcept { return kComputeNames[static_cast<std::size_t>(compute)]; }
Compute parse_compute(std::string_view name) {
  return static_cast<Compute>(index_of(kComputeNames, name, "compute type"));
}
const char* name_of(Storage storage) noexcept { return kStorageNames[static_cast<std::size_t>(storage)]; }
Storage parse_storage(std::string_view name) { return static_cast<Storage>(index_of(kStorageNames, name, "storage")); }

bool cpu_has(Isa isa) noexcept {
  switch (isa) {
    case Isa::automatic:
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
             __builtin_cpu_supports("f16c") != 0;
    case Isa::avx512:
      return cpu_has(Isa::avx2) && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
    case Isa::avx512bf16:
      return cpu_has(Isa::avx512) && __builtin_cpu_supports("avx512bf16") != 0;
  }
  return false;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    if (cpu_has(isa)) found.push_back(isa);
  }
  return found;
}

Isa resolve_isa(Isa isa) {
  if (isa == Isa::automatic) return default_isa();
  if (!cpu_has(isa)) {
    throw Error(ErrorCode::usage, fmt::format("this machine lacks the ISA '{}'; the best it has is '{}'", name_of(isa),
                                              name_of(available_isas().back())));
  }
  return isa;
}

Isa default_isa() {
  if (const char* forced = std::getenv("SWIGLU_ISA"); forced != nullptr && *forced != '\0') {
    const Isa isa = parse_isa(forced);
    if (isa != Isa::automatic) return resolve_isa(isa);
  }
  const Isa best = available_isas().back();
  // Intel's vdpbf16ps runs once in two cycles (measured: 87 GFLOP/s beside 185 of fp32 fma on one core of
  // model 207), so widening bf16 in registers is faster there for every token count. The bits are the same.
  if (best == Isa::avx512bf16 && __builtin_cpu_is("intel") != 0) return Isa::avx512;
  return best;
}

int usable_cpus() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  try {
    if (const double quota = cgroup_quota(); quota > 0) cpus = std::min(cpus, static_cast<int>(quota + 0.999));
  } catch (...) {
    // An unreadable cgroup means no known quota.
  }
  return std::max(cpus, 1);
}

PrefetchPolicy weights_prefetch(int rows) noexcept {
  // Intel model 207 drops prefetches when its 16 fill buffers are taken, so each line gets a second chance
  // shortly before its use, and the first one asks sixteen pages in turn, whose streams the L2 prefetcher
  // follows on its own: 0.87 to 0.99 of the bandwidth at 1 token, 0.75 to 0.87 at 8 (docs/speed.md).
  if (__builtin_cpu_is("intel") != 0) return {98304, 4, 4096};
  // Zen 4: at most 5 tokens lose up to 30 % by distances of 4 KiB and more; from 6 on 16 KiB gain 20 %.
  return rows >= 6 ? PrefetchPolicy{16384, 0, 0} : PrefetchPolicy{0, 0, 384};
}

FloatMode::FloatMode(std::uint32_t mode) noexcept : saved_(_mm_getcsr()) { _mm_setcsr(mode); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }

}  // namespace swiglu
