// The views of plans under `attune cache`.
#pragma once

#include "cli/command.h"
#include "cli/problem_flags.h"

namespace attune::cli {

void add_cache_ls(CLI::App& group, Invocation& invocation);
void add_cache_show(CLI::App& group, Invocation& invocation);

}  // namespace attune::cli
