// A forward launch's tensors and their exact O and LSE.
#pragma once

#include <vector>

#include "tuner/measure/measured_case.h"

namespace attune::tuner {

class ForwardCase final : public MeasuredCase {
 public:
  ForwardCase(Workbench& bench, const Problem& problem, const Scores& scores, std::uint64_t seed, Compared compared);

  void poison() override { tensors_.poison(); }
  void launch(const Plan& plan) override { plan.launch(tensors_.args()); }
  CaseResult compare() override;
  std::uint64_t unwritten() override { return 2 * tensors_.unwritten(); }
  std::optional<std::string> damage() override;
  std::uint64_t bytes() const override;

 private:
  Workbench* bench_;
  Tensors tensors_;
  std::vector<ExactRows> exact_;
  Bounds bounds_;
};

}  // namespace attune::tuner
