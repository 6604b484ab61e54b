// Named sets of problems.
#pragma once

#include <string>
#include <vector>

#include <attune/problem.h>

namespace attune::cli {

/// The problems of a grid. `fa3`: as FlashAttention-3's paper has them, head dims 64, 128 and 256, without a mask and
/// causal, lengths 512 to 16384, 16384 tokens, heads * head dim = 2048; the rest as `base` has it. Throws
/// Error(invalid_argument) for any other name.
std::vector<Problem> problem_grid(const std::string& name, const Problem& base = {});

}  // namespace attune::cli
