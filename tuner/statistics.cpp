#include "tuner/statistics.h"

#include <algorithm>
#include <cmath>

namespace attune::tuner {
namespace {

// Largest number k of samples that may be cut off at each end so that the rest still holds the median with 95%: the
// chance that fewer than k + 1 of n samples lie below the median is at most 2.5%.
std::size_t cut_for(std::size_t n) {
  // In logarithms: 0.5^n is no number for long.
  double log_probability = static_cast<double>(n) * std::log(0.5);  // of exactly k below, for k = 0
  double at_most = std::exp(log_probability);
  std::size_t k = 0;
  while (k < n && at_most <= 0.025) {
    ++k;
    log_probability += std::log(static_cast<double>(n - k + 1) / static_cast<double>(k));
    at_most += std::exp(log_probability);
  }
  return k == 0 ? 0 : k - 1;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = std::clamp(share, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double part = place - static_cast<double>(below);
  return values[below] + part * (values[above] - values[below]);
}

Interval median_interval(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const std::size_t cut = cut_for(samples.size());
  return {quantile(samples, 0.5), samples[cut], samples[samples.size() - 1 - cut]};
}

std::vector<std::vector<double>> without_drift(const std::vector<std::vector<std::vector<double>>>& turns) {
  std::size_t turn_count = 0;
  for (const auto& entrant : turns) turn_count = std::max(turn_count, entrant.size());
  std::vector<double> factors(turn_count, 1);
  if (turns.size() >= 2 && turn_count >= 2) {
    // Each entrant's turns against its own middle turn, so that fast and slow entrants weigh the same.
    std::vector<std::vector<double>> ratios(turn_count);
    for (const auto& entrant : turns) {
      std::vector<double> medians;
      for (const auto& turn : entrant) medians.push_back(quantile(turn, 0.5));
      const double middle = quantile(medians, 0.5);
      for (std::size_t t = 0; t < medians.size() && middle > 0; ++t)
        if (medians[t] > 0) ratios[t].push_back(medians[t] / middle);
    }
    for (std::size_t t = 0; t < turn_count; ++t)
      if (!ratios[t].empty()) factors[t] = quantile(ratios[t], 0.5);
    const double middle = quantile(factors, 0.5);
    for (double& factor : factors) factor /= middle;
  }
  std::vector<std::vector<double>> samples(turns.size());
  for (std::size_t e = 0; e < turns.size(); ++e)
    for (std::size_t t = 0; t < turns[e].size(); ++t)
      for (const double seconds : turns[e][t]) samples[e].push_back(seconds / factors[t]);
  return samples;
}

}  // namespace attune::tuner
