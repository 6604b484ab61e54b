// Medians and their intervals.
#pragma once

#include <cstddef>
#include <vector>

namespace attune::tuner {

/// Quantile by linear interpolation, 0.5 is the median; 0 for no values.
double quantile(std::vector<double> values, double share);

struct Interval {
  double median = 0, low = 0, high = 0;
};

/// The median with the order statistics around it that hold the true median with at least 95%, whatever the
/// distribution. Below six samples no pair of them does: then it is the least and the greatest.
Interval median_interval(std::vector<double> samples);

/// Takes out what is common to all entrants of a turn, such as a clock that falls while the chip warms up.
/// [entrant][turn] -> samples; each turn's samples are divided by the factor by which that turn was slower than the
/// middle one, taken as the median over the entrants. Fewer than two turns or entrants are left alone.
std::vector<std::vector<double>> without_drift(const std::vector<std::vector<std::vector<double>>>& turns);

}  // namespace attune::tuner
