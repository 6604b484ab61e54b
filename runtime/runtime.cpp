#include <attune/attune.h>

#include "base/error.h"
#include "runtime/driver_device.h"
#include "runtime/runtime_state.h"

namespace attune {

const char* to_string(MissPolicy policy) noexcept {
  switch (policy) {
    case MissPolicy::heuristic: return "heuristic";
    case MissPolicy::tune: return "tune";
    case MissPolicy::background: return "background";
    case MissPolicy::fail: return "fail";
  }
  return "?";
}

MissPolicy parse_miss_policy(std::string_view text) {
  for (const MissPolicy policy : {MissPolicy::heuristic, MissPolicy::tune, MissPolicy::background, MissPolicy::fail}) {
    if (text == to_string(policy)) return policy;
  }
  fail(ErrorCode::invalid_argument, "on_miss: '{}' is unknown (allowed: heuristic, tune, background, fail)", text);
}

Runtime::Runtime(RuntimeOptions options) {
  std::shared_ptr<runtime::Device> device = runtime::open_device(options.device);
  state_ = std::make_shared<runtime::RuntimeState>(std::move(options), std::move(device));
}

Runtime::Runtime(RuntimeOptions options, std::shared_ptr<runtime::Device> device) {
  if (!device) fail(ErrorCode::invalid_argument, "device: null");
  state_ = std::make_shared<runtime::RuntimeState>(std::move(options), std::move(device));
}

Runtime::~Runtime() = default;

Plan Runtime::plan(const Problem& problem, const PlanOptions& options) { return state_->plan(problem, options); }

std::string Runtime::device_identity() const { return state_->device_identity(); }

const char* version() noexcept { return ATTUNE_VERSION; }

}  // namespace attune
