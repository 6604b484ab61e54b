// The numerics gate: a kernel that is wrong anywhere on its small problems is never timed.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "codegen/kernel_spec.h"
#include "tuner/measure/gate_cases.h"
#include "tuner/measure/measured_case.h"
#include "tuner/measure/workbench.h"

namespace attune::tuner {

/// Whether a kernel is right, and how exact it is.
struct Judgement {
  std::optional<std::string> wrong;  ///< what is wrong and where ("sd 30, 317x384: relative L2 error of O: ...")
  Accuracy accuracy;                 ///< the worst of each over all cases up to the first wrong one
  double share_of_bounds = 0;        ///< largest, over all cases
  std::string worst_case;            ///< where that was
  int cases = 0;
};

/// Counts a case, and keeps what is worse.
void add(Judgement& judgement, const CaseResult& result, const std::string& where);

class Gate {
 public:
  explicit Gate(Workbench& bench) : bench_(bench) {}

  /// Runs the kernel on every shape of gate_shapes(). The references for the spec's dims must be in the workbench.
  /// Throws what launching throws: a device that has lost its context stays lost.
  Judgement judge(const codegen::KernelSpec& spec, const std::string& cubin);

 private:
  MeasuredCase& prepare(const Problem& problem, const Scores& scores);
  std::optional<std::string> run(const Plan& plan, MeasuredCase& c, Judgement& judgement, const std::string& where);

  Workbench& bench_;
  std::map<std::string, std::unique_ptr<MeasuredCase>> cases_;  // kernels share many
  std::uint64_t bytes_ = 0;
};

}  // namespace attune::tuner
