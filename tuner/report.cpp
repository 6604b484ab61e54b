#include "tuner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace attune::tuner {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Timing& t) {
  return {{"config", t.config},   {"build_key", t.build_key}, {"median_seconds", t.median},
          {"low_seconds", t.low}, {"high_seconds", t.high},   {"samples", t.samples}};
}

template <typename T>
Json json_of(const std::optional<T>& value) {
  if constexpr (requires { json_of(*value); })
    return value ? json_of(*value) : Json();
  else
    return value ? Json(*value) : Json();
}

Json json_of(const Counts& c) {
  return {{"space", c.space},       {"selected", c.selected}, {"built", c.built},
          {"rejected", c.rejected}, {"unbuilt", c.unbuilt},   {"quarantined", c.quarantined},
          {"wrong", c.wrong},       {"timeout", c.timeout},   {"crashed", c.crashed},
          {"raced", c.raced},       {"resumed", c.resumed},   {"finalists", c.finalists}};
}

Json json_of(const Conditions& c) {
  return {{"sm_mhz", c.sm_mhz},        {"sm_mhz_low", c.sm_mhz_low},
          {"watts", json_of(c.watts)}, {"celsius", json_of(c.celsius)},
          {"throttle", c.throttle},    {"spread", c.spread}};
}

Json json_of(const ProblemReport& p) {
  Json ties = Json::array();
  for (const Timing& t : p.ties) ties.push_back(json_of(t));
  Json errors = Json::parse(p.errors, nullptr, /*allow_exceptions=*/false);
  if (errors.is_discarded()) errors = nullptr;
  return {{"problem", to_string(p.problem)},
          {"plan_key", p.plan_key},
          {"session", p.session},
          {"outcome", to_string(p.outcome)},
          {"message", p.message},
          {"winner", json_of(p.winner)},
          {"ties", ties},
          {"sustained", json_of(p.sustained)},
          {"heuristic", json_of(p.heuristic)},
          {"tflops", p.tflops},
          {"over_heuristic", p.over_heuristic},
          {"limit", p.limit},
          {"share_of_limit", p.share_of_limit},
          {"errors", errors},
          {"counts", json_of(p.counts)},
          {"conditions", json_of(p.conditions)},
          {"seconds", p.seconds}};
}

// "0:14", "12:03"
std::string minutes(double seconds) {
  const auto whole = static_cast<long>(std::ceil(std::max(seconds, 0.0)));
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string short_text(const Problem& p) {
  const std::string length =
      p.seqlen_q == p.seqlen_k ? std::to_string(p.seqlen_q) : fmt::format("{}/{}", p.seqlen_q, p.seqlen_k);
  const std::string dim =
      p.head_dim == p.head_dim_v ? std::to_string(p.head_dim) : fmt::format("{}/{}", p.head_dim, p.head_dim_v);
  return fmt::format("d{}{} {}x{}", dim, p.causal ? " causal" : "", p.batch, length);
}

}  // namespace

const char* to_string(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::tuned: return "tuned";
    case Outcome::kept: return "kept";
    case Outcome::known: return "known";
    case Outcome::partial: return "partial";
    case Outcome::failed: return "failed";
  }
  return "";
}

const char* to_string(Phase phase) noexcept {
  switch (phase) {
    case Phase::starting: return "starting";
    case Phase::compiling: return "compiling";
    case Phase::checking: return "checking";
    case Phase::racing: return "racing";
    case Phase::finals: return "finals";
    case Phase::sustained: return "sustained";
    case Phase::done: return "done";
  }
  return "";
}

int Report::complete() const {
  return static_cast<int>(std::count_if(problems.begin(), problems.end(), [](const ProblemReport& p) {
    return p.outcome == Outcome::tuned || p.outcome == Outcome::kept || p.outcome == Outcome::known;
  }));
}

std::string to_json(const Report& r) {
  Json problems = Json::array();
  for (const ProblemReport& p : r.problems) problems.push_back(json_of(p));
  const Json report{
      {"device", r.device},           {"identity", r.identity},       {"environment", r.environment},
      {"interrupted", r.interrupted}, {"out_of_time", r.out_of_time}, {"kernels", r.kernels},
      {"compiled", r.compiled},       {"rejected", r.rejected},       {"compile_seconds", r.compile_seconds},
      {"seconds", r.seconds},         {"problems", problems}};
  return report.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string progress_line(const Progress& p) {
  const char* verb = p.phase == Phase::compiling  ? "compiling"
                     : p.phase == Phase::checking ? "checking"
                     : p.phase == Phase::done     ? "tuned"
                                                  : "tuning";
  std::string line = fmt::format("{} {}", verb, short_text(p.problem));
  if (p.problems > 1) line += fmt::format(" ({} of {})", p.problem_index + 1, p.problems);
  if (p.total > 0) line += fmt::format("  {}/{}", p.done, p.total);
  if (p.best_tflops > 0) {
    line += fmt::format("  best {:.0f} TFLOP/s", p.best_tflops);
    if (p.share_of_limit > 0) {
      line += fmt::format(" ({:.0f}% of the limit", 100 * p.share_of_limit);
      if (p.over_heuristic > 0) line += fmt::format(", {:.2f}x heuristic", p.over_heuristic);
      line += ")";
    }
  }
  if (p.phase != Phase::done && p.phase != Phase::starting) line += fmt::format("  {} left", minutes(p.seconds_left));
  return line;
}

}  // namespace attune::tuner
