// The flags that several commands share; see command_line.h.
#include <array>
#include <string>
#include <string_view>

#include "command_line.h"

namespace swiglu::cli {
namespace {

constexpr std::array<std::string_view, 3> kComputes = {"automatic", "f32", "bf16"};
constexpr std::array<std::string_view, 3> kStorages = {"automatic", "plain", "compact"};

}  // namespace

CLI::Option* flag(CLI::App* command, const std::string& names, const std::string& value, const std::string& help,
                  const std::function<void(const std::string&)>& read) {
  return command->add_option_function<std::string>(names, read, help)->option_text(value);
}

void threads_flag(CLI::App* command, int& threads) {
  flag(command, "--threads", "T", "Threads (default: SWIGLU_THREADS, else the CPUs this process may use)",
       [&threads](const std::string& text) {
         threads = static_cast<int>(parse_whole("--threads", text, 1, kMostThreads));
       });
}

Compute read_compute(const std::string& text) {
  return parse_compute(kComputes[parse_choice("--compute", text, kComputes)]);
}

void compute_flag(CLI::App* command, Compute& compute) {
  flag(command, "--compute", "TYPE", "automatic (default), f32 or bf16",
       [&compute](const std::string& text) { compute = read_compute(text); });
}

Storage read_storage(const std::string& text) {
  return parse_storage(kStorages[parse_choice("--storage", text, kStorages)]);
}

void storage_flag(CLI::App* command, Storage& storage) {
  flag(command, "--storage", "KIND", "Of bf16 weights: automatic (default), plain, compact; the same bits",
       [&storage](const std::string& text) { storage = read_storage(text); });
}

void model_argument(CLI::App* command, std::filesystem::path& model) {
  flag(command, "MODEL", " ", "A Hugging Face or Meta folder, or one .safetensors, .gguf, .pth or packed file",
       [&model](const std::string& text) { model = text; })
      ->required();
}

void eps_and_hidden_flags(CLI::App* command, OpenOptions& open) {
  flag(command, "--eps", "E", "Of the norm, instead of the file's (a bare file carries none: 1e-5)",
       [&open](const std::string& text) { open.eps = parse_positive("--eps", text); });
  flag(command, "--hidden", "H", "Confirms the width of the tensors where the metadata contradicts them",
       [&open](const std::string& text) { open.hidden = parse_whole("--hidden", text, 1); });
}

void expert_flag(CLI::App* command, std::optional<std::int64_t>& expert) {
  flag(command, "--expert", "E", "Of a mixture of experts: which one, from 0",
       [&expert](const std::string& text) { expert = parse_whole("--expert", text, 0); });
}

void map_flag(CLI::App* command, bool& map) {
  command->add_flag("--map", map,
                    "Map a packed file: processes share one copy, no checksum is looked at, cutting it kills them");
}

void json_flag(CLI::App* command, bool& json) { command->add_flag("--json", json, "One JSON document on stdout"); }

}  // namespace swiglu::cli
