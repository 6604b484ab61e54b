// MissPolicy::tune and ::background: the tuner as runtime's TuneHook.
#include "base/error.h"
#include "runtime/tune_hook.h"
#include "tuner/tuner.h"

namespace attune::tuner {
namespace {

class Hook : public runtime::TuneHook {
 public:
  void tune(const runtime::TuneRequest& request, std::stop_token stop) override {
    const runtime::DeviceProperties& device = request.device->properties();
    Request own{.store = request.store, .problems = {request.problem}};
    if (const std::optional<Problem> twin = peaked_twin(request.problem)) own.problems.push_back(*twin);
    // The worker counts devices by itself; the UUID holds whatever this process has set since it started.
    own.devices = {device.uuid.empty() ? std::to_string(device.ordinal) : device.uuid};
    own.seconds = request.seconds;
    const Report report = attune::tuner::tune(own, {.stop = std::move(stop)});
    if (report.interrupted) fail(ErrorCode::interrupted, "tune: stopped");
    if (report.identity != runtime::identity_text(device)) {
      fail(ErrorCode::internal, "tune: the worker measured on '{}', not on '{}'", report.identity,
           runtime::identity_text(device));
    }
    const ProblemReport& problem = report.problems.at(0);
    if (!problem.winner) fail(ErrorCode::unsupported, "tune: {} ({})", problem.message, to_string(request.problem));
  }
};

// In the shared library every object is linked, so this runs when it is loaded; in a static archive only where
// install_tune_hook() pulls the object in.
[[maybe_unused]] const bool g_installed = (install_tune_hook(), true);

}  // namespace

void install_tune_hook() { runtime::register_tune_hook(std::make_shared<Hook>()); }

}  // namespace attune::tuner
