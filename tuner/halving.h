// The rounds of a race: many entrants a little, few entrants much.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "tuner/measure/shape_bench.h"

namespace attune::tuner {

/// An entrant's id and its time in the round before.
struct Placing {
  int id = 0;
  double seconds = 0;
};

/// Rounds in their order. The first sees every kernel; `variants` sees the launch variants of the best kernels; the
/// finals give at least 15 samples each, interleaved. `loaded` and `sustained` go without rests: the former looks at
/// all that are left after the second round, the latter has the finalists of that regime.
enum class Round { first, second, variants, finals, loaded, sustained };
inline constexpr std::size_t kMostFinalists = 8;
inline constexpr std::size_t kMostLoaded = 20;    ///< entrants of the loaded round
inline constexpr std::size_t kMostUnderLoad = 6;  ///< of the sustained one
inline constexpr std::size_t kVariedKernels = 6;
inline constexpr std::size_t kFewestFinalTurns = 5;

/// `launch_seconds`: about what a launch takes.
RaceOptions options_for(Round round, double launch_seconds);
/// Wall time of a round, roughly.
double expected_seconds(const RaceOptions& options, std::size_t entrants, double launch_seconds);

/// How many of so many entrants stay for the next round.
std::size_t kept_after(Round round, std::size_t entrants);

/// The fastest `keep` ids and those of `always`, fastest first; ties go by id. Whoever is slower than the fastest by a
/// third is out unless in `always`, as long as eight stay.
std::vector<int> survivors(std::vector<Placing> placings, std::size_t keep, const std::set<int>& always);

}  // namespace attune::tuner
