#include "cli/problem_grid.h"

#include "base/error.h"

namespace attune::cli {

// The benchmarks' scripts have the same one (bench/peers/grid.py); both are tested against the committed table.
std::vector<Problem> problem_grid(const std::string& name, const Problem& base) {
  if (name != "fa3") fail(ErrorCode::invalid_argument, "grid: '{}' is unknown (allowed: fa3)", name);
  constexpr std::int64_t kTokens = 16384;
  constexpr int kWidth = 2048;
  std::vector<Problem> problems;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      for (std::int64_t length = 512; length <= kTokens; length *= 2) {
        Problem& problem = problems.emplace_back(base);
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.heads = problem.heads_kv = kWidth / head_dim;
        problem.causal = causal;
        problem.batch = kTokens / length;
        problem.seqlen_q = problem.seqlen_k = length;
      }
    }
  }
  return problems;
}

}  // namespace attune::cli
