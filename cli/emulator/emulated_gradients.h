// Everything that a backward kernel reads and writes for one problem, in the CPU device's memory, with what it must
// make of it.
#pragma once

#include <optional>
#include <string>

#include "cli/emulator/emulated_case.h"
#include "cli/emulator/emulated_operands.h"
#include "tuner/measure/gradient_accuracy.h"

namespace attune::cli {

class EmulatedGradients final : public EmulatedCase {
 public:
  struct Options {
    tuner::Scores scores = {};
    unsigned seed = 7;
    EmulatedOperands::AllStrides strides = {};  ///< zeros: the problem's layout
    bool d_lse = true;                          ///< false: the kernel gets a null pointer
    std::size_t workspace_bytes = 0;            ///< of the plan to come
  };
  EmulatedGradients(runtime::CpuDevice& device, const Problem& problem, const Options& options);

  BackwardArgs args() const;
  /// dQ, dK and dV as they are.
  tuner::GradientCase gradients() const;

  void reset() override;
  void launch(const Plan& plan) const override { plan.launch(args()); }
  tuner::CaseResult result() const override;
  /// Gaps of the gradients, memory behind the workspace.
  std::optional<std::string> damage() const override;

 private:
  void fill_statistics();

  runtime::CpuDevice* device_;
  Problem problem_;
  Options options_;
  EmulatedOperands operands_;
  runtime::DeviceBuffer lse_, d_lse_, workspace_;
  tuner::GradientCase expected_;  // without what a kernel wrote
};

}  // namespace attune::cli
