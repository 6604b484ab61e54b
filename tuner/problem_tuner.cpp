#include "tuner/problem_tuner.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "codegen/default_table.h"

namespace attune::tuner {
namespace {

using cache::TrialStatus;

// After a change of driver or compiler, so many of the old session's best are raced again.
constexpr std::size_t kRacedAgain = 16;
constexpr double kFixedWeight = 0.5, kLaunches = 900;

int next_id() {
  static std::atomic<int> ids{0};
  return ids++;
}

}  // namespace

ProblemTuner::ProblemTuner(RunContext& run, const Problem& problem, bool leading)
    : run_(run),
      problem_(problem),
      leading_(leading),
      most_(run.request.max_candidates),
      least_raced_(run.request.min_raced),
      log_({run.request.store, problem, run.identity, run.environment}, run.session, run.request.force) {
  if (is_twin(run.request.problems, problem)) {
    most_ = std::max(1, most_ / kTwinShare);
    least_raced_ /= kTwinShare;
  }
  report_.problem = problem;
  report_.plan_key = log_.plan_key();
  look_up();
}

// -- selection ----------------------------------------------------------------------------------------------------

ProblemTuner::Candidate* ProblemTuner::find(const std::string& text) {
  const auto it = by_text_.find(text);
  return it == by_text_.end() ? nullptr : it->second;
}

ProblemTuner::Candidate* ProblemTuner::add(const codegen::Config& config, bool urgent) {
  std::string text = codegen::to_string(config);
  if (Candidate* const known = find(text)) return known;
  Candidate& c = candidates_.emplace_back();
  c.id = next_id();
  c.config = config;
  c.kernel = run_.pool.add(codegen::specialise(run_.arch, problem_, config), urgent);
  c.estimate = codegen::estimate(run_.arch, problem_, config).total;
  c.text = text;
  by_text_[std::move(text)] = &c;
  return &c;
}

void ProblemTuner::add_incumbents() {
  incumbent_ = log_.store().winner(log_.plan_key());
  if (incumbent_ && !incumbent_->session_finished) incumbent_.reset();  // it never won anything
  if (!incumbent_) return;
  std::vector<std::string> texts{incumbent_->config};
  for (const char* regime : {kBurst, kSustained}) {
    const std::optional<cache::Winner> last = log_.store().winner(log_.plan_key(), regime);
    if (!last || !last->session_finished) continue;
    incumbents_[regime] = last->config;
    if (last->config != texts.front()) texts.push_back(last->config);
  }
  const std::size_t winners = texts.size();
  for (const cache::Standing& standing : log_.store().alternates(log_.plan_key(), {}, kRacedAgain))
    texts.push_back(standing.config);
  if (incumbent_->environment == run_.environment) texts.resize(winners);
  for (const std::string& text : texts) {
    try {
      add(codegen::parse_config(text));
    } catch (const Error&) {
      // Another version wrote it, and what it means is not known here.
    }
  }
}

bool ProblemTuner::is_incumbent(const std::string& regime, const std::string& config) const {
  const auto found = incumbents_.find(regime);
  return found != incumbents_.end() && found->second == config;
}

void ProblemTuner::look_up() {
  const Request& request = run_.request;
  report_.session = log_.session();
  if (!request.configs.empty() || request.force) return;
  const std::optional<cache::Winner> winner = log_.store().winner(log_.plan_key(), request.sustained ? kSustained : "");
  if (!winner || !winner->session_finished || winner->environment != run_.environment) return;
  report_.outcome = Outcome::known;
  report_.session = winner->session;
  report_winner();
}

void ProblemTuner::prepare() {
  guess_ = codegen::default_config(run_.arch, problem_);
  if (run_.request.configs.empty()) {
    searcher_ = std::make_unique<RankedSearcher>(run_.arch, problem_);
  } else {
    searcher_ = std::make_unique<ListSearcher>(run_.arch, problem_, run_.request.configs);
  }
  report_.counts.space = static_cast<int>(searcher_->space());
}

void ProblemTuner::select(KernelTexts& preferred) {
  const Request& request = run_.request;
  const bool listed = !request.configs.empty();
  // Before all that is only hoped for: with nothing else built in time, what is known to be good is still raced.
  if (!codegen::is_reference(guess_.family)) heuristic_ = add(guess_, /*urgent=*/true)->text;
  add_incumbents();
  if (!listed && !request.force && incumbent_ && incumbent_->environment != run_.environment) {
    // A winner from before a change of driver or compiler: the top few decide.
    searcher_.reset();
  } else {
    const auto wanted = listed ? request.configs.size() : static_cast<std::size_t>(most_);
    for (const codegen::Config& config : searcher_->next(wanted, preferred)) {
      add(config);
      preferred.insert(codegen::kernel_part(config));
    }
  }
  if (!listed && searcher_) {
    for (const codegen::Config& config : codegen::tabled_configs(run_.arch, problem_)) add(config);
  }
  report_.counts.selected = static_cast<int>(candidates_.size());
}

double ProblemTuner::weight() const {
  double fastest = 0;
  for (const Candidate& c : candidates_) fastest = fastest == 0 ? c.estimate : std::min(fastest, c.estimate);
  return (kFixedWeight + kLaunches * fastest) * most_ / run_.request.max_candidates;
}

bool ProblemTuner::select_more(const StopCondition& stop) {
  const Request& request = run_.request;
  if (!searcher_ || !request.configs.empty() || stop.expired() || run_.compile_stop.expired()) return false;
  const auto hopeful = static_cast<std::size_t>(
      std::count_if(candidates_.begin(), candidates_.end(), [](const Candidate& c) { return c.in || !c.settled; }));
  const auto wanted = static_cast<std::size_t>(std::min(least_raced_, most_));
  // A space of which next to nothing compiles is not gone through to its end.
  if (hopeful >= wanted || candidates_.size() - others_ >= 2 * static_cast<std::size_t>(most_)) return false;
  const std::size_t batch = std::max<std::size_t>((wanted - hopeful) * 3 / 2, 8);
  std::vector<codegen::Config> more = searcher_->next_among(batch, run_.pool.ready());
  if (leading_ && more.size() < batch) {
    const std::vector<codegen::Config> fresh = searcher_->next(batch - more.size(), {});
    more.insert(more.end(), fresh.begin(), fresh.end());
  }
  for (const codegen::Config& config : more) add(config, /*urgent=*/true);
  report_.counts.selected = static_cast<int>(candidates_.size());
  return !more.empty();
}

void ProblemTuner::select_other_code(const Candidate& rejected, const StopCondition& stop) {
  if (!run_.request.configs.empty() || stop.expired() || run_.compile_stop.expired()) return;
  const std::optional<codegen::Config> other = codegen::in_other_code(rejected.config);
  if (!other || find(codegen::to_string(*other)) != nullptr) return;
  add(*other, /*urgent=*/true);
  ++others_;
  report_.counts.selected = static_cast<int>(candidates_.size());
}

// -- admission ----------------------------------------------------------------------------------------------------

Entrant ProblemTuner::entrant_of(const Candidate& c) const {
  return {c.id, c.config, c.kernel->spec, c.kernel->build_key, c.kernel->cubin, c.seconds > 0 ? c.seconds : c.estimate};
}

void ProblemTuner::refuse(Candidate& c, TrialStatus status, const std::string& reason, const Json& errors) {
  Counts& counts = report_.counts;
  switch (status) {
    case TrialStatus::ok: break;
    case TrialStatus::rejected: ++counts.rejected; break;
    case TrialStatus::wrong: ++counts.wrong; break;
    case TrialStatus::timeout: ++counts.timeout; break;
    case TrialStatus::crashed: ++counts.crashed; break;
  }
  c.in = false;
  const cache::Trial* const before = log_.find(c.text);
  if (before == nullptr || before->status != status) log_.failed(c.text, c.kernel->build_key, status, reason, errors);
}

bool ProblemTuner::pass_gate(Measurer& measurer, Candidate& c) {
  KernelPool::Kernel& kernel = *c.kernel;
  const StopCondition& stop = run_.compile_stop;
  bool ours = false;
  run_.pool.update([&] {
    if (!kernel.gate && !kernel.gate_claimed && log_.proven(kernel.build_key)) kernel.gate = Verdict{};
    ours = !kernel.gate && !kernel.gate_claimed;
    kernel.gate_claimed = true;
  });
  if (ours) {
    try {
      const Verdict verdict = measurer.gate(entrant_of(c));
      run_.pool.update([&] { kernel.gate = verdict; });
    } catch (...) {
      run_.pool.update([&] { kernel.gate_claimed = false; });
      throw;
    }
  } else {
    // Another device's worker has it; should that device fail, the gate is free again.
    while (!run_.pool.wait_until([&] { return kernel.gate || !kernel.gate_claimed; }, stop, 60)) {
      if (stop.interrupted()) fail(ErrorCode::interrupted, "tune: stopped");
    }
    if (!kernel.gate) return pass_gate(measurer, c);
  }
  const Verdict& verdict = *kernel.gate;
  if (verdict.status == TrialStatus::ok) return true;
  refuse(c, verdict.status, verdict.reason);
  return false;
}

bool ProblemTuner::settle(Measurer& measurer, Candidate& c) {
  using State = KernelPool::State;
  KernelPool::Kernel& kernel = *c.kernel;
  if (kernel.state == State::dropped) {
    ++report_.counts.unbuilt;
    return false;
  }
  if (kernel.state == State::rejected) {
    refuse(c, TrialStatus::rejected, kernel.reason);
    return false;
  }
  if (!run_.request.force) {
    if (const cache::Trial* const before = log_.find(c.text)) {
      if (before->status != TrialStatus::ok) {
        refuse(c, before->status, before->reason);
        return false;
      }
      c.resumed = true;
      c.seconds = before->median;
      c.errors = Json::parse(before->errors, nullptr, /*allow_exceptions=*/false);
      if (!c.errors.is_object()) c.errors = Json::object();
      ++report_.counts.resumed;
      return true;
    }
    if (log_.quarantined(kernel.build_key)) {
      ++report_.counts.quarantined;
      return false;
    }
  }
  if (!pass_gate(measurer, c)) return false;
  const Verdict verdict = measurer.check(problem_, entrant_of(c));
  c.errors = accuracy_json(verdict.judgement.accuracy);
  const Judgement& gate = kernel.gate->judgement;
  c.errors["gate"] = accuracy_json(gate.accuracy);
  c.errors["gate"].update(
      {{"cases", gate.cases}, {"share_of_bounds", gate.share_of_bounds}, {"worst_case", gate.worst_case}});
  c.errors["registers"] = kernel.registers;
  if (verdict.status != TrialStatus::ok) {
    refuse(c, verdict.status, verdict.reason, c.errors);
    return false;
  }
  return true;
}

void ProblemTuner::give_up_unbuilt() {
  for (Candidate& c : candidates_) {
    if (c.settled) continue;
    c.settled = c.unbuilt = true;
    ++report_.counts.unbuilt;
    run_.pool.give_up(c.kernel);
  }
}

void ProblemTuner::admit(Measurer& measurer, const StopCondition& stop) {
  using State = KernelPool::State;
  for (;;) {
    // As soon as it is clear that too few will pass, so that the compilers never pause.
    select_more(stop);
    // The most wanted candidate whose kernel is there; while there is none, wait.
    Candidate* ready = nullptr;
    bool all_settled = false;
    int settled = 0;
    run_.pool.wait_until(
        [&] {
          ready = nullptr;
          settled = 0;
          for (Candidate& c : candidates_) {
            if (c.settled) {
              ++settled;
            } else if (ready == nullptr && c.kernel->state != State::waiting && c.kernel->state != State::building) {
              ready = &c;
            }
          }
          all_settled = settled == static_cast<int>(candidates_.size());
          return ready != nullptr || all_settled;
        },
        stop, 0.1);
    if (stop.interrupted()) fail(ErrorCode::interrupted, "tune: stopped");
    if (run_.compile_stop.expired()) run_.pool.drop_waiting();
    // Out of its share of the time it goes on with what it has, once it has something.
    if (stop.expired() && ready == nullptr && std::ranges::any_of(candidates_, &Candidate::in)) {
      give_up_unbuilt();
      return;
    }
    const KernelPool::Totals totals = run_.pool.totals();
    if (totals.done < totals.kernels) {
      show(Phase::compiling, totals.done, totals.kernels);
    } else {
      show(Phase::checking, settled, static_cast<int>(candidates_.size()));
    }
    if (ready != nullptr) {
      ready->in = settle(measurer, *ready);
      ready->settled = true;
      if (ready->kernel->state == State::rejected) select_other_code(*ready, stop);
    } else if (all_settled && !select_more(stop)) {
      return;
    }
  }
}

ProblemReport ProblemTuner::run(Measurer& measurer, const StopCondition& stop) {
  if (known()) return report_;
  const double start = stop.elapsed();
  if (std::exchange(cut_short_, false)) {
    // What has been built by now may still come in; nothing more is chosen.
    searcher_.reset();
    run_.pool.update([this] {
      for (Candidate& c : candidates_) {
        c.resumed = c.seconds > 0;
        if (!c.unbuilt || c.kernel->state != KernelPool::State::ready) continue;
        c.settled = c.unbuilt = false;
        --report_.counts.unbuilt;
      }
    });
    report_.message.clear();
  }
  try {
    if (flops(problem_) <= 0)
      fail(ErrorCode::invalid_argument, "problem: it has nothing to compute ({})", to_string(problem_));
    admit(measurer, stop);
    race(measurer, stop);
  } catch (const HardwareFailure&) {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal || error.code() == ErrorCode::unsupported) throw;
    report_.message = error.what();
    report_.outcome = Outcome::partial;
  }
  report_winner();
  report_.seconds += stop.elapsed() - start;
  return report_;
}

}  // namespace attune::tuner
