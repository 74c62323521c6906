// The command line: which command, and errors to exit codes. command_line.h declares the flags.
// Exit codes: 0 done, 1 a difference was found, 2 usage, 3 a file that does not fit, 4 the machine.
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "command_line.h"
#include "report.h"
#include "session.h"

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
  bool on_ranks = false;  ///< also a command of swiglu-mpi
};

/// How a command ended: what it returned, or the error that it threw.
struct Outcome {
  int code = 0;
  std::string error;
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

int run_command_line(int argc, char** argv, Session& session) {
  const std::string program = session.program();
  const bool ranks = program != "swiglu";
  CLI::App app(ranks
                   ? "swiglu's commands on the ranks that mpirun starts, each with its share of the weights: the bits "
                     "of one process."
                   : "The Llama 3 feed-forward sublayer on CPUs: fast, exact about its errors, the same bits "
                     "everywhere.",
               program);
  app.set_version_flag("--version", fmt::format("{} {}", program, version()));
  app.footer((ranks ? std::string(
                          "Start with `mpirun -n 2 swiglu-mpi demo`; `swiglu-mpi COMMAND --help` teaches one command.\n"
                          "The other commands are swiglu's: inspect, compare, pack, convert, synth, width.\n\n")
                    : std::string("Start with `swiglu demo`; `swiglu COMMAND --help` teaches one command.\n\n")) +
             "Exit codes: 0 done; 1 a difference or an inconsistency was found; 2 usage; 3 a file that is missing or\n"
             "does not fit; 4 the machine (disk, memory, another rank). Results go to stdout, all else to stderr.\n"
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
  RanksOptions ranks_options;
  const auto team = [&session] { return session.team(); };
  std::vector<Command> commands = {
      {add_demo(app, demo_options), [&] { return demo(demo_options, team()); }, true},
      {add_inspect(app, inspect_options), [&] { return inspect(inspect_options); }},
      {add_run(app, run_options), [&] { return run(run_options, team()); }, true},
      {add_verify(app, verify_options), [&] { return verify(verify_options, team()); }, true},
      {add_compare(app, compare_options), [&] { return compare(compare_options); }},
      {add_pack(app, pack_options), [&] { return pack(pack_options); }},
      {add_convert(app, convert_options), [&] { return convert(convert_options); }},
      {add_synth(app, synth_options), [&] { return synth(synth_options); }},
      {add_bench(app, bench_options), [&] { return bench(bench_options, team()); }, true},
      {add_width(app, width_options), [&] { return width(width_options); }},
  };
  if (ranks) {
    for (const Command& command : commands) {
      if (command.on_ranks) {
        adapt_to_ranks(command.app, ranks_options);
      } else {
        app.remove_subcommand(command.app);
      }
    }
    std::erase_if(commands, [](const Command& command) { return !command.on_ranks; });
  }
  check_words(program, {argv + 1, argv + argc}, words_of(commands));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    if (fault.get_exit_code() == 0) return session.leads() ? app.exit(fault) : 0;  // --help, --version
    std::string text = fault.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    for (const Command& command : commands) {
      if (argc > 1 && command.app->get_name() == argv[1]) text += fmt::format(" ({} {} --help)", program, argv[1]);
    }
    throw Error(ErrorCode::usage, text);
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    session.configure(ranks_options);
    if (session.leads()) return command.run();
    session.follow();
    return 0;
  }
  throw Error(ErrorCode::usage, fmt::format("no command given: try `{0} demo`, or `{0} --help`", program));
}

/// Everything that can go wrong, as one line and an exit code.
template <class Work>
Outcome attempt(const Work& work) {
  try {
    return {work(), ""};
  } catch (const Error& fault) {
    return {exit_code(fault.code()), fault.text()};
  } catch (const std::bad_alloc&) {
    return {exit_code(ErrorCode::no_memory), "out of memory"};
  } catch (const std::system_error& fault) {
    return {exit_code(ErrorCode::no_memory),
            fmt::format("threads cannot be started ({}): fewer with --threads, or raise the limits (ulimit -a)",
                        fault.what())};
  } catch (const std::exception& fault) {
    return {exit_code(ErrorCode::internal), fmt::format("internal: {}", fault.what())};
  }
}

void tell_error(std::string_view text) { tell(fmt::format("swiglu: error: {}\n", printable(text))); }

int run_all(int argc, char** argv) {
  std::unique_ptr<Session> session;
  const Outcome begun = attempt([&] {
    session = open_session({argv + 1, argv + argc});
    return 0;
  });
  if (session == nullptr) {
    tell_error(begun.error);
    return begun.code;
  }
  const Outcome outcome = attempt([&] {
    session->agree({argv + 1, argv + argc});
    const int code = run_command_line(argc, argv, *session);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw Error(ErrorCode::io, fmt::format("standard output: {}", std::strerror(errno)));
    }
    return code;
  });
  const Session::Ending ending = session->end(outcome.code);
  const std::string& text = outcome.error.empty() ? ending.text : outcome.error;
  if (ending.speaks && !text.empty()) tell_error((text.starts_with("rank ") ? "" : session->place()) + text);
  if (!ending.orderly) session->leave(ending.code);
  session->close();
  return ending.code;
}

}  // namespace
}  // namespace swiglu::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file too large is an error to be told
  return swiglu::cli::run_all(argc, argv);
}
