// What serves a problem that nobody has tuned: the first guess that builds cleanly.
#pragma once

#include "cli/output.h"
#include "runtime/builder.h"

namespace attune::cli {

/// The name that stands for it on the command line.
inline constexpr const char* kDefaultConfig = "default";

struct Guess {
  codegen::Config config;
  runtime::Build build;
};
/// Notes the guesses that were rejected before it. Throws Error(compile_failed) if none builds cleanly.
Guess best_guess(runtime::Builder& builder, const Arch& arch, const Problem& problem, Output& output);

}  // namespace attune::cli
