#include "cli/problem_set.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "cli/problem_grid.h"
#include "tuner/model_config.h"

namespace attune::cli {
namespace {

constexpr std::int64_t kTokens = 16384;

}  // namespace

void ProblemSetFlags::add(CLI::App& command) {
  one_.add(command);
  const auto option = [&](const char* name, auto& value, const char* text, const char* type) {
    command.add_option(name, value, text)->group("Problems")->type_name(type);
  };
  option("--model", model_, "a Hugging Face config.json, or the folder of one, instead of head dims and head counts",
         "FILE");
  option("--grid", grid_, "every problem of this grid: fa3 (36 problems as FlashAttention-3's paper has them)", "NAME");
  option("--seqlens", seqlens_, "lengths, one problem each: 512,1024,... (with --model by default 512 to 16384)",
         "LIST");
  option("--tokens", tokens_, "tokens of each problem: batch is tokens / length (default: 16384)", "N");
}

std::vector<Problem> ProblemSetFlags::of_model(Output& output) const {
  for (const std::string& name : one_.given()) {
    constexpr std::array<std::string_view, 7> kAllowed{
        "--op", "--dtype", "--causal", "--no-causal", "--deterministic", "--layout", "--scores"};
    if (std::ranges::find(kAllowed, name) == kAllowed.end())
      fail(ErrorCode::invalid_argument,
           "model: says what {} would say (allowed beside it: --op, --dtype, --causal, --no-causal, --deterministic, "
           "--layout, --scores, --seqlens, --tokens)",
           name);
  }
  const tuner::ModelConfig model = tuner::load_model_config(model_);
  for (const std::string& note : model.notes) output.note("{}: {}", model_, note);
  const Problem wanted = one_.over({.dtype = model.dtype, .causal = true});
  tuner::ProblemRange range{.causal = wanted.causal, .dtype = wanted.dtype};
  if (tokens_) range.tokens = parse_count("tokens", *tokens_);
  std::vector<Problem> problems;
  if (seqlens_) {
    for (const std::int64_t length : parse_counts("seqlens", *seqlens_)) {
      range.min_seqlen = range.max_seqlen = length;
      std::ranges::copy(tuner::problems_of(model, range), std::back_inserter(problems));
    }
  } else {
    problems = tuner::problems_of(model, range);
  }
  for (Problem& problem : problems) {
    problem.op = wanted.op;
    problem.deterministic = wanted.deterministic;
    problem.layout = wanted.layout;
    problem.scores = wanted.scores;
    validate(problem);
  }
  return problems;
}

std::vector<Problem> ProblemSetFlags::of_grid() const {
  std::vector<std::string> given = one_.given();
  if (!model_.empty()) given.emplace_back("--model");
  if (seqlens_) given.emplace_back("--seqlens");
  if (tokens_) given.emplace_back("--tokens");
  constexpr std::array<std::string_view, 4> kAllowed{"--op", "--dtype", "--deterministic", "--scores"};
  for (const std::string& name : given) {
    if (std::ranges::find(kAllowed, name) == kAllowed.end()) {
      fail(ErrorCode::invalid_argument,
           "grid: says what {} would say (allowed beside it: --op, --dtype, --deterministic, --scores)", name);
    }
  }
  const Problem base = one_.over({});
  validate(base);
  return problem_grid(grid_, base);
}

std::vector<Problem> ProblemSetFlags::problems(Output& output) const {
  if (!grid_.empty()) return of_grid();
  if (!model_.empty()) return of_model(output);
  const Problem one = one_.problem();
  if (!seqlens_) {
    if (tokens_) fail(ErrorCode::invalid_argument, "tokens: needs --seqlens or --model");
    return {one};
  }
  for (const std::string& name : one_.given()) {
    if (name.starts_with("--seqlen") || name == "--problem" || (name == "--batch" && tokens_))
      fail(ErrorCode::invalid_argument, "seqlens: excludes {}", name);
  }
  const std::vector<std::string> given = one_.given();
  const bool fixed_batch = std::ranges::find(given, "--batch") != given.end();
  const std::int64_t tokens = tokens_ ? parse_count("tokens", *tokens_) : kTokens;
  std::vector<Problem> problems;
  for (const std::int64_t length : parse_counts("seqlens", *seqlens_)) {
    Problem problem = one;
    problem.seqlen_q = problem.seqlen_k = length;
    if (!fixed_batch) problem.batch = std::max<std::int64_t>(1, tokens / length);
    validate(problem);
    problems.push_back(problem);
  }
  return problems;
}

std::vector<Problem> ProblemSetFlags::problems_and_twins(Output& output) const {
  const std::vector<Problem> asked = problems(output);
  std::vector<Problem> all = asked;
  if (one_.says_scores()) return all;
  for (const Problem& problem : asked)
    if (const std::optional<Problem> twin = peaked_twin(problem)) all.push_back(*twin);
  return all;
}

bool ProblemSetFlags::any() const {
  return !model_.empty() || !grid_.empty() || seqlens_ || tokens_ || !one_.given().empty();
}

std::function<bool(const Problem&)> ProblemSetFlags::filter(Output& output) const {
  if (model_.empty() && grid_.empty() && !seqlens_)
    return [this](const Problem& problem) { return one_.admits(problem); };
  return [wanted = problems_and_twins(output)](const Problem& problem) {
    return std::ranges::find(wanted, problem) != wanted.end();
  };
}

}  // namespace attune::cli
