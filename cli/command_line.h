// How the commands' flags are declared to CLI11, whose one home these files are: shared flags here, those of
// the commands in flags_layers.cc (what runs a layer) and flags_files.cc (what reads and writes files).
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "flags.h"

namespace swiglu::cli {

inline constexpr int kMostThreads = 4096;

/// A flag whose text `read` turns into a value, throwing Error(usage).
CLI::Option* flag(CLI::App* command, const std::string& names, const std::string& value, const std::string& help,
                  const std::function<void(const std::string&)>& read);

/// A flag that takes a list; `read` turns one of its pieces into a value.
template <class T>
void list_flag(CLI::App* command, const std::string& name, const std::string& value, const std::string& help,
               std::vector<T>& values, const std::function<T(const std::string&)>& read) {
  flag(command, name, value, help, [name, &values, read](const std::string& text) {
    values.clear();
    for (const std::string& piece : parse_list(name, text)) values.push_back(read(piece));
  });
}

void model_argument(CLI::App* command, std::filesystem::path& model);
void threads_flag(CLI::App* command, int& threads);
void compute_flag(CLI::App* command, Compute& compute);
void storage_flag(CLI::App* command, Storage& storage);
void eps_and_hidden_flags(CLI::App* command, OpenOptions& open);
void expert_flag(CLI::App* command, std::optional<std::int64_t>& expert);
void map_flag(CLI::App* command, bool& map);
void json_flag(CLI::App* command, bool& json);

[[nodiscard]] Compute read_compute(const std::string& text);
[[nodiscard]] Storage read_storage(const std::string& text);

/// Each adds its command to `app`; parsing fills the options, which must outlive it.
CLI::App* add_demo(CLI::App& app, DemoOptions& o);
CLI::App* add_run(CLI::App& app, RunOptions& o);
CLI::App* add_verify(CLI::App& app, VerifyOptions& o);
CLI::App* add_bench(CLI::App& app, BenchOptions& o);
CLI::App* add_width(CLI::App& app, WidthOptions& o);
CLI::App* add_inspect(CLI::App& app, InspectOptions& o);
CLI::App* add_synth(CLI::App& app, SynthOptions& o);
CLI::App* add_compare(CLI::App& app, CompareOptions& o);
CLI::App* add_convert(CLI::App& app, ConvertOptions& o);
CLI::App* add_pack(CLI::App& app, PackOptions& o);

/// What the command has under swiglu-mpi only, and without what it lacks there.
void adapt_to_ranks(CLI::App* command, RanksOptions& o);

}  // namespace swiglu::cli
