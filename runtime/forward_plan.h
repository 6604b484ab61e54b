// A forward plan: one kernel, which may count its tiles in a workspace.
#pragma once

#include "runtime/plan_maps.h"
#include "runtime/plan_state.h"
#include "runtime/speculation.h"

namespace attune::runtime {

/// Where a launch reports to: codegen::ForwardParams's members of these names.
struct Reporting {
  unsigned* failures = nullptr;
  LaunchReport* report = nullptr;
  std::uint32_t launch = 0;
};

class ForwardPlan final : public PlanState {
 public:
  ForwardPlan(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source);

  using PlanState::launch;
  void launch(const ForwardArgs& args) const override { launch(args, {}); }
  /// The same as one of the launches that tell the host how they fare.
  void launch(const ForwardArgs& args, const Reporting& reporting) const;
  std::size_t workspace_bytes() const override { return shape().counter ? WorkspacePool::kBytes : 0; }

 private:
  void update_maps(PlanMaps::Memo& memo, const ForwardArgs& args) const;
  void check_owners(const ForwardArgs& args) const;
  unsigned* counter(const ForwardArgs& args) const;

  Function function_;
  Strides default_o_strides_;
  WorkspacePool* workspaces_ = nullptr;
  codegen::ForwardParams params_;  // all but pointers, strides and scale
  LaunchConfig launch_;            // all but the stream
  std::optional<PlanMaps> maps_;   // nothing: there is nothing to compute
};

/// Two kernels for the same problem, of which each launch takes the one that the scores of those before it call for.
class AdaptiveForwardPlan final : public PlanState {
 public:
  /// Throws Error(out_of_memory), Error(driver).
  AdaptiveForwardPlan(std::shared_ptr<const ForwardPlan> speculative, std::shared_ptr<const ForwardPlan> exact);

  using PlanState::launch;
  void launch(const ForwardArgs& args) const override;
  std::size_t workspace_bytes() const override;

 private:
  std::shared_ptr<const ForwardPlan> speculative_, exact_;
  SharedObject<LaunchReport> report_;
  DeviceBuffer failures_;            // freed first: that waits for launches, which write to report_
  mutable Speculation speculation_;  // a launch changes nothing that a caller sees but which kernel computes
};

/// Failures of a launch of a speculative kernel beyond which an exact one is faster: a share of its warps' blocks of
/// keys, and those that no scores avoid.
double failure_limit(const Problem& problem, const codegen::LaunchShape& shape, codegen::Softmax softmax);

}  // namespace attune::runtime
