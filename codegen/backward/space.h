// The backward pass's part of the search space; codegen/space.h leads here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/space.h"

namespace attune::codegen::backward {

std::optional<std::string> violates(const Arch& arch, const KernelSpec& spec);
/// Whether a problem has too few blocks of keys to keep the device busy, and query heads to divide among more
/// (DkvPath::parts).
bool wants_parts(const Arch& arch, const Problem& problem, const Tunables& tunables);
std::vector<Config> candidates(const Arch& arch, const Problem& problem);
std::vector<Config> launch_variants(const Arch& arch, const Problem& problem, const Config& config);
CostEstimate estimate(const Arch& arch, const Problem& problem, const Config& config);

}  // namespace attune::codegen::backward
