#include "tuner/measure/shape_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "runtime/plan_state.h"

namespace attune::tuner {
namespace {

constexpr std::uint64_t kMostSets = 64;
constexpr double kShareOfMemory = 0.4;
// Below this, the host needs as long to queue a launch as the device to run it, so a delay goes in front.
constexpr double kShortLaunch = 400e-6;
constexpr double kDelay = 150e-6, kDelayPerLaunch = 15e-6;
// What is queued at once in a steady run: enough to keep the device busy, not so much that a stop takes long.
constexpr double kQueuedSeconds = 0.05;

}  // namespace

ShapeBench::ShapeBench(Workbench& bench, const Problem& problem)
    : bench_(bench), problem_(problem), clock_(bench.device(), sizeof(double)) {
  const std::uint64_t bytes = std::max<std::uint64_t>(case_bytes(problem), 1);
  const auto l2 = static_cast<std::uint64_t>(std::max<std::int64_t>(bench.device().properties().l2_bytes, 0));
  const auto room = static_cast<std::uint64_t>(kShareOfMemory * static_cast<double>(bench.device().free_memory()));
  const std::uint64_t sets =
      std::clamp<std::uint64_t>(1 + 3 * l2 / bytes, 1, std::clamp<std::uint64_t>(room / bytes, 1, kMostSets));
  for (std::uint64_t i = 0; i < sets; ++i) {
    const Compared compared = i == 0 ? Compared::sampled : Compared::none;
    sets_.push_back(make_case(bench, problem, scores_of(problem), 1000 + i, compared));
  }
  bench.wait();
}

void ShapeBench::load(int id, const codegen::KernelSpec& spec, const codegen::Config& config,
                      const std::string& cubin) {
  runtime::PlanSource source;
  source.config = config;
  source.spec = spec;
  source.shape = codegen::launch_shape(spec);
  source.cubin = cubin;
  Plan plan = runtime::make_plan(bench_.plans(), problem_, std::move(source));
  // Now, as a launch must not wait for it.
  if (problem_.op == Op::backward) bench_.workspace(plan.workspace_bytes());
  entrants_.insert_or_assign(id, Entrant{std::move(plan)});
}

ShapeBench::Entrant& ShapeBench::entrant(int id) {
  const auto it = entrants_.find(id);
  if (it == entrants_.end()) fail(ErrorCode::not_found, "entrant: {} was not loaded", id);
  return it->second;
}

runtime::Event& ShapeBench::event(std::size_t index) {
  while (events_.size() <= index) events_.push_back(bench_.device().create_event());
  return *events_[index];
}

void ShapeBench::launch(const Plan& plan) {
  sets_[next_set_]->launch(plan);
  next_set_ = (next_set_ + 1) % sets_.size();
}

Judgement ShapeBench::check(int id) {
  Entrant& e = entrant(id);
  MeasuredCase& set = *sets_.front();
  bench_.reset_counter();
  set.poison();
  event(0).record(bench_.stream());
  set.launch(e.plan);
  event(1).record(bench_.stream());
  const CaseResult result = set.compare();
  bench_.wait();
  e.seconds = event(1).milliseconds_since(event(0)) * 1e-3;
  Judgement judgement;
  add(judgement, result, "full size");
  judgement.wrong = result.wrong;
  if (judgement.wrong) return judgement;
  if (const std::uint64_t bytes = set.unwritten(); bytes != 0)
    judgement.wrong = fmt::format("{} bytes of the results were not written", bytes);
  else
    judgement.wrong = set.damage();
  if (judgement.wrong) bench_.reset_counter();
  return judgement;
}

std::vector<double> ShapeBench::burst(Entrant& e, const RaceOptions& options, const std::function<void()>& meanwhile) {
  const runtime::Stream stream = bench_.stream();
  if (e.seconds < kShortLaunch)
    bench_.helpers().spin(kDelay + kDelayPerLaunch * (options.warm + options.launches), stream);
  for (int i = 0; i < options.warm; ++i) launch(e.plan);
  for (int i = 0; i < options.launches; ++i) {
    const auto pair = 2 * static_cast<std::size_t>(i);
    event(pair).record(stream);
    launch(e.plan);
    event(pair + 1).record(stream);
  }
  bench_.helpers().clock_probe(static_cast<double*>(clock_.data()), stream);
  meanwhile();
  bench_.wait();
  std::vector<double> seconds;
  for (int i = 0; i < options.launches; ++i) {
    const auto pair = 2 * static_cast<std::size_t>(i);
    seconds.push_back(event(pair + 1).milliseconds_since(event(pair)) * 1e-3);
  }
  return seconds;
}

std::vector<double> ShapeBench::steady_run(Entrant& e, const RaceOptions& options,
                                           const std::function<void()>& meanwhile) {
  const runtime::Stream stream = bench_.stream();
  const double each = std::max(e.seconds, 5e-6);
  const auto launches = std::max<std::int64_t>(std::llround(options.run_seconds / each), 2);
  const auto chunk = std::max<std::int64_t>(std::llround(kQueuedSeconds / each), 1);
  // Two chunks are under way at a time: the device never runs dry, and the host is never far ahead.
  std::int64_t queued = 0, marks = 0;
  const auto run = [&] {
    for (std::int64_t i = 0; i < launches; ++i) {
      launch(e.plan);
      if (++queued % chunk != 0) continue;
      runtime::Event& mark = event(2 + static_cast<std::size_t>(marks++ % 2));
      if (marks > 2) mark.synchronize();
      mark.record(stream);
    }
  };
  run();
  event(0).record(stream);
  run();
  event(1).record(stream);
  bench_.helpers().clock_probe(static_cast<double*>(clock_.data()), stream);
  meanwhile();
  bench_.wait();
  return {event(1).milliseconds_since(event(0)) * 1e-3 / static_cast<double>(launches)};
}

void ShapeBench::note_clock(RaceReadings& readings) {
  double ghz = 0;
  bench_.device().copy_to_host(&ghz, clock_.data(), sizeof ghz);
  readings.sm_mhz.push_back(1e3 * ghz);
}

void ShapeBench::note_nvml(RaceReadings& readings) const {
  if (bench_.nvml() == nullptr) return;
  const runtime::NvmlReading reading = bench_.nvml()->read();
  if (reading.watts) readings.watts = std::max(readings.watts.value_or(0), *reading.watts);
  if (reading.celsius) readings.celsius = std::max(readings.celsius.value_or(0), *reading.celsius);
  readings.throttle |= reading.throttle.value_or(0);
}

RaceReadings ShapeBench::race(const std::vector<int>& ids, const RaceOptions& options,
                              const std::function<void(int)>& begin,
                              const std::function<void(int, int, const std::vector<double>&)>& end) {
  RaceReadings readings;
  bench_.device().fill8(clock_.data(), 0, clock_.size(), bench_.stream());
  for (int turn = 0; turn < options.turns; ++turn) {
    for (const int id : ids) {
      Entrant& e = entrant(id);
      begin(id);
      bench_.reset_counter();
      // Once a turn, since reading takes a while.
      const auto meanwhile = [&] {
        if (id == ids.back()) note_nvml(readings);
      };
      const std::vector<double> seconds =
          options.run_seconds > 0 ? steady_run(e, options, meanwhile) : burst(e, options, meanwhile);
      e.seconds = *std::min_element(seconds.begin(), seconds.end());
      note_clock(readings);
      end(id, turn, seconds);
      if (options.rest_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options.rest_seconds));
    }
  }
  return readings;
}

}  // namespace attune::tuner
