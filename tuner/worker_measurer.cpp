#include "tuner/worker_measurer.h"

#include <algorithm>

#include "base/error.h"
#include "tuner/measure/session.h"

namespace attune::tuner {
namespace {

constexpr int kMostLosses = 3;
constexpr double kSendSeconds = 30;

int id_of(const Json& message, const char* key) {
  const auto it = message.find(key);
  return it != message.end() && it->is_number_integer() ? it->get<int>() : -1;
}

// All that was seen, over the parts of a race that a fault has cut up.
void merge(RaceReadings& all, const RaceReadings& part) {
  all.sm_mhz.insert(all.sm_mhz.end(), part.sm_mhz.begin(), part.sm_mhz.end());
  if (part.watts) all.watts = std::max(all.watts.value_or(0), *part.watts);
  if (part.celsius) all.celsius = std::max(all.celsius.value_or(0), *part.celsius);
  all.throttle |= part.throttle;
}

}  // namespace

// -- the conversation ---------------------------------------------------------------------------------------------

void WorkerMeasurer::forget_worker() {
  worker_.reset();
  has_code_.clear();
  has_reference_.clear();
  has_tools_ = false;
  has_problem_.clear();
  has_loaded_.clear();
}

void WorkerMeasurer::lose(WorkerProcess::Status status, double silence, int culprit) {
  switch (status) {
    case WorkerProcess::Status::stopped: forget_worker(); throw Error(ErrorCode::interrupted, "tune: stopped");
    case WorkerProcess::Status::timeout: {
      forget_worker();
      throw Loss{cache::TrialStatus::timeout, fmt::format("silent for {:.3g} s, killed", silence), culprit};
    }
    case WorkerProcess::Status::garbage: lose_to("the worker sent a line without an end", culprit);
    case WorkerProcess::Status::closed:
    case WorkerProcess::Status::ok: break;
  }
  const std::string end = worker_->obituary();
  lose_to("the worker ended: " + end, culprit);
}

void WorkerMeasurer::lose_to(const std::string& reason, int culprit) {
  forget_worker();
  throw Loss{cache::TrialStatus::crashed, reason, culprit};
}

Json WorkerMeasurer::ask(const Json& command, double silence, const std::function<void(const Json&)>& on_event) {
  int culprit = -1;
  if (const auto status = worker_->send(to_line(command), kSendSeconds, options_.stop);
      status != WorkerProcess::Status::ok)
    lose(status, kSendSeconds, culprit);
  for (;;) {
    std::string line;
    if (const auto status = worker_->receive(&line, silence, options_.stop); status != WorkerProcess::Status::ok)
      lose(status, silence, culprit);
    Json message;
    try {
      message = parse_line(line);
    } catch (const Error& error) {
      lose_to(fmt::format("the worker sent what is no message: {}", error.what()), culprit);
    }
    if (const auto done = message.find("done"); done != message.end()) return *done;
    if (const auto refusal = message.find("error"); refusal != message.end() && refusal->is_object()) {
      const Error error = error_from_json(*refusal);
      // Whoever was running is to blame; a fresh worker is cheaper than the doubt about this one.
      if (culprit >= 0 && error.code() == ErrorCode::driver) lose_to(error.what(), culprit);
      throw error;
    }
    if (const auto fatal = message.find("fatal"); fatal != message.end() && fatal->is_object()) {
      const std::string why = fatal->value("message", "");
      if (fatal->value("kind", "") == "hardware") {
        forget_worker();
        throw HardwareFailure(fmt::format("device {}: {}", options_.device, why));
      }
      lose_to(why, culprit);
    }
    if (const int begun = id_of(message, "begin"); begun >= 0) culprit = begun;
    if (id_of(message, "samples") >= 0) culprit = -1;
    try {
      if (on_event) on_event(message);
    } catch (const Json::exception& error) {
      lose_to(fmt::format("the worker sent a malformed message: {}", error.what()), culprit);
    }
  }
}

void WorkerMeasurer::count_loss(const Loss& loss) {
  if (options_.warn) options_.warn(fmt::format("device {}: a worker was lost: {}", options_.device, loss.reason));
  if (++losses_ >= kMostLosses) {
    fail(ErrorCode::internal, "worker: lost {} times in a row with no kernel to blame, last: {}", losses_, loss.reason);
  }
}

// -- what the worker must have ------------------------------------------------------------------------------------

void WorkerMeasurer::start() {
  if (worker_) return;
  worker_ = std::make_unique<WorkerProcess>(options_.path, std::vector<std::string>{"--device", options_.device});
  Json hello;
  try {
    hello = ask({{"cmd", "hello"}}, options_.start_seconds);
  } catch (const Error&) {
    forget_worker();
    throw;
  }
  try {
    const std::string version = hello.at("version").get<std::string>(),
                      emitter = hello.at("emitter").get<std::string>();
    if (version != ATTUNE_VERSION || emitter != codegen::emitter_digest()) {
      forget_worker();
      fail(ErrorCode::internal, "worker: {} is of another build of attune (version {}, emitter {}; expected {}, {})",
           options_.path, version, emitter.substr(0, 12), ATTUNE_VERSION, codegen::emitter_digest().substr(0, 12));
    }
    device_ = DeviceInfo{device_from_json(hello.at("device")), limits_from_json(hello.at("limits"))};
  } catch (const Json::exception& error) {
    lose_to(fmt::format("the worker's greeting is malformed: {}", error.what()), -1);
  }
}

void WorkerMeasurer::ensure_code(const std::string& key, const std::string& cubin) {
  if (has_code_.contains(key)) return;
  ask({{"cmd", "code"}, {"key", key}, {"data", to_base64(cubin)}}, options_.start_seconds);
  has_code_.insert(key);
}

void WorkerMeasurer::ensure_tools() {
  start();
  if (has_tools_) return;
  if (!helpers_) fail(ErrorCode::internal, "measurer: the helper kernels were not set");
  ensure_code("helpers", *helpers_);
  ask({{"cmd", "tools"}, {"helpers", "helpers"}}, options_.start_seconds);
  has_tools_ = true;
}

void WorkerMeasurer::ensure_reference(const Problem& problem) {
  ensure_tools();
  for (const std::string& spec : reference_specs(runtime::arch_of(device_->properties), problem)) {
    if (has_reference_.contains(spec)) continue;
    const auto cubin = references_.find(spec);
    if (cubin == references_.end()) fail(ErrorCode::internal, "measurer: no reference kernel was set for {}", spec);
    ensure_code("reference " + spec, *cubin->second);
    ask({{"cmd", "reference"}, {"spec", spec}, {"key", "reference " + spec}}, options_.start_seconds);
    has_reference_.insert(spec);
  }
}

void WorkerMeasurer::ensure_problem(const Problem& problem) {
  ensure_reference(problem);
  const std::string text = to_string(problem);
  if (has_problem_ == text) return;
  has_problem_.clear();
  has_loaded_.clear();
  ask({{"cmd", "problem"}, {"problem", text}}, options_.start_seconds);
  has_problem_ = text;
}

void WorkerMeasurer::ensure_loaded(const Problem& problem, const Entrant& entrant) {
  ensure_problem(problem);
  if (has_loaded_.contains(entrant.id)) return;
  ensure_code(entrant.build_key, *entrant.cubin);
  ask({{"cmd", "load"},
       {"id", entrant.id},
       {"spec", codegen::to_string(entrant.spec)},
       {"config", codegen::to_string(entrant.config)},
       {"key", entrant.build_key}},
      options_.start_seconds);
  has_loaded_.insert(entrant.id);
}

// -- the interface ------------------------------------------------------------------------------------------------

const DeviceInfo& WorkerMeasurer::device() {
  while (!device_) {
    try {
      start();
    } catch (const Loss& loss) {
      count_loss(loss);
    }
  }
  return *device_;
}

void WorkerMeasurer::set_helpers(std::shared_ptr<const std::string> cubin) { helpers_ = std::move(cubin); }

void WorkerMeasurer::set_reference(const std::string& spec, std::shared_ptr<const std::string> cubin) {
  references_[spec] = std::move(cubin);
}

Verdict WorkerMeasurer::judge(const Entrant& entrant, const std::function<Json()>& attempt) {
  for (;;) {
    try {
      Verdict verdict;
      verdict.judgement = judgement_from_json(attempt());
      losses_ = 0;
      if (verdict.judgement.wrong) {
        verdict.status = cache::TrialStatus::wrong;
        verdict.reason = *verdict.judgement.wrong;
      }
      return verdict;
    } catch (const Loss& loss) {
      if (loss.culprit == entrant.id) {
        losses_ = 0;
        if (options_.warn) options_.warn(fmt::format("{}: {}", loss.reason, codegen::to_string(entrant.config)));
        return {loss.status, loss.reason, {}};
      }
      count_loss(loss);
    } catch (const Json::exception& error) {
      forget_worker();
      count_loss({cache::TrialStatus::crashed, fmt::format("a malformed judgement: {}", error.what()), -1});
    } catch (const HardwareFailure&) {
      throw;
    } catch (const Error& error) {
      // The driver or the plan refused this code, which is the candidate's affair; all else is not.
      if (error.code() != ErrorCode::driver && error.code() != ErrorCode::unsupported &&
          error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::not_found)
        throw;
      return {cache::TrialStatus::rejected, error.what(), {}};
    }
  }
}

Verdict WorkerMeasurer::gate(const Entrant& entrant) {
  return judge(entrant, [&] {
    ensure_reference(gate_shapes(entrant.spec).at(0).problem);
    ensure_code(entrant.build_key, *entrant.cubin);
    return ask(
        {{"cmd", "gate"}, {"id", entrant.id}, {"spec", codegen::to_string(entrant.spec)}, {"key", entrant.build_key}},
        options_.hang_seconds);
  });
}

Verdict WorkerMeasurer::check(const Problem& problem, const Entrant& entrant) {
  return judge(entrant, [&] {
    ensure_loaded(problem, entrant);
    return ask({{"cmd", "check"}, {"id", entrant.id}}, silence_for(entrant.expected_seconds));
  });
}

RaceReadings WorkerMeasurer::race(const Problem& problem, std::span<const Entrant> entrants, const RaceOptions& options,
                                  const std::function<void(const Entrant&, const RaceResult&)>& done) {
  std::map<int, RaceResult> results;
  std::map<int, const Entrant*> left;
  double slowest = 0;
  for (const Entrant& entrant : entrants) {
    left[entrant.id] = &entrant;
    slowest = std::max(slowest, entrant.expected_seconds);
  }
  const auto finish = [&](int id) {
    const auto it = left.find(id);
    if (it == left.end()) return;
    const Entrant& entrant = *it->second;
    left.erase(it);
    done(entrant, results[id]);
  };
  const auto finish_badly = [&](int id, cache::TrialStatus status, const std::string& reason) {
    if (const auto it = left.find(id); it != left.end() && options_.warn)
      options_.warn(fmt::format("{}: {}", reason, codegen::to_string(it->second->config)));
    results[id] = {status, reason, {}};
    finish(id);
  };

  RaceReadings readings;
  const double silence =
      silence_for((options.launches + options.warm) * slowest) + 4 * options.run_seconds + options.rest_seconds;
  std::size_t turns_done = 0;  // that all who are left have behind them
  while (!left.empty()) {
    try {
      for (const Entrant& entrant : entrants) {
        if (!left.contains(entrant.id)) continue;
        try {
          ensure_loaded(problem, entrant);
        } catch (const HardwareFailure&) {
          throw;
        } catch (const Error& error) {
          if (error.code() == ErrorCode::interrupted || error.code() == ErrorCode::internal) throw;
          finish_badly(entrant.id, cache::TrialStatus::rejected, error.what());
        }
      }
      if (left.empty()) break;
      RaceOptions rest = options;
      rest.turns = options.turns - static_cast<int>(turns_done);
      Json command = to_json(rest);
      command["cmd"] = "race";
      for (const Entrant& entrant : entrants)
        if (left.contains(entrant.id)) command["ids"].push_back(entrant.id);
      const Json end = ask(command, silence, [&](const Json& event) {
        const int id = id_of(event, "samples");
        if (id < 0 || !left.contains(id)) return;
        results[id].turns.push_back(event.at("seconds").get<std::vector<double>>());
        if (results[id].turns.size() == static_cast<std::size_t>(options.turns)) finish(id);
      });
      losses_ = 0;
      try {
        merge(readings, readings_from_json(end));
      } catch (const Json::exception&) {
        lose_to("the worker's readings are malformed", -1);
      }
      if (!left.empty()) lose_to("the worker left out samples", -1);
    } catch (const Loss& loss) {
      if (left.contains(loss.culprit)) {
        losses_ = 0;
        finish_badly(loss.culprit, loss.status, loss.reason);
      } else {
        count_loss(loss);
      }
      // All must have the same turns to be compared: a turn that was cut off counts for nobody who is still left.
      turns_done = static_cast<std::size_t>(options.turns);
      for (const auto& [id, entrant] : left) turns_done = std::min(turns_done, results[id].turns.size());
      for (const auto& [id, entrant] : left) results[id].turns.resize(turns_done);
    }
  }
  return readings;
}

}  // namespace attune::tuner
