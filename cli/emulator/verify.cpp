// attune verify --device cpu: the gate's small problems, and the problem itself where a CPU can run it, on the
// emulator.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "cli/emulator.h"
#include "cli/emulator/emulated_gate.h"
#include "cli/emulator/finding_output.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/verify_report.h"
#include "cli/verify_subjects.h"
#include "cli/wording.h"
#include "runtime/cpu/ptx_compiler.h"

namespace attune::cli {
namespace {

// Elements of the score matrices of all heads that a full-size run may have. The emulator does some 2 million of them a
// second at head dim 128, and backward a quarter of that; gradients are compared in full, since every row of dK and dV
// depends on all rows of Q.
constexpr double kLargestScores = 16e6, kLargestBackwardScores = 4e6;
constexpr double kScoresPerSecond = 2e6, kBackwardScoresPerSecond = 0.5e6;
// Products of the host's reference, whose rows are sampled beyond that.
constexpr double kLargestReference = 2e9;

double score_elements(const Problem& p) {
  const double all =
      static_cast<double>(p.batch) * p.heads * static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k);
  return p.causal ? all / 2 : all;
}

runtime::RowSample affordable_rows(const Problem& p) {
  const double products = score_elements(p) * (p.head_dim + p.head_dim_v);
  const double step = std::max(1.0, products / kLargestReference);
  // Odd, so that the sample meets every place of a tile.
  return {.step = static_cast<std::int64_t>(step) | 1};
}

std::string duration_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} seconds", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} minutes", seconds / 60);
  return fmt::format("{:.0f} hours", seconds / 3600);
}

Json case_json(const CaseFinding& found) {
  Json json = finding_json(found.finding);
  json["case"] = found.where;
  json["seed"] = found.seed;
  return json;
}

std::string summary(const EmulatedVerdict& verdict) {
  const std::size_t count = verdict.findings.size();
  std::string text = verdict.judgement.wrong.value_or("");
  if (count > 0) {
    if (!text.empty()) text += "; ";
    text += short_text(verdict.findings.front().finding);
    if (count > 1) text += fmt::format(" and {} more", count - 1);
  }
  return text;
}

// The orders in which a kernel went wrong, and no other.
std::string replay_command(const EmulatedVerifyRequest& request, const Subject& subject, std::uint64_t seed) {
  std::string what = " --config " + codegen::to_string(subject.config);
  if (!request.source.empty()) what = " --source " + request.source;
  if (!request.pack.empty()) what = " --pack " + request.pack;
  return fmt::format("attune verify --device cpu --problem {}{} --first-seed {}", to_string(subject.problem), what,
                     seed);
}

// What the table has no room for.
void describe(const EmulatedVerifyRequest& request, const Subject& subject, const EmulatedVerdict& verdict,
              Output& output) {
  if (verdict.good() && verdict.prints.empty()) return;
  output.line();
  output.line("{}  {}", problem_text(subject.problem), config_text(subject.config));
  for (const CasePrint& print : verdict.prints) {
    output.line("printed in: {} (seed {})", print.where, print.seed);
    output.raw(print.text);
    if (!print.text.ends_with('\n')) output.line();
  }
  if (verdict.good()) return;
  if (!verdict.findings.empty()) {
    const CaseFinding& first = verdict.findings.front();
    output.line("found in: {} (seed {})", first.where, first.seed);
    std::vector<emulator::Finding> findings;
    for (const CaseFinding& found : verdict.findings) findings.push_back(found.finding);
    output.line(std::string_view(long_text(findings)));
  }
  output.line("the same again: {}", replay_command(request, subject, verdict.seed));
}

// The spec that the header comment of an emitted kernel states.
codegen::KernelSpec stated_spec(const std::string& path, const std::string& source) {
  constexpr std::string_view kMark = "// spec: ";
  const std::size_t at = source.starts_with(kMark) ? 0 : source.find("\n" + std::string(kMark));
  if (at == std::string::npos)
    fail(ErrorCode::invalid_argument, "source: {} has no line that starts with '{}' (allowed: what attune emit writes)",
         path, kMark);
  const std::size_t begin = source.find(kMark, at) + kMark.size();
  return codegen::parse_kernel_spec(source.substr(begin, source.find('\n', begin) - begin));
}

// A kernel from its source rather than from the emitter: what stands in the file is what runs.
Subject subject_of_source(const std::string& path, const Problem& problem) {
  const std::string source = read_file(path);
  const codegen::KernelSpec spec = stated_spec(path, source);
  if (!codegen::serves(spec, problem))
    fail(ErrorCode::invalid_argument, "source: {} is a kernel for {}, which does not serve {}", path,
         codegen::to_string(spec), to_string(problem));
  Subject subject{problem, spec.config, {}, "source"};
  subject.build.info.spec = codegen::to_string(spec);
  subject.build.cubin = runtime::ptx_compiler()->compile(source, codegen::compile_options(spec)).cubin;
  return subject;
}

class Verifier {
 public:
  Verifier(const EmulatedVerifyRequest& request, std::stop_token stop, std::shared_ptr<runtime::CpuDevice> device,
           Output& output)
      : request_(request),
        gate_(std::move(device), {.seeds = request.seeds, .first_seed = request.first_seed, .stop = std::move(stop)}),
        output_(output) {}

  /// One that does not compile, or that the emulator refuses, is a row of the report.
  void verify(Subject subject) {
    if (subject.failure.empty()) {
      try {
        run(subject);
        return;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) throw;
        subject.failure = error.what();
      }
    }
    report_.add_failure(subject);
  }

  ExitCode finish() {
    output_.end_progress();
    report_.print(output_);
    for (const auto& [subject, verdict] : verdicts_) describe(request_, subject, verdict, output_);
    output_.line();
    output_.line("{:.1f} million PTX instructions on the CPU emulator in {:.1f} s",
                 static_cast<double>(instructions_) * 1e-6, seconds_);
    output_.document()["device"] = "cpu";
    return report_.finish(output_, "verify: a kernel does not build or is wrong, or the emulator found a fault in it");
  }

 private:
  void run(const Subject& subject) {
    const codegen::KernelSpec spec = codegen::parse_kernel_spec(subject.build.info.spec);
    say(subject, "small problems");
    if (!add(subject, "small", gate_.judge(spec, subject.build.cubin))) return;
    const double scores = score_elements(subject.problem);
    const bool backward = subject.problem.op == Op::backward;
    if (scores > (backward ? kLargestBackwardScores : kLargestScores)) {
      report_.skip(subject, "full size",
                   fmt::format("about {} on a CPU (run less of it: --batch, --heads, --seqlen)",
                               duration_text(scores / (backward ? kBackwardScoresPerSecond : kScoresPerSecond))));
      return;
    }
    say(subject, "full size");
    add(subject, "full size",
        gate_.judge(spec, subject.config, subject.build.cubin, subject.problem, affordable_rows(subject.problem)));
  }

  void say(const Subject& subject, const char* what) {
    output_.progress(fmt::format("{}  {}  {}", short_problem_text(subject.problem), subject.origin, what), true);
  }

  bool add(const Subject& subject, const char* what, const EmulatedVerdict& verdict) {
    tuner::Verdict row;
    row.judgement = verdict.judgement;
    if (!verdict.good()) {
      row.status = cache::TrialStatus::wrong;
      row.reason = summary(verdict);
    }
    Json& json = report_.add(subject, what, row);
    json["findings"] = Json::array();
    for (const CaseFinding& found : verdict.findings) json["findings"].push_back(case_json(found));
    json["printed"] = Json::array();
    for (const CasePrint& print : verdict.prints)
      json["printed"].push_back({{"case", print.where}, {"seed", print.seed}, {"text", print.text}});
    if (!verdict.good()) json["replay"] = replay_command(request_, subject, verdict.seed);
    json["instructions"] = verdict.instructions;
    json["seconds"] = verdict.seconds;
    verdicts_.emplace_back(subject, verdict);
    instructions_ += verdict.instructions;
    seconds_ += verdict.seconds;
    return verdict.good();
  }

  const EmulatedVerifyRequest& request_;
  EmulatedGate gate_;
  Output& output_;
  VerifyReport report_;
  std::vector<std::pair<Subject, EmulatedVerdict>> verdicts_;
  std::uint64_t instructions_ = 0;
  double seconds_ = 0;
};

}  // namespace

bool has_emulator() { return true; }

void require_emulator() {}

ExitCode verify_on_emulator(const EmulatedVerifyRequest& request, Output& output) {
  const SubjectRequest subject_request{request.problems, request.configs, request.pack, /*rebuild_pack=*/true};
  if (!request.source.empty() && !(request.configs.empty() && request.pack.empty()))
    fail(ErrorCode::invalid_argument, "source: excludes --config and --pack, since the file states its own config");
  check_subjects(subject_request, output);
  const Interrupt interrupt;
  const auto device = std::make_shared<runtime::CpuDevice>();
  // Nothing is kept on disk: the front end compiles in about a second, and the cache is for code that GPUs run.
  const cache::Store store = cache::Store::memory_only();
  runtime::Builder builder(store, [] { return runtime::ptx_compiler(); });
  Subjects subjects(subject_request, device->properties(), store, builder, output);
  Verifier verifier(request, interrupt.token(), device, output);
  if (request.source.empty()) {
    for (const Subject& subject : subjects.all()) verifier.verify(subject);
  } else {
    for (const Problem& problem : request.problems.problems(output))
      verifier.verify(subject_of_source(request.source, problem));
  }
  return verifier.finish();
}

EmulatedOutcome try_on_emulator(const codegen::KernelSpec& spec, const std::stop_token& stop) {
  const auto device = std::make_shared<runtime::CpuDevice>();
  runtime::Builder builder(cache::Store::memory_only(), [] { return runtime::ptx_compiler(); });
  EmulatedGate gate(device, {.stop = stop});
  const EmulatedVerdict verdict = gate.judge(spec, builder.build(spec).cubin);
  return {verdict.good(), verdict.good() ? "ok" : summary(verdict)};
}

}  // namespace attune::cli
