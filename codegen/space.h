// The search space: which configs exist for a problem, which rules they must pass, and how fast a model says they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/kernel_spec.h"

namespace attune::codegen {

/// Why a spec cannot be built, in words ("shared memory: 241664 bytes needed, 232448 available"), or nothing.
std::optional<std::string> violates(const Arch& arch, const KernelSpec& spec);

/// Every config of the space that passes the rules for this problem, launch part included, in a fixed order.
std::vector<Config> candidates(const Arch& arch, const Problem& problem);

/// The same schedule in other code, which ptxas may accept where it rejects this one: which kernels it serialises for
/// want of registers depends on code that has nothing to do with the products. Nothing where there is none.
std::optional<Config> in_other_code(const Config& config);

/// A config and what its launch part may be beside it: the same kernel with other numbers of workers, L2 sections
/// and parts.
std::vector<Config> launch_variants(const Arch& arch, const Problem& problem, const Config& config);

/// Where thread blocks that load K and V for each other can pay: reading them costs enough to be worth waiting for each
/// other, and there are enough tiles to share out.
bool clusters_pay(const Arch& arch, const Problem& problem);

/// Whether the last tile of a head leaves warpgroups without rows.
bool has_idle_rows(const Problem& problem, const Config& config);

/// Equal for close relatives, which a compiler rejects together and which need about the same energy a product: those
/// of one tile, cluster and source of Q.
std::string tile_text(const Config& config);

/// Time in seconds by limit, from counts alone. `total` combines them for the config's schedule.
struct CostEstimate {
  double tensor = 0, exponential = 0, shared_memory = 0, l2 = 0, hbm = 0, launch = 0;
  double total = 0;
  const char* limit = "";  ///< name of the largest term
};
CostEstimate estimate(const Arch& arch, const Problem& problem, const Config& config);

/// What won on the closest problems of the built-in table (see default_table.h), each also in other code, best first.
/// Listing them takes next to no time.
std::vector<Config> tabled_guesses(const Arch& arch, const Problem& problem);
/// What to launch for a problem that nobody has tuned: first tabled_guesses(), then the model's guesses, for
/// which the whole space is listed; all pass every rule, best first, few of each tile, so that one of them builds
/// cleanly where the first does not. Never empty.
std::vector<Config> default_configs(const Arch& arch, const Problem& problem);
/// The first of them.
Config default_config(const Arch& arch, const Problem& problem);

}  // namespace attune::codegen
