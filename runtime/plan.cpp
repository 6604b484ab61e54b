#include <attune/plan.h>

#include "runtime/plan_state.h"

namespace attune {

const char* to_string(Origin origin) noexcept {
  switch (origin) {
    case Origin::pack: return "pack";
    case Origin::cache: return "cache";
    case Origin::tuned: return "tuned";
    case Origin::heuristic: return "heuristic";
    case Origin::override: return "override";
  }
  return "?";
}

Plan::Plan(std::shared_ptr<const runtime::PlanState> state) noexcept : state_(std::move(state)) {}

void Plan::launch(const ForwardArgs& args) const { state_->launch(args); }
void Plan::launch_backward(const BackwardArgs& args) const { state_->launch(args); }
std::size_t Plan::workspace_bytes() const noexcept { return state_->workspace_bytes(); }
const Problem& Plan::problem() const noexcept { return state_->problem(); }
const PlanInfo& Plan::info() const noexcept { return state_->info(); }

}  // namespace attune
