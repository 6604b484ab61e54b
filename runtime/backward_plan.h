// A backward plan: the main kernel with those before and after it, and the workspace that they share.
#pragma once

#include <vector>

#include "codegen/backward/params.h"
#include "runtime/plan_maps.h"
#include "runtime/plan_state.h"

namespace attune::runtime {

class BackwardPlan final : public PlanState {
 public:
  BackwardPlan(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source);

  using PlanState::launch;
  void launch(const BackwardArgs& args) const override;
  std::size_t workspace_bytes() const override { return workspace_.bytes; }

 private:
  struct Kernel {
    Function function;
    LaunchConfig config;  // all but the stream
  };

  std::vector<Kernel> kernels_of(const std::vector<codegen::SideLaunch>& sides, std::int64_t blocks);
  void update_maps(PlanMaps::Memo& memo, const BackwardArgs& args) const;
  void check_pointers(const BackwardArgs& args) const;
  void check_owners(const BackwardArgs& args) const;
  codegen::BackwardParams params_of(const BackwardArgs& args, float scale) const;
  void launch_sides(const std::vector<Kernel>& kernels, codegen::BackwardParams& params, Stream stream) const;

  bool has_queries_ = false, has_keys_ = false;  // rows of Q, of K, in any sequence
  bool stores_dq_ = false;                       // the main kernel takes a map of dQ
  std::vector<Kernel> before_, after_;           // none without queries
  Kernel main_;
  codegen::BackwardGrid grid_;
  codegen::BackwardWorkspace workspace_;
  codegen::BackwardParams params_;  // all but pointers, strides and scale
  Strides default_o_strides_, default_q_strides_, default_k_strides_, default_v_strides_;
  std::optional<PlanMaps> maps_;  // nothing: there is nothing to compute
};

}  // namespace attune::runtime
