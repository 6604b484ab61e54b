#include "cli/ranking.h"

#include <algorithm>

namespace attune::cli {

std::vector<RankedConfig> ranked_candidates(const Arch& arch, const Problem& problem) {
  std::vector<RankedConfig> ranked;
  for (const codegen::Config& config : codegen::candidates(arch, problem))
    ranked.push_back({config, codegen::estimate(arch, problem, config)});
  std::ranges::stable_sort(ranked, {}, [](const RankedConfig& r) { return r.estimate.total; });
  return ranked;
}

Json estimate_json(const codegen::CostEstimate& e) {
  return {{"seconds", e.total},
          {"limit", e.limit},
          {"tensor_seconds", e.tensor},
          {"exponential_seconds", e.exponential},
          {"shared_memory_seconds", e.shared_memory},
          {"l2_seconds", e.l2},
          {"hbm_seconds", e.hbm},
          {"launch_seconds", e.launch}};
}

}  // namespace attune::cli
