// The whole command line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"

namespace attune::cli {

/// The parser with every command in it; `invocation` must outlive it. Public for the tests of completion and man page.
std::unique_ptr<CLI::App> make_app(Invocation& invocation);

/// Runs one command line, `arguments` without the program's name. Throws nothing; the result is the exit status.
int run(const std::vector<std::string>& arguments, Streams streams);

}  // namespace attune::cli
