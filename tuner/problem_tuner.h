// One problem from candidates to winner.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tuner/halving.h"
#include "tuner/kernel_pool.h"
#include "tuner/measurer.h"
#include "tuner/report.h"
#include "tuner/searcher.h"
#include "tuner/stop_condition.h"
#include "tuner/trial_log.h"
#include "tuner/tuner.h"

namespace attune::tuner {

/// What the problems of a run share. Everything outlives the problem tuners.
struct RunContext {
  const Request& request;
  KernelPool& pool;
  Arch arch;
  std::string identity;
  std::string environment;
  std::string session;                            ///< for problems that begin a new one
  StopCondition compile_stop;                     ///< when it expires, what is not compiled yet is left out
  std::function<void(const Progress&)> progress;  ///< any thread
};

/// Used from one thread at a time.
class ProblemTuner {
 public:
  /// `leading`: the first of those that can share kernels with it; it alone has more compiled when too few pass.
  ProblemTuner(RunContext& run, const Problem& problem, bool leading);

  /// Tuned before, in this environment: there is nothing to do.
  bool known() const { return report_.outcome == Outcome::known; }
  /// Goes through the space, which takes a while; different problems may do so at the same time.
  void prepare();
  /// After prepare(): chooses configs and queues their kernels; `preferred` as for Searcher::next(), and gets what was
  /// chosen.
  void select(KernelTexts& preferred);
  /// Share of the time that it should get, in arbitrary units.
  double weight() const;

  /// Checks and races. Throws HardwareFailure and Error(internal); all else ends up in the report. A second time where
  /// it was cut short: goes on with what has been timed.
  ProblemReport run(Measurer& measurer, const StopCondition& stop);
  /// `stop` came before the finals.
  bool cut_short() const { return cut_short_; }

  const ProblemReport& report() const { return report_; }

 private:
  struct Candidate {
    int id = 0;
    codegen::Config config;
    std::string text;
    KernelPool::Kernel* kernel = nullptr;
    double estimate = 0;
    double seconds = 0;  // median in the last round it ran in; 0: not timed
    bool settled = false;
    bool in = false;       // may race
    bool resumed = false;  // timed by an earlier run of this session
    bool variant = false;  // a launch variant of another candidate
    bool unbuilt = false;  // given up before its kernel was there
    Json errors;
  };

  // problem_tuner.cpp: who may race
  Candidate* add(const codegen::Config& config, bool urgent = false);
  Candidate* find(const std::string& text);
  void look_up();
  void add_incumbents();
  void give_up_unbuilt();
  void admit(Measurer& measurer, const StopCondition& stop);
  /// Makes up for what was refused; whether there was something to add.
  bool select_more(const StopCondition& stop);
  /// After `rejected` was: adds the same schedule in other code, if there is time to compile it.
  void select_other_code(const Candidate& rejected, const StopCondition& stop);
  /// Whether it may race.
  bool settle(Measurer& measurer, Candidate& c);
  bool pass_gate(Measurer& measurer, Candidate& c);
  void refuse(Candidate& c, cache::TrialStatus status, const std::string& reason, const Json& errors = {});
  Entrant entrant_of(const Candidate& c) const;

  // race.cpp: who is fastest
  void race(Measurer& measurer, const StopCondition& stop);
  RaceReadings run_round(Measurer& measurer, const std::vector<Candidate*>& entrants, const RaceOptions& options,
                         Phase phase, const std::function<void(Candidate&, const RaceResult&)>& done);
  void first_round(Measurer& measurer, const StopCondition& stop);
  void brief_round(Measurer& measurer, const std::vector<Candidate*>& entrants, const RaceOptions& options);
  std::vector<Candidate*> with_variants(const std::vector<Candidate*>& best);
  std::vector<Candidate*> timed();
  /// Whether it won this regime's last tuning that was completed.
  bool is_incumbent(const std::string& regime, const std::string& config) const;
  /// The heuristic's config and the incumbents run in every round: the winner is compared with them.
  bool goes_through(const Candidate& c) const;
  std::vector<Candidate*> keep(const std::vector<Candidate*>& from, std::size_t count) const;
  std::vector<Candidate*> finalists(const std::vector<Candidate*>& from) const;
  bool finals(Measurer& measurer, std::vector<Candidate*> entrants, const StopCondition& stop);
  /// The finalists of the regime under load: from a round under load, if there is time for it.
  std::vector<Candidate*> best_under_load(Measurer& measurer, const std::vector<Candidate*>& field,
                                          const StopCondition& stop);
  bool sustained_finals(Measurer& measurer, const std::vector<Candidate*>& entrants, const StopCondition& stop);
  /// Ranks what was measured together, and commits it; the incumbent keeps its place unless it was clearly beaten.
  void commit(const std::vector<Candidate*>& entrants, const std::vector<RaceResult>& results, const char* regime,
              const Conditions& conditions);
  double launch_seconds(const std::vector<Candidate*>& entrants) const;

  // problem_report.cpp: what is said about it
  void report_winner();
  void show(Phase phase, int done, int total);

  RunContext& run_;
  Problem problem_;
  bool leading_;
  int most_, least_raced_;  // as in Request
  TrialLog log_;
  std::unique_ptr<Searcher> searcher_;
  std::deque<Candidate> candidates_;  // addresses stay
  std::size_t others_ = 0;            // of them: by select_other_code()
  std::map<std::string, Candidate*> by_text_;
  std::optional<cache::Winner> incumbent_;         // what is served
  std::map<std::string, std::string> incumbents_;  // regime -> config of its last winner
  codegen::Config guess_;                          // the default config
  std::string heuristic_;                          // text of the default config
  bool cut_short_ = false;
  ProblemReport report_;
};

}  // namespace attune::tuner
