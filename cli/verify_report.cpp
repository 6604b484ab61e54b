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

// The figures that an operation's table has, and their names in the document.
std::vector<std::pair<const char*, double>> figures(Op op, const tuner::Accuracy& a) {
  if (op == Op::backward) {
    return {{"dq_rel_l2", a.dq_rel_l2},     {"dk_rel_l2", a.dk_rel_l2},     {"dv_rel_l2", a.dv_rel_l2},
            {"dq_usual_l2", a.dq_usual_l2}, {"dk_usual_l2", a.dk_usual_l2}, {"dv_usual_l2", a.dv_usual_l2}};
  }
  return {
      {"o_rel_l2", a.o_rel_l2}, {"o_row_l2", a.o_row_l2}, {"o_max_abs", a.o_max_abs}, {"lse_max_abs", a.lse_max_abs}};
}

}  // namespace

Table VerifyReport::table_of(std::initializer_list<const char*> errors) {
  std::vector<Column> columns{
      {"problem", Align::left}, {"config", Align::left}, {"from", Align::left}, {"inputs", Align::left}, {"cases"}};
  for (const char* error : errors) columns.push_back({error});
  columns.push_back({"of bound"});
  columns.push_back({"verdict", Align::left});
  return Table(std::move(columns));
}

// The errors of the unavoidable roundings alone stand in the middle: twice them is the bound.
VerifyReport::VerifyReport()
    : forward_(table_of({"O rel L2", "O worst row", "O max abs", "LSE max abs"})),
      backward_(table_of({"dQ rel L2", "dK rel L2", "dV rel L2", "usual dQ", "usual dK", "usual dV"})) {}

Json& VerifyReport::add(const Subject& subject, const std::string& what, const tuner::Verdict& verdict) {
  const tuner::Judgement& j = verdict.judgement;
  const bool good = verdict.status == cache::TrialStatus::ok && !j.wrong;
  all_good_ = all_good_ && good;
  std::string reason = verdict.reason;
  if (reason.empty() && j.wrong) reason = *j.wrong;
  std::vector<std::string> cells{problem_text(subject.problem), config_text(subject.config), subject.origin, what,
                                 std::to_string(j.cases)};
  const auto errors = figures(subject.problem.op, j.accuracy);
  if (j.cases > 0) {
    for (const auto& [name, value] : errors) cells.push_back(number(value));
    cells.push_back(share_text(j.share_of_bounds));
  } else {
    cells.resize(cells.size() + errors.size() + 1);
  }
  cells.push_back(good ? "ok, worst: " + j.worst_case
                       : fmt::format("{}: {}", cache::to_string(verdict.status), reason.substr(0, reason.find('\n'))));
  table(subject).row(std::move(cells));
  Json result = subject_json(subject, what);
  result.update({{"ok", good},
                 {"status", cache::to_string(verdict.status)},
                 {"reason", reason},
                 {"cases", j.cases},
                 {"worst_case", j.worst_case},
                 {"share_of_bounds", j.share_of_bounds}});
  for (const auto& [name, value] : errors) result[name] = value;
  return results_.emplace_back(std::move(result));
}

void VerifyReport::add_failure(const Subject& subject) {
  add(subject, "compile", {.status = cache::TrialStatus::rejected, .reason = subject.failure, .judgement = {}});
}

void VerifyReport::skip(const Subject& subject, const std::string& what, const std::string& why) {
  std::vector<std::string> cells{problem_text(subject.problem), config_text(subject.config), subject.origin, what};
  cells.resize(cells.size() + 2 + figures(subject.problem.op, {}).size());
  cells.push_back("not run: " + why);
  table(subject).row(std::move(cells));
  Json result = subject_json(subject, what);
  result.update({{"ok", true}, {"status", "skipped"}, {"reason", why}, {"cases", 0}});
  results_.push_back(std::move(result));
}

void VerifyReport::print(Output& output) const {
  for (const Table* table : {&forward_, &backward_})
    if (!table->empty()) table->print(output);
}

ExitCode VerifyReport::finish(Output& output, const std::string& complaint) {
  output.document()["ok"] = all_good_;
  output.document()["results"] = std::move(results_);
  if (!all_good_) output.error(complaint);
  return all_good_ ? ExitCode::ok : ExitCode::failure;
}

}  // namespace attune::cli
