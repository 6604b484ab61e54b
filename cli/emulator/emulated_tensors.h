// Q, K, V, O and LSE of one problem in the CPU device's memory, with what a kernel must make of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/host_attention.h"
#include "runtime/tensor_map.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/gate_cases.h"

namespace attune::cli {

class EmulatedTensors {
 public:
  struct Options {
    tuner::Scores scores = {};
    unsigned seed = 7;
    std::array<Strides, runtime::kForwardOperands> strides = {};  ///< of Q, K, V, O; zeros: the problem's layout
    bool lse = true;                                              ///< false: the kernel gets a null pointer
    runtime::RowSample rows = {};                                 ///< that are compared
  };
  /// Inputs are written where the tensors have elements; the gaps that strides leave stay unwritten.
  EmulatedTensors(runtime::CpuDevice& device, const Problem& problem, const Options& options);

  ForwardArgs args() const;
  /// O and LSE hold NaN and count as unwritten.
  void reset();

  tuner::Bounds bounds() const;
  /// The difference between O and LSE as they are and the exact result.
  tuner::Accuracy accuracy() const;
  /// What was changed besides O and LSE: gaps of O, the tile counter.
  std::optional<std::string> damage() const;

 private:
  std::uint16_t* elements(runtime::Operand operand) const {
    return static_cast<std::uint16_t*>(memory_[static_cast<std::size_t>(operand)].data());
  }
  const Strides& strides(runtime::Operand operand) const { return strides_[static_cast<std::size_t>(operand)]; }
  template <typename Visit>
  void for_each_row(runtime::Operand operand, const Visit& visit) const;
  void fill(runtime::Operand operand, double amplitude, std::optional<float> leading);
  void plant_outliers(double score);
  float lse_at(std::int64_t pair, std::int64_t row) const;

  runtime::CpuDevice* device_;
  Problem problem_;
  Options options_;
  std::array<Strides, runtime::kForwardOperands> strides_;
  std::array<runtime::DeviceBuffer, runtime::kForwardOperands> memory_;
  runtime::DeviceBuffer lse_, counter_;
  runtime::HostAttention exact_;
};

}  // namespace attune::cli
