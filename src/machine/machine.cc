// What this machine is: from the processor, sysfs and sysconf.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

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

}  // namespace

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
