#include "cli/bench_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/error.h"

namespace attune::cli {
namespace {

constexpr std::size_t kScratch = 256u << 20;
// Below this the host needs as long to queue a launch as the device to run it, so other work goes in front.
constexpr double kShortLaunch = 400e-6;
constexpr auto kRest = std::chrono::milliseconds(30);
constexpr double kChunkSeconds = 0.05;  // queued at once in a sustained turn: a stop need not wait long

double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void summarise(BenchTiming& timing) {
  std::vector<double> sorted = timing.samples;
  std::ranges::sort(sorted);
  timing.median = quantile(sorted, 0.5);
  timing.quartile_low = quantile(sorted, 0.25);
  timing.quartile_high = quantile(sorted, 0.75);
}

}  // namespace

Bench::Bench(std::shared_ptr<runtime::Device> device, const Problem& problem, const runtime::Nvml* nvml,
             const Planner& planner)
    : device_(std::move(device)),
      nvml_(nvml),
      stream_(device_->create_stream()),
      tensors_(make_bench_tensors(*device_, problem, stream_, planner)),
      scratch_(*device_, kScratch) {}

Bench::~Bench() { device_->destroy_stream(stream_); }

void Bench::add(const std::string& label, Plan plan) {
  tensors_->make_room_for(plan);
  if (const std::vector<std::string> unwritten = tensors_->unwritten_by(plan); !unwritten.empty())
    fail(ErrorCode::wrong_result, "{}: the launch left part of {} unwritten", label, fmt::join(unwritten, ", "));
  const double rough = timed(plan, 2);
  contenders_.push_back({label, std::move(plan), rough});
}

// Seconds a launch, by two events around all of them.
double Bench::timed(const Plan& plan, int launches) {
  while (events_.size() < 2) events_.push_back(device_->create_event());
  events_[0]->record(stream_);
  for (int i = 0; i < launches; ++i) tensors_->launch(plan);
  events_[1]->record(stream_);
  events_[1]->synchronize();
  return events_[1]->milliseconds_since(*events_[0]) * 1e-3 / launches;
}

void Bench::burst_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing) {
  const auto launches = static_cast<std::size_t>(options.launches);
  while (events_.size() < 2 * launches) events_.push_back(device_->create_event());
  if (contender.rough < kShortLaunch) {
    for (int i = 0; i < 4; ++i) device_->fill8(scratch_.data(), 0, scratch_.size(), stream_);
  }
  tensors_->launch(contender.plan);
  for (std::size_t i = 0; i < launches; ++i) {
    events_[2 * i]->record(stream_);
    tensors_->launch(contender.plan);
    events_[2 * i + 1]->record(stream_);
  }
  device_->synchronize(stream_);
  note_conditions(timing);
  for (std::size_t i = 0; i < launches; ++i)
    timing.samples.push_back(events_[2 * i + 1]->milliseconds_since(*events_[2 * i]) * 1e-3);
  std::this_thread::sleep_for(kRest);
}

void Bench::sustained_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing) {
  const double each = std::max(contender.rough, 5e-6);
  const int chunk = std::max(1, static_cast<int>(kChunkSeconds / each));
  const int chunks = std::max(1, static_cast<int>(std::lround(options.seconds / (each * chunk))));
  for (int i = 0; i < (chunks + 1) / 2; ++i) timed(contender.plan, chunk);
  double total = 0;
  for (int i = 0; i < chunks; ++i) total += timed(contender.plan, chunk);
  note_conditions(timing);
  timing.samples.push_back(total / chunks);
}

void Bench::note_conditions(BenchTiming& timing) {
  if (nvml_ == nullptr) return;
  const runtime::NvmlReading reading = nvml_->read();
  timing.sm_mhz = reading.sm_mhz;
  timing.watts = reading.watts;
  timing.throttle |= reading.throttle.value_or(0);
}

double Bench::host_seconds(const Contender& contender) {
  using Clock = std::chrono::steady_clock;
  // Few enough that the driver's queue never makes the host wait.
  const int launches = std::clamp(static_cast<int>(0.05 / std::max(contender.rough, 1e-6)), 16, 256);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < launches; ++i) tensors_->launch(contender.plan);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  device_->synchronize(stream_);
  return seconds / launches;
}

std::vector<BenchResult> Bench::run(const BenchOptions& options, const std::stop_token& stop,
                                    const std::function<void(const std::string&)>& progress) {
  std::vector<BenchResult> results;
  for (const Contender& c : contenders_) results.push_back({c.label, c.plan.info(), {}, {}, host_seconds(c)});
  const auto race = [&](const char* regime, std::optional<BenchTiming> BenchResult::* member, auto turn) {
    for (BenchResult& result : results) (result.*member).emplace();
    for (int i = 0; i < options.turns; ++i) {
      for (std::size_t c = 0; c < contenders_.size(); ++c) {
        if (stop.stop_requested()) fail(ErrorCode::interrupted, "interrupted");
        progress(fmt::format("{}  turn {}/{}  {}/{}", regime, i + 1, options.turns, c + 1, contenders_.size()));
        turn(contenders_[c], *(results[c].*member));
      }
    }
    for (BenchResult& result : results) summarise(*(result.*member));
  };
  if (options.burst) {
    race("burst", &BenchResult::burst,
         [&](const Contender& c, BenchTiming& timing) { burst_turn(c, options, timing); });
  }
  if (options.sustained) {
    race("sustained", &BenchResult::sustained,
         [&](const Contender& c, BenchTiming& timing) { sustained_turn(c, options, timing); });
  }
  return results;
}

}  // namespace attune::cli
