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
  /// Rows of one sample, and what their gradients must be, but for what a kernel wrote.
  struct Exact {
    runtime::GradientSample sample;
    GradientCase gradients;
  };

  void* data(runtime::Operand operand) const { return tensors_[static_cast<std::size_t>(operand)].data(); }
  BackwardArgs args() const;
  void fill(const Scores& scores, std::uint64_t seed);
  void attend();
  void imitate_attention(std::uint64_t seed);
  void fill_d_lse();
  Exact exact_of(const runtime::GradientSample& sample, runtime::GradientStatistics statistics);
  /// Gradient rows of a sample as the kernel wrote them.
  std::vector<double> written_rows(runtime::Operand operand, const runtime::RowSample& sample) const;
  std::vector<double> exact_rows(const runtime::DeviceBuffer& values) const;
  /// Adds up poisoned halves of the gradients, or of the guards behind them.
  std::uint64_t poisoned(bool guards);

  Workbench* bench_;
  Problem problem_;
  GradientBounds bounds_;
  std::array<runtime::DeviceBuffer, runtime::kOperands> tensors_;
  runtime::DeviceBuffer lse_, d_lse_, found_;
  std::vector<Exact> exact_;
};

}  // namespace attune::tuner
