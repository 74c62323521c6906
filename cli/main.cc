// The command line: which command, and errors to exit codes. command_line.h declares the flags.
// Exit codes: 0 done, 1 a difference was found, 2 usage, 3 a file that does not fit, 4 the machine.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "command_line.h"
#include "report.h"

namespace swiglu::cli {
namespace {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return 2;
    case ErrorCode::not_found:
    case ErrorCode::format:
    case ErrorCode::shape:
    case ErrorCode::unsupported:
      return 3;
    case ErrorCode::io:
    case ErrorCode::no_memory:
    case ErrorCode::communication:
    case ErrorCode::internal:
      return 4;
  }
  return 4;
}

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

std::vector<Words> words_of(const std::vector<Command>& commands) {
  std::vector<Words> words;
  for (const Command& command : commands) {
    words.push_back({command.app->get_name(), {}});
    for (const CLI::Option* option : command.app->get_options()) {
      for (const std::string& name : option->get_lnames()) words.back().flags.push_back("--" + name);
    }
  }
  return words;
}

int run_command_line(int argc, char** argv) {
  CLI::App app("The Llama 3 feed-forward sublayer on CPUs: fast, exact about its errors, the same bits everywhere.",
               "swiglu");
  app.set_version_flag("--version", std::string("swiglu ") + version());
  app.footer(
      "Start with `swiglu demo`; `swiglu COMMAND --help` teaches one command.\n\n"
      "Exit codes: 0 done; 1 a difference or an inconsistency was found; 2 usage; 3 a file that is missing or\n"
      "does not fit; 4 the machine (disk, memory). Results go to stdout, all else to stderr.\n"
      "SWIGLU_ISA (scalar, avx2, avx512, avx512bf16) and SWIGLU_THREADS set defaults.\n");
  app.get_formatter()->column_width(34);
  DemoOptions demo_options;
  InspectOptions inspect_options;
  RunOptions run_options;
  VerifyOptions verify_options;
  CompareOptions compare_options;
  PackOptions pack_options;
  ConvertOptions convert_options;
  SynthOptions synth_options;
  BenchOptions bench_options;
  WidthOptions width_options;
  const std::vector<Command> commands = {
      {add_demo(app, demo_options), [&] { return demo(demo_options); }},
      {add_inspect(app, inspect_options), [&] { return inspect(inspect_options); }},
      {add_run(app, run_options), [&] { return run(run_options); }},
      {add_verify(app, verify_options), [&] { return verify(verify_options); }},
      {add_compare(app, compare_options), [&] { return compare(compare_options); }},
      {add_pack(app, pack_options), [&] { return pack(pack_options); }},
      {add_convert(app, convert_options), [&] { return convert(convert_options); }},
      {add_synth(app, synth_options), [&] { return synth(synth_options); }},
      {add_bench(app, bench_options), [&] { return bench(bench_options); }},
      {add_width(app, width_options), [&] { return width(width_options); }},
  };
  check_words({argv + 1, argv + argc}, words_of(commands));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    if (fault.get_exit_code() == 0) return app.exit(fault);  // --help, --version
    std::string text = fault.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw Error(ErrorCode::usage, text);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  throw Error(ErrorCode::usage, "no command given: try `swiglu demo`, or `swiglu --help`");
}

/// Everything that can go wrong, as one line and an exit code.
int guarded(int argc, char** argv) {
  const auto fail = [](ErrorCode code, std::string_view text) {
    tell(fmt::format("swiglu: error: {}\n", printable(text)));
    return exit_code(code);
  };
  try {
    const int code = run_command_line(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return fail(ErrorCode::io, fmt::format("standard output: {}", std::strerror(errno)));
    }
    return code;
  } catch (const Error& fault) {
    return fail(fault.code(), fault.text());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::no_memory, "out of memory");
  } catch (const std::exception& fault) {
    return fail(ErrorCode::internal, fmt::format("internal: {}", fault.what()));
  }
}

}  // namespace
}  // namespace swiglu::cli

int main(int argc, char** argv) { return swiglu::cli::guarded(argc, argv); }
