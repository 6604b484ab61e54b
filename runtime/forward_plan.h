// A forward plan: one kernel, which may count its tiles in a workspace.
#pragma once

#include "runtime/plan_maps.h"
#include "runtime/plan_state.h"

namespace attune::runtime {

class ForwardPlan final : public PlanState {
 public:
  ForwardPlan(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source);

  using PlanState::launch;
  void launch(const ForwardArgs& args) const override;
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

}  // namespace attune::runtime
