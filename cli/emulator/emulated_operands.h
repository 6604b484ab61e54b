// The tensors of one problem in the CPU device's memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/cpu/cpu_device.h"
#include "runtime/tensor_map.h"
#include "tuner/measure/gate_cases.h"

namespace attune::cli {

class EmulatedOperands {
 public:
  using AllStrides = std::array<Strides, runtime::kOperands>;

  /// Elements start unwritten. Zero strides: the problem's layout, dense.
  EmulatedOperands(runtime::CpuDevice& device, const Problem& problem, std::initializer_list<runtime::Operand> operands,
                   const AllStrides& strides);

  std::uint16_t* elements(runtime::Operand operand) const;
  const Strides& strides(runtime::Operand operand) const { return strides_[static_cast<std::size_t>(operand)]; }

  /// Q, K and V of a gate case. Numbers are written where the tensors have elements; the gaps that strides leave stay
  /// unwritten.
  void fill_inputs(const tuner::Scores& scores, unsigned seed);
  /// Normal numbers, the first column of every row replaced by `leading`.
  void fill(runtime::Operand operand, double amplitude, std::optional<float> leading, unsigned seed);
  /// Row after row, rounded to the problem's dtype: [batch, heads, rows, columns].
  void write(runtime::Operand operand, const std::vector<double>& values);
  std::vector<double> read(runtime::Operand operand) const;
  /// The whole memory holds NaN and counts as unwritten.
  void poison(runtime::Operand operand);
  /// Whether the gaps of a poisoned operand are as they were.
  bool gaps_intact(runtime::Operand operand) const;

 private:
  template <typename Visit>
  void for_each_row(runtime::Operand operand, const Visit& visit) const;

  runtime::CpuDevice* device_;
  Problem problem_;
  AllStrides strides_;
  std::array<runtime::DeviceBuffer, runtime::kOperands> memory_;
};

}  // namespace attune::cli
