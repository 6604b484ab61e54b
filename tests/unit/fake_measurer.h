// A device of invented timings, for tests of the tuner that need no worker.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/fake_device.h"
#include "tuner/measurer.h"

namespace attune::tests {

/// What all measurers of a test share.
struct FakeGpu {
  runtime::DeviceProperties properties = FakeDevice().fake;
  runtime::NvmlLimits limits{.power_cap_watts = 700,
                             .power_cap_default_watts = {},
                             .max_sm_mhz = {},
                             .mig = {},
                             .ecc_uncorrected = {},
                             .driver = "580.1"};
  /// Seconds of a launch.
  std::function<double(const Problem&, const codegen::Config&)> seconds = [](const Problem&, const codegen::Config& c) {
    return 1e-3 * (1 + 0.001 * c.block_n);
  };
  /// How a check ends, by the config's text; ok if empty.
  std::function<cache::TrialStatus(const codegen::Config&)> gate, check, race;
  std::function<void(const std::string& what)> on_call;  ///< "gate", "check", "race"
  double noise = 1e-4;
  std::set<std::string> failing_devices;  ///< these have a hardware fault

  std::mutex mutex;
  int gates = 0, checks = 0, races = 0, opened = 0;
  std::vector<std::string> raced;  ///< configs, one entry for each race that they took part in
  std::vector<tuner::RaceOptions> options;
};

class FakeMeasurer : public tuner::Measurer {
 public:
  FakeMeasurer(FakeGpu& gpu, std::string name, std::stop_token stop)
      : gpu_(gpu), name_(std::move(name)), stop_(std::move(stop)) {
    info_ = {gpu.properties, gpu.limits};
    ++gpu.opened;
  }

  const tuner::DeviceInfo& device() override { return info_; }
  void set_helpers(std::shared_ptr<const std::string> cubin) override { helpers_ = std::move(cubin); }
  void set_reference(const std::string& spec, std::shared_ptr<const std::string>) override { references_.insert(spec); }

  tuner::Verdict gate(const tuner::Entrant& e) override {
    call("gate", gpu_.gates);
    return verdict(gpu_.gate, e);
  }
  tuner::Verdict check(const Problem&, const tuner::Entrant& e) override {
    call("check", gpu_.checks);
    return verdict(gpu_.check, e);
  }
  tuner::RaceReadings race(const Problem& problem, std::span<const tuner::Entrant> entrants,
                           const tuner::RaceOptions& options,
                           const std::function<void(const tuner::Entrant&, const tuner::RaceResult&)>& done) override {
    call("race", gpu_.races);
    tuner::RaceReadings readings;
    {
      const std::lock_guard lock(gpu_.mutex);
      gpu_.options.push_back(options);
    }
    for (const tuner::Entrant& e : entrants) {
      if (stop_.stop_requested()) fail(ErrorCode::interrupted, "tune: stopped");
      tuner::RaceResult result;
      result.status = gpu_.race ? gpu_.race(e.config) : cache::TrialStatus::ok;
      if (result.status == cache::TrialStatus::ok) {
        for (int turn = 0; turn < options.turns; ++turn) {
          result.turns.emplace_back();
          for (int i = 0; i < options.launches; ++i) {
            const double sign = (turn * options.launches + i) % 2 == 0 ? 1 : -1;
            result.turns.back().push_back(gpu_.seconds(problem, e.config) * (1 + sign * gpu_.noise * (1 + 0.1 * i)));
          }
        }
      } else {
        result.reason = "invented";
      }
      readings.sm_mhz.push_back(1755);
      {
        const std::lock_guard lock(gpu_.mutex);
        gpu_.raced.push_back(codegen::to_string(e.config));
      }
      done(e, result);
    }
    readings.watts = 650;
    readings.throttle = 4;
    return readings;
  }

 private:
  void call(const char* what, int& counter) {
    if (gpu_.on_call) gpu_.on_call(what);
    if (stop_.stop_requested()) fail(ErrorCode::interrupted, "tune: stopped");
    if (gpu_.failing_devices.contains(name_)) throw tuner::HardwareFailure("device " + name_ + ": ECC");
    const std::lock_guard lock(gpu_.mutex);
    ++counter;
  }
  static tuner::Verdict verdict(const std::function<cache::TrialStatus(const codegen::Config&)>& rule,
                                const tuner::Entrant& e) {
    tuner::Verdict v;
    v.judgement.cases = 1;
    v.judgement.accuracy.op = codegen::op_of(e.config.family);
    v.judgement.accuracy.o_rel_l2 = v.judgement.accuracy.dq_rel_l2 = 2e-3;
    if (rule) v.status = rule(e.config);
    if (v.status != cache::TrialStatus::ok) v.reason = "invented";
    return v;
  }

  FakeGpu& gpu_;
  std::string name_;
  std::stop_token stop_;
  tuner::DeviceInfo info_;
  std::shared_ptr<const std::string> helpers_;
  std::set<std::string> references_;
};

}  // namespace attune::tests
