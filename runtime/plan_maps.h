// The tensor maps that a plan's launches pass.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/device.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {

/// Maps for the default strides are encoded once; each thread keeps what it last launched, since strides seldom change
/// from launch to launch and addresses often do not either. Safe from any thread.
class PlanMaps {
 public:
  /// What one thread last launched. Belongs to that thread, until it launches another plan.
  struct Memo {
    std::uint64_t plan = 0;
    std::array<bool, kOperands> known{};  // base and strides are checked, and the map, if there is one, is theirs
    std::array<const void*, kOperands> base{};
    std::array<Strides, kOperands> strides;
    std::array<TensorMap, kOperands> map;

    TensorMap* of(Operand operand) { return &map[static_cast<std::size_t>(operand)]; }
  };

  /// `device` must outlive the maps. Layouts beyond TMA's limits are an error only for who launches with them.
  PlanMaps(Device& device, const Problem& problem, const codegen::LaunchShape& shape,
           std::initializer_list<Operand> operands);

  Memo& of_this_thread() const;
  /// Makes the map of `operand` one of the tensor at `base`; all strides zero: the default ones. Throws
  /// Error(invalid_argument) that names the tensor, whose map is then encoded anew by the next call.
  void update(Memo& memo, Operand operand, const void* base, const Strides& strides) const;
  /// The same checks of a tensor that kernels take without a map.
  void check(Memo& memo, Operand operand, const void* base, const Strides& strides) const;

 private:
  Device& device_;
  Problem problem_;
  codegen::LaunchShape shape_;
  std::uint64_t id_;  // never reused, so that a thread's memo cannot meet another plan's
  std::array<std::optional<TensorMap>, kOperands> prebuilt_;  // default strides, another address
};

}  // namespace attune::runtime
