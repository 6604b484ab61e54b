#include "tuner/forecast.h"

#include <algorithm>

namespace attune::tuner {
namespace {

// Share of a problem's time that lies behind it when a phase begins, and when it ends.
struct Span {
  double from, to;
};

Span span_of(Phase phase) {
  switch (phase) {
    case Phase::starting:
    case Phase::compiling: return {0, 0};
    case Phase::checking: return {0, 0.25};
    case Phase::racing: return {0.25, 0.7};
    case Phase::finals: return {0.7, 1};
    case Phase::sustained:
    case Phase::done: return {1, 1};
  }
  return {0, 0};
}

}  // namespace

void Forecast::expect(const Problem& problem, double seconds) {
  const std::lock_guard lock(mutex_);
  expected_.push_back({problem, seconds, 0});
}

double Forecast::seconds_left(const Progress& now) {
  const std::lock_guard lock(mutex_);
  const double share = now.total > 0 ? static_cast<double>(now.done) / now.total : 0;
  const auto current =
      std::find_if(expected_.begin(), expected_.end(), [&](const Expected& e) { return e.problem == now.problem; });
  if (current != expected_.end()) {
    const Span span = span_of(now.phase);
    current->done = std::max(current->done, span.from + share * (span.to - span.from));
  }
  double left = 0;
  for (const Expected& e : expected_) left += (1 - e.done) * e.seconds;
  if (now.phase == Phase::compiling && share > 0) left += now.seconds * (1 - share) / share;
  return left;
}

}  // namespace attune::tuner
