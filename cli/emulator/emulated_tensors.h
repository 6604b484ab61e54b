// Q, K, V, O and LSE of one problem in the CPU device's memory, with what a forward kernel must make of them.
#pragma once

#include <optional>
#include <string>

#include "cli/emulator/emulated_case.h"
#include "cli/emulator/emulated_operands.h"
#include "runtime/cpu/host_attention.h"

namespace attune::cli {

class EmulatedTensors final : public EmulatedCase {
 public:
  struct Options {
    tuner::Scores scores = {};
    unsigned seed = 7;
    EmulatedOperands::AllStrides strides = {};  ///< zeros: the problem's layout
    bool lse = true;                            ///< false: the kernel gets a null pointer
    runtime::RowSample rows = {};               ///< that are compared
  };
  EmulatedTensors(runtime::CpuDevice& device, const Problem& problem, const Options& options);

  ForwardArgs args() const;
  tuner::Bounds bounds() const;
  /// The difference between O and LSE as they are and the exact result.
  tuner::Accuracy accuracy() const;

  void reset() override;
  void launch(const Plan& plan) const override { plan.launch(args()); }
  tuner::CaseResult result() const override { return tuner::judge(accuracy(), bounds()); }
  /// Gaps of O, the tile counter.
  std::optional<std::string> damage() const override;

 private:
  float lse_at(std::int64_t pair, std::int64_t row) const;

  runtime::CpuDevice* device_;
  Problem problem_;
  Options options_;
  EmulatedOperands operands_;
  runtime::DeviceBuffer lse_, counter_;
  runtime::HostAttention exact_;
};

}  // namespace attune::cli
