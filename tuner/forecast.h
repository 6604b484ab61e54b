// How long a run will still take, for the progress line.
#pragma once

#include <mutex>
#include <vector>

#include "tuner/report.h"

namespace attune::tuner {

/// Safe from any thread.
class Forecast {
 public:
  /// A problem that will be raced, and about how long that takes.
  void expect(const Problem& problem, double seconds);

  /// From where a run stands: `now.seconds` is the time since its start. What is compiled is taken to go on at the rate
  /// so far; a problem that another has followed is taken to be finished.
  double seconds_left(const Progress& now);

 private:
  struct Expected {
    Problem problem;
    double seconds;
    double done;  // share
  };
  std::mutex mutex_;
  std::vector<Expected> expected_;
};

}  // namespace attune::tuner
