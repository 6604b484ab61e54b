#include "runtime/speculation.h"

#include <algorithm>

namespace attune::runtime {
namespace {

// Written by the device.
LaunchReport read(const LaunchReport& report) {
  return std::atomic_ref<LaunchReport>(const_cast<LaunchReport&>(report)).load(std::memory_order_acquire);
}

// Numbers of launches wrap around.
bool is_behind(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

}  // namespace

Speculation::Choice Speculation::next() noexcept {
  const std::uint32_t launch = launches_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (busy_.test_and_set(std::memory_order_acquire)) return {launch, !exact_.load(std::memory_order_relaxed), false};
  const Choice choice = decide(launch);
  busy_.clear(std::memory_order_release);
  return choice;
}

Speculation::Choice Speculation::decide(std::uint32_t launch) noexcept {
  const auto [failures, started] = read(*report_);
  if (!exact_.load(std::memory_order_relaxed)) {
    if (!is_behind(started, known_.started)) return {launch, true, false};
    // What is told of the last launch already counts as a launch more.
    const std::uint32_t launches = started - known_.started;
    const bool bad = too_many(failures, launches + 1);
    if (bad || launches >= kWindow) known_ = {failures, started};
    if (bad) go_exact(launch, kShortStay);
    return {launch, !bad, false};
  }
  if (!trying_) {
    if (is_behind(next_trial_, launch)) return {launch, false, false};
    known_.failures = failures;
    return try_again(launch);
  }
  if (withdrawn_.exchange(false, std::memory_order_acquire)) return try_again(launch);
  if (!is_behind(started, trial_)) {
    // Launches that speculated before may still have been under way when it was chosen.
    if (is_behind(trial_, started)) known_.failures = failures;
    return {launch, false, false};
  }
  trying_ = false;
  if (too_many(failures, 1)) {
    go_exact(launch, std::min(2 * stay_, kLongStay));
    return {launch, false, false};
  }
  known_ = {failures, started};
  exact_.store(false, std::memory_order_relaxed);
  return {launch, true, false};
}

Speculation::Choice Speculation::try_again(std::uint32_t launch) {
  trying_ = true;
  trial_ = launch;
  return {launch, true, true};
}

bool Speculation::too_many(std::uint32_t all, std::uint32_t launches) const {
  // Two streams may tell in another order than they have read.
  return static_cast<std::int32_t>(all - known_.failures) > limit_ * launches;
}

void Speculation::go_exact(std::uint32_t launch, std::uint32_t stay) {
  exact_.store(true, std::memory_order_relaxed);
  stay_ = stay;
  next_trial_ = launch + stay;
}

}  // namespace attune::runtime
