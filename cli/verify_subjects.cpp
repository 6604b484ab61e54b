#include "cli/verify_subjects.h"

#include "base/error.h"
#include "cli/best_guess.h"
#include "cli/problem_flags.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "runtime/pack.h"
#include "runtime/plan_state.h"

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
    if (request_.configs.empty()) {
      subjects.push_back(planned(problem));
      if (request_.second_kernels) {
        if (auto second = second_of(subjects.back())) subjects.push_back(*std::move(second));
      }
    }
    for (const std::string& text : request_.configs) {
      subjects.push_back(text == kDefaultConfig ? guessed(problem)
                                                : built(problem, checked_config(arch_, problem, text), "config"));
    }
  }
  return subjects;
}

Subject Subjects::attempt(const Problem& problem, const codegen::Config& config, const char* origin,
                          const std::function<void(Subject&)>& build) {
  output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
  Subject subject{problem, config, {}, origin};
  try {
    build(subject);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::compile_failed) throw;
    subject.failure = error.what();
    output_.warn(fmt::format("{}  {}: {}", short_problem_text(problem), config_text(subject.config), subject.failure));
  }
  return subject;
}

Subject Subjects::built(const Problem& problem, const codegen::Config& config, const char* origin) {
  return attempt(problem, config, origin, [&](Subject& subject) {
    subject.build = builder_.build(codegen::specialise(arch_, problem, config));
    runtime::require_accepted(subject.build);
  });
}

Subject Subjects::guessed(const Problem& problem) {
  return attempt(problem, codegen::default_config(arch_, problem), "heuristic", [&](Subject& subject) {
    Guess guess = best_guess(builder_, arch_, problem, output_);
    subject.config = guess.config;
    subject.build = std::move(guess.build);
  });
}

std::optional<Subject> Subjects::second_of(const Subject& first) {
  const std::optional<Problem> twin = peaked_twin(first.problem);
  if (!twin || !runtime::speculates(first.config)) return std::nullopt;
  // As the runtime has it: beside a winner there is another winner or nothing, beside a guess a guess.
  if (first.origin != "heuristic" && !store_.winner(runtime::plan_key(*twin, identity_, codegen::emitter_digest())))
    return std::nullopt;
  return planned(*twin);
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
    const codegen::Config config = codegen::parse_config(entry.config);
    if (request_.rebuild_pack) {
      subjects.push_back(attempt(problem, config, "pack", [&](Subject& subject) {
        subject.build = builder_.build(codegen::parse_kernel_spec(entry.spec));
      }));
      continue;
    }
    Subject& subject = subjects.emplace_back(Subject{problem, config, {}, "pack"});
    subject.build.key = entry.build_key;
    subject.build.info.spec = entry.spec;
    subject.build.cubin = pack.cubin(entry);
  }
  if (subjects.empty())
    fail(ErrorCode::not_found, "pack: {} has no entry for these problems and {}", request_.pack, arch_.name);
  return subjects;
}

}  // namespace attune::cli
