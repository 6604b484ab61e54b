// What tuning can do without a GPU: compile the candidates that the cost model likes, and keep those that build
// cleanly.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "cache/store.h"
#include "cli/exit_code.h"
#include "cli/output.h"

#include <attune/problem.h>

namespace attune::cli {

struct RankBuildsRequest {
  cache::Store store;
  Arch arch = {};
  std::vector<Problem> problems = {};
  std::vector<std::string> configs = {};  ///< these instead of the cost model's choice
  int builds = 16;                        ///< kernels for a problem
  int emulate = 0;                        ///< accepted kernels of a problem, the best first, to try on the emulator
  double seconds = 60;                    ///< no compile is begun later
  std::stop_token stop = {};
};

/// Prints one table a problem and fills the document. Kernels go to the store; no trial does, as nothing was measured.
ExitCode rank_builds(const RankBuildsRequest& request, Output& output);

}  // namespace attune::cli
