// Candidates in the order in which the cost model likes them.
#pragma once

#include <vector>

#include "cli/output.h"
#include "codegen/space.h"

namespace attune::cli {

struct RankedConfig {
  codegen::Config config;
  codegen::CostEstimate estimate;
};

/// Every candidate, the fastest estimate first; equal estimates keep the order of the space.
std::vector<RankedConfig> ranked_candidates(const Arch& arch, const Problem& problem);

Json estimate_json(const codegen::CostEstimate& estimate);

}  // namespace attune::cli
