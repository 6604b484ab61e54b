#include "cli/verify_subjects.h"

#include "base/error.h"
#include "cli/best_guess.h"
#include "cli/problem_flags.h"
#include "cli/wording.h"
#include "runtime/keys.h"
#include "runtime/pack.h"

namespace attune::cli {

void check_subjects(const SubjectRequest& request, Output& output) {
  const Arch arch = request.problems.arch();
  if (!request.pack.empty() && !request.configs.empty())
    fail(ErrorCode::invalid_argument, "config: excludes --pack, whose entries have configs of their own");
  if (!request.pack.empty()) {
    read_pack(request.pack, {.allow_unsigned = true});
    return;
  }
  for (const Problem& problem : request.problems.problems(output)) {
    for (const std::string& text : request.configs)
      if (text != kDefaultConfig) checked_config(arch, problem, text);
  }
}

Subjects::Subjects(SubjectRequest request, const runtime::DeviceProperties& properties, cache::Store store,
                   runtime::Builder& builder, Output& output)
    : request_(std::move(request)),
      arch_(runtime::arch_of(properties)),
      identity_(runtime::identity_text(properties)),
      store_(std::move(store)),
      builder_(builder),
      output_(output) {}

std::vector<Subject> Subjects::all() {
  if (!request_.pack.empty()) return of_pack();
  std::vector<Subject> subjects;
  for (const Problem& problem : request_.problems.problems(output_)) {
    if (request_.configs.empty()) subjects.push_back(planned(problem));
    for (const std::string& text : request_.configs) {
      subjects.push_back(text == kDefaultConfig ? guessed(problem)
                                                : built(problem, checked_config(arch_, problem, text), "config"));
    }
  }
  return subjects;
}

Subject Subjects::built(const Problem& problem, const codegen::Config& config, const char* origin) {
  output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
  Subject subject{problem, config, builder_.build(codegen::specialise(arch_, problem, config)), origin};
  runtime::require_accepted(subject.build);
  return subject;
}

Subject Subjects::guessed(const Problem& problem) {
  output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
  Guess guess = best_guess(builder_, arch_, problem, output_);
  return {problem, guess.config, std::move(guess.build), "heuristic"};
}

// What plan() would give.
Subject Subjects::planned(const Problem& problem) {
  const auto winner = store_.winner(runtime::plan_key(problem, identity_, codegen::emitter_digest()));
  if (!winner) return guessed(problem);
  const codegen::Config config = codegen::parse_config(winner->config);
  if (auto build = builder_.find(winner->build_key)) return {problem, config, *std::move(build), "cache"};
  return built(problem, config, "cache");
}

std::vector<Subject> Subjects::of_pack() {
  const Pack pack = read_pack(request_.pack, {.allow_unsigned = true});
  const auto wanted = request_.problems.filter(output_);
  std::vector<Subject> subjects;
  for (const PackEntry& entry : pack.entries()) {
    const Problem problem = parse_problem(entry.problem);
    if (entry.arch != arch_.name || !wanted(problem)) continue;
    Subject subject{problem, codegen::parse_config(entry.config), {}, "pack"};
    if (request_.rebuild_pack) {
      output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
      subject.build = builder_.build(codegen::parse_kernel_spec(entry.spec));
    } else {
      subject.build.key = entry.build_key;
      subject.build.info.spec = entry.spec;
      subject.build.cubin = pack.cubin(entry);
    }
    subjects.push_back(std::move(subject));
  }
  if (subjects.empty())
    fail(ErrorCode::not_found, "pack: {} has no entry for these problems and {}", request_.pack, arch_.name);
  return subjects;
}

}  // namespace attune::cli
