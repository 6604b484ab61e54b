// A backward launch's tensors and their exact gradients.
#pragma once

#include <array>
#include <vector>

#include "runtime/tensor_map.h"
#include "tuner/measure/gradient_accuracy.h"
#include "tuner/measure/measured_case.h"

namespace attune::tuner {

class BackwardCase final : public MeasuredCase {
 public:
  BackwardCase(Workbench& bench, const Problem& problem, const Scores& scores, std::uint64_t seed, Compared compared);

  static std::uint64_t bytes_of(const Problem& problem);

  void poison() override;
  void launch(const Plan& plan) override;
  CaseResult compare() override;
  std::uint64_t unwritten() override;
  std::optional<std::string> damage() override;
  std::uint64_t bytes() const override;

 private:
  /// Rows of one gradient that are compared, and what they must be, on the device.
  struct Exact {
    Exact(runtime::Device& device, const Problem& problem, runtime::Operand operand, const runtime::RowSample& sample);

    runtime::Operand operand;
    runtime::RowSample sample;
    std::int64_t rows = 0, pairs = 0;  ///< of each head; batch * heads
    int columns = 0;
    runtime::DeviceBuffer exact, kernels, result;

    std::uint64_t bytes() const { return exact.size() + kernels.size() + result.size(); }
  };

  void* data(runtime::Operand operand) const { return tensors_[static_cast<std::size_t>(operand)].data(); }
  BackwardArgs args() const;
  void fill(const Scores& scores, std::uint64_t seed);
  void attend();
  void imitate_attention(std::uint64_t seed);
  void fill_d_lse();
  void add_exact(const runtime::GradientSample& sample, runtime::GradientStatistics statistics);
  void compare(const Exact& exact);
  GradientSums sums_of(const Exact& exact) const;
  /// Adds up poisoned halves of the gradients, or of the guards behind them.
  std::uint64_t poisoned(bool guards);

  Workbench* bench_;
  Problem problem_;
  GradientBounds bounds_;
  std::array<runtime::DeviceBuffer, runtime::kOperands> tensors_;
  runtime::DeviceBuffer lse_, d_lse_, found_;
  std::vector<std::array<Exact, 3>> exact_;  // dQ, dK and dV of each sample
};

}  // namespace attune::tuner
