// One case of the numerics gate on the CPU device: what to launch, and what it must come to.
#pragma once

#include <optional>
#include <string>

#include <attune/plan.h>

#include "tuner/measure/accuracy.h"

namespace attune::cli {

class EmulatedCase {
 public:
  virtual ~EmulatedCase() = default;

  /// The outputs hold NaN and count as unwritten.
  virtual void reset() = 0;
  virtual void launch(const Plan& plan) const = 0;
  /// The outputs as they are against the exact ones.
  virtual tuner::CaseResult result() const = 0;
  /// What was changed besides the outputs, in words.
  virtual std::optional<std::string> damage() const = 0;
};

}  // namespace attune::cli
