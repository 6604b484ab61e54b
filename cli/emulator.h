// What commands ask of the CPU emulator. A build without it has these functions too, and they say so.
#pragma once

#include <cstdint>
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
  std::uint64_t first_seed = 0;
};

/// attune verify --device cpu. Prints the table and what was found, fills the document.
ExitCode verify_on_emulator(const EmulatedVerifyRequest& request, Output& output);

/// A launch of somebody's kernel, in the words of the command line.
struct EmulateRequest {
  std::string file;    ///< *.ptx or *.cu
  std::string kernel;  ///< empty: the file's only one
  std::string grid, block, cluster = "1", shared = "0";
  std::vector<std::string> arguments = {}, saves = {}, compile_options = {};
  std::string seeds = "1", first_seed = "0", resident_blocks = "1", instruction_limit = "20000000000";
};

/// attune emulate. Prints what the kernel printed and what was found, fills the document.
ExitCode emulate(const EmulateRequest& request, Output& output);

/// How a kernel fared on the gate's small problems, in a few words: "ok", "wrong: ...", "race (templates/...:120):
/// ...".
struct EmulatedOutcome {
  bool good = false;
  std::string text;
};
/// Compiles a kernel to PTX and runs it. Throws Error(interrupted) soon after a stop.
EmulatedOutcome try_on_emulator(const codegen::KernelSpec& spec, const std::stop_token& stop);

}  // namespace attune::cli
