#include "runtime/tune_hook.h"

#include <mutex>

namespace attune::runtime {
namespace {

struct Registry {
  std::mutex mutex;
  std::shared_ptr<TuneHook> hook;
};

// Never destroyed: a background thread may still ask while the process ends.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void register_tune_hook(std::shared_ptr<TuneHook> hook) {
  const std::lock_guard lock(registry().mutex);
  registry().hook.swap(hook);
}

std::shared_ptr<TuneHook> tune_hook() {
  const std::lock_guard lock(registry().mutex);
  return registry().hook;
}

}  // namespace attune::runtime
