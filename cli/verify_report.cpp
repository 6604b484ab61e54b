#include "cli/verify_report.h"

#include "cli/wording.h"

namespace attune::cli {
namespace {

std::string number(double value) { return value >= 1e299 ? "NaN" : fmt::format("{:.2g}", value); }

std::string share_text(double share) { return share >= 100 ? ">9999%" : fmt::format("{:.0f}%", 100 * share); }

Json subject_json(const Subject& subject, const std::string& what) {
  return {{"problem", to_string(subject.problem)},
          {"config", codegen::to_string(subject.config)},
          {"spec", subject.build.info.spec},
          {"build_key", subject.build.key},
          {"origin", subject.origin},
          {"what", what}};
}

}  // namespace

Json& VerifyReport::add(const Subject& subject, const std::string& what, const tuner::Verdict& verdict) {
  const tuner::Judgement& j = verdict.judgement;
  const bool good = verdict.status == cache::TrialStatus::ok && !j.wrong;
  all_good_ = all_good_ && good;
  std::string reason = verdict.reason;
  if (reason.empty() && j.wrong) reason = *j.wrong;
  std::vector<std::string> cells{problem_text(subject.problem), config_text(subject.config), subject.origin, what,
                                 std::to_string(j.cases)};
  if (j.cases > 0) {
    cells.insert(cells.end(), {number(j.accuracy.o_rel_l2), number(j.accuracy.o_row_l2), number(j.accuracy.o_max_abs),
                               number(j.accuracy.lse_max_abs), share_text(j.share_of_bounds)});
  } else {
    cells.resize(10);
  }
  cells.push_back(good ? "ok, worst: " + j.worst_case
                       : fmt::format("{}: {}", cache::to_string(verdict.status), reason.substr(0, reason.find('\n'))));
  table_.row(std::move(cells));
  Json result = subject_json(subject, what);
  result.update({{"ok", good},
                 {"status", cache::to_string(verdict.status)},
                 {"reason", reason},
                 {"cases", j.cases},
                 {"worst_case", j.worst_case},
                 {"share_of_bounds", j.share_of_bounds},
                 {"o_rel_l2", j.accuracy.o_rel_l2},
                 {"o_row_l2", j.accuracy.o_row_l2},
                 {"o_max_abs", j.accuracy.o_max_abs},
                 {"lse_max_abs", j.accuracy.lse_max_abs}});
  return results_.emplace_back(std::move(result));
}

void VerifyReport::add_failure(const Subject& subject) {
  add(subject, "compile", {.status = cache::TrialStatus::rejected, .reason = subject.failure, .judgement = {}});
}

void VerifyReport::skip(const Subject& subject, const std::string& what, const std::string& why) {
  std::vector<std::string> cells{problem_text(subject.problem), config_text(subject.config), subject.origin, what};
  cells.resize(10);
  cells.push_back("not run: " + why);
  table_.row(std::move(cells));
  Json result = subject_json(subject, what);
  result.update({{"ok", true}, {"status", "skipped"}, {"reason", why}, {"cases", 0}});
  results_.push_back(std::move(result));
}

ExitCode VerifyReport::finish(Output& output, const std::string& complaint) {
  output.document()["ok"] = all_good_;
  output.document()["results"] = std::move(results_);
  if (!all_good_) output.error(complaint);
  return all_good_ ? ExitCode::ok : ExitCode::failure;
}

}  // namespace attune::cli
