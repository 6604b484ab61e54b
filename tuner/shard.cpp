#include "tuner/shard.h"

#include <array>
#include <climits>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fields.h"

namespace attune::tuner {

Shard parse_shard(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    fail(ErrorCode::invalid_argument, "shard: '{}' (allowed: INDEX/COUNT, such as 0/8)", text);
  }
  Shard shard;
  shard.count = static_cast<int>(parse_int("shard count", text.substr(slash + 1), 1, INT_MAX));
  shard.index = static_cast<int>(parse_int("shard index", text.substr(0, slash), 0, shard.count - 1));
  return shard;
}

std::optional<Shard> shard_from_environment() {
  constexpr std::array<std::pair<const char*, const char*>, 3> kLaunchers{
      {{"SLURM_PROCID", "SLURM_NTASKS"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}}};
  for (const auto& [rank, size] : kLaunchers) {
    const char* const index = std::getenv(rank);
    const char* const count = std::getenv(size);
    if (index == nullptr || count == nullptr) continue;
    Shard shard;
    shard.count = static_cast<int>(parse_int(size, count, 1, INT_MAX));
    shard.index = static_cast<int>(parse_int(rank, index, 0, shard.count - 1));
    return shard;
  }
  return std::nullopt;
}

}  // namespace attune::tuner
