// What this machine is: from the processor, sysfs and sysconf.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <tuple>

#include <cpuid.h>
#include <fmt/format.h>

#include "base/cpu.h"
#include "swiglu/machine.hpp"

namespace swiglu {
namespace {

std::string processor_name() {
  unsigned words[12] = {};
  if (__get_cpuid_max(0x80000000U, nullptr) < 0x80000004U) return "unknown x86-64 processor";
  for (unsigned i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002U + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  }
  std::string name(reinterpret_cast<const char*>(words), sizeof words);
  name.resize(name.find('\0') == std::string::npos ? name.size() : name.find('\0'));
  name.erase(0, name.find_first_not_of(' '));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name.empty() ? "unknown x86-64 processor" : name;
}

// "48K" -> 49152; sysconf is not asked, because virtual machines report the sum over sockets there.
std::int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level");
    std::ifstream type_file(folder + "type");
    std::ifstream size_file(folder + "size");
    int found = 0;
    std::string type;
    std::int64_t size = 0;
    char unit = ' ';
    if (!(level_file >> found && type_file >> type && size_file >> size)) continue;
    size_file >> unit;
    if (found == level && type != "Instruction") return unit == 'M' ? size << 20 : unit == 'K' ? size << 10 : size;
  }
  return 0;
}

// The first number of a file, or -1: "max" and missing files are no limit.
std::int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = -1;
  return file >> number ? number : -1;
}

// What follows `name` in a file of lines "name number", or 0.
std::int64_t field_in(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  for (std::int64_t number = 0; file >> word >> number;) {
    if (word == name) return number;
  }
  return 0;
}

}  // namespace

std::int64_t available_memory() {
  std::int64_t least = INT64_MAX;
  const auto take = [&](std::int64_t limit, std::int64_t used) {
    if (limit >= 0 && used >= 0) least = std::min(least, std::max<std::int64_t>(limit - used, 1));
  };
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) take(std::strtoll(line.c_str() + 13, nullptr, 10) << 10, 0);
  }
  // cgroup version 2, then 1. The page cache counts as used there, but gives way.
  for (const auto& [folder, limit, used] :
       {std::tuple("/sys/fs/cgroup/", "memory.max", "memory.current"),
        std::tuple("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes")}) {
    const std::int64_t cached = field_in(fmt::format("{}memory.stat", folder), "inactive_file");
    const std::int64_t now = number_in(fmt::format("{}{}", folder, used));
    take(number_in(fmt::format("{}{}", folder, limit)), now < 0 ? now : std::max<std::int64_t>(now - cached, 0));
  }
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const std::int64_t pages = number_in("/proc/self/statm");
    take(static_cast<std::int64_t>(space.rlim_cur), pages < 0 ? 0 : pages * sysconf(_SC_PAGESIZE));
  }
  return least == INT64_MAX ? 0 : least;
}

Machine describe_machine() {
  Machine machine;
  machine.cpu = processor_name();
  machine.cpus = usable_cpus();
  machine.isas = available_isas();
  machine.l1d_bytes = cache_bytes(1);
  machine.l2_bytes = cache_bytes(2);
  machine.l3_bytes = cache_bytes(3);
  machine.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
#if defined(__clang__)
  machine.compiler = fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  machine.compiler = fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return machine;
}

}  // namespace swiglu
