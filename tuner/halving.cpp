#include "tuner/halving.h"

#include <algorithm>

namespace attune::tuner {
namespace {

constexpr double kHopeless = 4.0 / 3;
constexpr std::size_t kFewestKept = 24;
// Under the power cap a kernel's time settles within 50 ms of the one before it, and then wanders by about 1% for
// longer than any turn could last, so many short turns say more than a few long ones (docs/kernels/NOTES.md, 55).
constexpr double kLoadedRun = 0.06;
constexpr double kLongestRest = 0.05;
constexpr double kTurnOverhead = 0.6e-3;  // delay in front, clock probe, waiting, talking

// Twice as long as the burst itself: on average the chip stays well below its power cap. Without a rest, bursts of long
// launches run at a clock that falls from entrant to entrant, by 15% and more, and good entrants are lost to it.
double rest_after(const RaceOptions& options, double launch_seconds) {
  return std::min(2 * (options.launches + options.warm) * launch_seconds, kLongestRest);
}

}  // namespace

RaceOptions options_for(Round round, double launch_seconds) {
  RaceOptions options;
  switch (round) {
    case Round::first: options.rest_seconds = rest_after(options, launch_seconds) / 2; break;
    case Round::second:
    case Round::variants:
      options.turns = 2;
      options.rest_seconds = rest_after(options, launch_seconds);
      break;
    case Round::finals:
      options.turns = 6;
      options.rest_seconds = rest_after(options, launch_seconds);
      break;
    case Round::loaded:
    case Round::sustained:
      options.turns = round == Round::loaded ? 3 : 12;
      options.warm = 0;
      options.launches = 1;
      options.run_seconds = kLoadedRun;
      break;
  }
  return options;
}

double expected_seconds(const RaceOptions& options, std::size_t entrants, double launch_seconds) {
  const double turn =
      options.run_seconds > 0 ? 2 * options.run_seconds : (options.warm + options.launches) * launch_seconds;
  return static_cast<double>(entrants) * options.turns * (turn + options.rest_seconds + kTurnOverhead);
}

std::size_t kept_after(Round round, std::size_t entrants) {
  switch (round) {
    case Round::first: return std::min(entrants, std::max(kFewestKept, (entrants + 2) / 3));
    case Round::second: return std::min(entrants, kMostFinalists);
    case Round::finals: return std::min(entrants, kMostLoaded);
    case Round::loaded: return std::min(entrants, kMostUnderLoad);
    default: return std::min(entrants, kMostFinalists);
  }
}

std::vector<int> survivors(std::vector<Placing> placings, std::size_t keep, const std::set<int>& always) {
  std::sort(placings.begin(), placings.end(), [](const Placing& a, const Placing& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.id < b.id;
  });
  std::vector<int> ids;
  std::size_t place = 0;
  for (const Placing& s : placings) {
    const bool hopeless = s.seconds > kHopeless * placings.front().seconds && place >= kMostFinalists;
    if ((place < keep && !hopeless) || always.contains(s.id)) ids.push_back(s.id);
    ++place;
  }
  return ids;
}

}  // namespace attune::tuner
