// What commands ask of the CPU emulator. A build without it has these functions too, and they say so.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/problem_set.h"
#include "runtime/builder.h"

namespace attune::cli {

bool has_emulator();

/// Throws Error(unsupported) if this build has none.
void require_emulator();

struct EmulatedVerifyRequest {
  const ProblemSetFlags& problems;
  std::vector<std::string> configs = {};
  std::string pack = {};    ///< verify the configs of its entries, compiled to PTX
  std::string source = {};  ///< verify this CUDA source: a kernel as emitted, perhaps edited since
  int seeds = 1;            ///< launches of each case, each in another order
};

/// attune verify --device cpu. Prints the table and what was found, fills the document.
ExitCode verify_on_emulator(const EmulatedVerifyRequest& request, Output& output);

/// How a kernel fared on the gate's small problems, in a few words: "ok", "wrong: ...", "race (templates/...:120):
/// ...".
struct EmulatedOutcome {
  bool good = false;
  std::string text;
};
/// Compiles a kernel to PTX and runs it. Throws Error(interrupted) soon after a stop.
EmulatedOutcome try_on_emulator(const codegen::KernelSpec& spec, const std::stop_token& stop);

}  // namespace attune::cli
