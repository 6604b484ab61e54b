#include "cli/app.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <new>

#include <attune/attune.h>

#include "base/error.h"

namespace attune::cli {
namespace {

constexpr const char* kFooter =
    "Exit status: 0 success, 1 failure, 2 usage, 3 no usable GPU or not supported here, 4 cache or pack invalid,\n"
    "5 partly tuned, 130 interrupted. `attune COMMAND --help` explains a command.";

// Raised by --version, as CLI11 raises CallForHelp by --help.
struct VersionAsked {};

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

// The command that a line has got to, as deep as its words go, and the first word that is none.
struct Reached {
  const CLI::App* app;
  std::string path;
  std::string stray;
};

Reached reach(const CLI::App& root, const std::vector<std::string>& arguments) {
  Reached reached{&root, "", ""};
  for (const std::string& word : arguments) {
    if (names_of(*reached.app).empty()) break;
    if (word.starts_with("-")) continue;
    const auto fitting = reached.app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (fitting.empty()) {
      reached.stray = word;
      break;
    }
    reached.app = fitting.front();
    reached.path += (reached.path.empty() ? "" : " ") + word;
  }
  return reached;
}

// What is wrong with a line that CLI11 refused, in our words.
std::string usage_message(const CLI::ParseError& error, const Reached& reached) {
  const std::string place = reached.path.empty() ? "attune" : "attune " + reached.path;
  const std::string help = fmt::format(" (see {} --help)", place);
  const std::vector<std::string> subcommands = names_of(*reached.app);
  if (!reached.stray.empty()) {
    return fmt::format("command: '{}' is unknown (allowed{}: {})", reached.stray,
                       reached.path.empty() ? "" : " after " + reached.path, fmt::join(subcommands, ", "));
  }
  if (!subcommands.empty()) {
    return fmt::format("command: missing{} (allowed: {})", reached.path.empty() ? "" : " after " + reached.path,
                       fmt::join(subcommands, ", "));
  }
  std::string text = error.what();
  constexpr std::string_view kOne = "The following argument was not expected: ";
  constexpr std::string_view kMany = "The following arguments were not expected: ";
  for (const std::string_view prefix : {kOne, kMany}) {
    if (!text.starts_with(prefix)) continue;
    const std::string word = text.substr(prefix.size(), text.find(' ', prefix.size()) - prefix.size());
    return fmt::format("{}: {}{}", word, word.starts_with("-") ? "is not an option" : "was not expected", help);
  }
  return text + help;
}

Json error_json(const char* code, const std::string& message) { return {{"code", code}, {"message", message}}; }

ExitCode act(const Invocation& invocation, Output& output) {
  const auto failed = [&](ErrorCode code, const std::string& message) {
    output.error(message);
    output.document()["error"] = error_json(error_code_name(code), message);
    return exit_code_of(code);
  };
  try {
    return invocation.action()(output);
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::internal, error.what());
  }
}

}  // namespace

std::unique_ptr<CLI::App> make_app(Invocation& invocation) {
  auto app = std::make_unique<CLI::App>("Attention kernels for NVIDIA GPUs: generated, tuned on the device, cached.",
                                        "attune");
  app->footer(kFooter);
  app->add_flag_callback("--version", [] { throw VersionAsked{}; }, "print the version");
  invocation.add_json(*app);
  app->require_subcommand(1);
  for (const auto add : kCommands) add(*app, invocation);
  return app;
}

int run(const std::vector<std::string>& arguments, Streams streams) {
  Output output(streams);
  output.use_json(std::ranges::find(arguments, "--json") != arguments.end());
  Invocation invocation;
  const std::unique_ptr<CLI::App> app = make_app(invocation);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
    app->parse(std::move(reversed));
  } catch (const VersionAsked&) {
    streams.out << "attune " << version() << '\n';
    return static_cast<int>(streams.out.flush().good() ? ExitCode::ok : ExitCode::failure);
  } catch (const CLI::CallForHelp&) {
    streams.out << app->help();
    return static_cast<int>(streams.out.flush().good() ? ExitCode::ok : ExitCode::failure);
  } catch (const CLI::ParseError& error) {
    const Reached reached = reach(*app, arguments);
    const std::string message = usage_message(error, reached);
    output.error(message);
    output.document()["error"] = error_json(error_code_name(ErrorCode::invalid_argument), message);
    output.finish(reached.path, static_cast<int>(ExitCode::usage));
    return static_cast<int>(ExitCode::usage);
  }
  output.use_json(invocation.json());
  const ExitCode code = act(invocation, output);
  if (!output.finish(invocation.name(), static_cast<int>(code))) {
    output.error("stdout: cannot be written");
    return static_cast<int>(ExitCode::failure);
  }
  return static_cast<int>(code);
}

}  // namespace attune::cli
