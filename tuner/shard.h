// Sharing problems out among the processes of a job, without any communication: every process tunes its part, and
// `attune cache merge` joins the results.
#pragma once

#include <optional>
#include <string_view>

namespace attune::tuner {

struct Shard {
  int index = 0;  ///< 0 to count - 1
  int count = 1;

  bool operator==(const Shard&) const = default;
};

/// "2/8": the third of eight. Throws Error(invalid_argument) that names the text and what is allowed.
Shard parse_shard(std::string_view text);

/// From the launcher's environment: SLURM_PROCID / SLURM_NTASKS, OMPI_COMM_WORLD_RANK / _SIZE, PMI_RANK / PMI_SIZE.
/// Empty outside a launcher. Throws Error(invalid_argument) if the variables are malformed.
std::optional<Shard> shard_from_environment();

}  // namespace attune::tuner
