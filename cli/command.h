// How a command joins the command line: one function in a file named after it, and one line in kCommands.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "cli/exit_code.h"
#include "cli/output.h"

namespace attune::cli {

/// What a command does once the whole line is known to be well-formed. May throw attune::Error.
using Action = std::function<ExitCode(Output&)>;

/// Collects what parsing selects.
class Invocation {
 public:
  /// A subcommand with the flags that all have.
  CLI::App& add(CLI::App& parent, const std::string& name, const std::string& description, Action action) {
    CLI::App& command = *parent.add_subcommand(name, description);
    add_json(command);
    command.parse_complete_callback([this, &parent, name, action = std::move(action)] {
      name_ = parent.get_parent() == nullptr ? name : parent.get_name() + " " + name;
      action_ = action;
    });
    return command;
  }

  void add_json(CLI::App& app) {
    app.add_flag("--json", json_, "one JSON document on stdout, everything else on stderr");
  }

  const std::string& name() const { return name_; }
  bool json() const { return json_; }
  const Action& action() const { return action_; }

 private:
  std::string name_;
  bool json_ = false;
  Action action_;
};

void add_doctor(CLI::App& app, Invocation& invocation);
void add_emit(CLI::App& app, Invocation& invocation);
void add_compile(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_tune(CLI::App& app, Invocation& invocation);
void add_verify(CLI::App& app, Invocation& invocation);
void add_emulate(CLI::App& app, Invocation& invocation);
void add_bench(CLI::App& app, Invocation& invocation);
void add_explain(CLI::App& app, Invocation& invocation);
void add_cache(CLI::App& app, Invocation& invocation);
void add_pack(CLI::App& app, Invocation& invocation);

/// All commands, in the order of the help.
inline constexpr std::array kCommands{add_doctor,  add_emit,  add_compile, add_inspect, add_tune, add_verify,
                                      add_emulate, add_bench, add_explain, add_cache,   add_pack};

}  // namespace attune::cli
