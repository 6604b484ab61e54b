// When to stop: a budget of time and the user's wish.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <stop_token>
#include <utility>

namespace attune::tuner {

/// Seconds since some fixed time, never falling.
using Clock = std::function<double()>;
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Immutable; safe from any thread.
class StopCondition {
 public:
  StopCondition(double budget_seconds, std::stop_token stop, Clock clock = steady_seconds)
      : clock_(std::move(clock)), stop_(std::move(stop)), start_(clock_()), end_(start_ + budget_seconds) {}

  /// The user asked to stop: end at once.
  bool interrupted() const { return stop_.stop_requested(); }
  /// The budget is used up: bring to an end what is under way.
  bool expired() const { return interrupted() || clock_() >= end_; }
  double elapsed() const { return clock_() - start_; }
  double seconds_left() const { return std::max(0.0, end_ - clock_()); }
  const std::stop_token& token() const { return stop_; }

  /// A part of what is left, starting now; never beyond this one's end.
  StopCondition slice(double seconds) const {
    StopCondition part = *this;
    part.start_ = clock_();
    part.end_ = std::min(end_, part.start_ + seconds);
    return part;
  }

 private:
  Clock clock_;
  std::stop_token stop_;
  double start_, end_;
};

}  // namespace attune::tuner
