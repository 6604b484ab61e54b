// attune verify --device cpu: the gate's small problems, and the problem itself where a CPU can run it, on the
// emulator.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "cli/emulator.h"
#include "cli/emulator/emulated_gate.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/verify_report.h"
#include "cli/verify_subjects.h"
#include "cli/wording.h"
#include "runtime/cpu/ptx_compiler.h"

namespace attune::cli {
namespace {

// Elements of the score matrices of all heads that a full-size run may have. The emulator does some 2 million of them a
// second at head dim 128.
constexpr double kLargestScores = 16e6;
constexpr double kScoresPerSecond = 2e6;
// Products of the host's reference, whose rows are sampled beyond that.
constexpr double kLargestReference = 2e9;

cache::Store memory_store() {
  cache::Options options;
  options.directory.clear();
  return cache::Store::open(std::move(options));
}

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

std::string position_text(const emulator::SourcePosition& at) {
  return at.file.empty() ? fmt::format("PTX line {}", at.ptx_line) : fmt::format("{}:{}", at.file, at.line);
}

std::string short_text(const emulator::Finding& finding) {
  return fmt::format("{} ({})", emulator::finding_kind_name(finding.kind), position_text(finding.at));
}

Json thread_json(const emulator::ThreadPosition& t) {
  return {{"block", {t.block.x, t.block.y, t.block.z}}, {"thread", {t.thread.x, t.thread.y, t.thread.z}}};
}

Json position_json(const emulator::SourcePosition& at) {
  Json json{{"file", at.file}, {"line", at.line}, {"ptx_line", at.ptx_line}, {"instruction", at.instruction}};
  if (!at.inlined_file.empty()) {
    json["inlined_file"] = at.inlined_file;
    json["inlined_line"] = at.inlined_line;
  }
  return json;
}

Json finding_json(const CaseFinding& found) {
  const emulator::Finding& f = found.finding;
  Json json{{"kind", emulator::finding_kind_name(f.kind)},
            {"message", f.message},
            {"case", found.where},
            {"seed", found.seed},
            {"count", f.count},
            {"thread", thread_json(f.thread)},
            {"at", position_json(f.at)}};
  if (f.other_thread) json["other_thread"] = thread_json(*f.other_thread);
  if (f.other_at) json["other_at"] = position_json(*f.other_at);
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

// What the table has no room for.
void describe(const Subject& subject, const EmulatedVerdict& verdict, Output& output) {
  if (verdict.findings.empty()) return;
  const CaseFinding& first = verdict.findings.front();
  output.line();
  output.line("{}  {}", problem_text(subject.problem), config_text(subject.config));
  output.line("found in: {} (seed {})", first.where, first.seed);
  emulator::Report report;
  for (const CaseFinding& found : verdict.findings) report.findings.push_back(found.finding);
  std::string text = report.text();
  text.resize(text.find_last_not_of('\n') + 1);
  output.line(text);
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
  Verifier(std::shared_ptr<runtime::CpuDevice> device, EmulatedGateOptions options, Output& output)
      : gate_(std::move(device), std::move(options)), output_(output) {}

  void verify(const Subject& subject) {
    const codegen::KernelSpec spec = codegen::parse_kernel_spec(subject.build.info.spec);
    say(subject, "small problems");
    if (!add(subject, "small", gate_.judge(spec, subject.build.cubin))) return;
    const double scores = score_elements(subject.problem);
    if (scores > kLargestScores) {
      report_.skip(subject, "full size",
                   fmt::format("about {} on a CPU (run less of it: --batch, --heads, --seqlen)",
                               duration_text(scores / kScoresPerSecond)));
      return;
    }
    say(subject, "full size");
    add(subject, "full size",
        gate_.judge(spec, subject.config, subject.build.cubin, subject.problem, affordable_rows(subject.problem)));
  }

  ExitCode finish() {
    output_.end_progress();
    report_.print(output_);
    for (const auto& [subject, verdict] : faulty_) describe(subject, verdict, output_);
    output_.line();
    output_.line("{:.1f} million PTX instructions on the CPU emulator in {:.1f} s",
                 static_cast<double>(instructions_) * 1e-6, seconds_);
    output_.document()["device"] = "cpu";
    return report_.finish(output_, "verify: a kernel is wrong, or the emulator found a fault in it");
  }

 private:
  void say(const Subject& subject, const char* what) {
    output_.progress(fmt::format("{}  {}  {}", short_problem_text(subject.problem), subject.origin, what), true);
  }

  bool add(const Subject& subject, const char* what, const EmulatedVerdict& verdict) {
    tuner::Verdict row;
    row.judgement = verdict.judgement;
    if (!verdict.good()) {
      row.status = cache::TrialStatus::wrong;
      row.reason = summary(verdict);
      faulty_.emplace_back(subject, verdict);
    }
    Json& json = report_.add(subject, what, row);
    json["findings"] = Json::array();
    for (const CaseFinding& found : verdict.findings) json["findings"].push_back(finding_json(found));
    json["instructions"] = verdict.instructions;
    json["seconds"] = verdict.seconds;
    instructions_ += verdict.instructions;
    seconds_ += verdict.seconds;
    return verdict.good();
  }

  EmulatedGate gate_;
  Output& output_;
  VerifyReport report_;
  std::vector<std::pair<Subject, EmulatedVerdict>> faulty_;
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
  const cache::Store store = memory_store();
  runtime::Builder builder(store, [] { return runtime::ptx_compiler(); });
  Subjects subjects(subject_request, device->properties(), store, builder, output);
  Verifier verifier(device, {.seeds = request.seeds, .stop = interrupt.token()}, output);
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
  runtime::Builder builder(memory_store(), [] { return runtime::ptx_compiler(); });
  EmulatedGate gate(device, {.stop = stop});
  const EmulatedVerdict verdict = gate.judge(spec, builder.build(spec).cubin);
  return {verdict.good(), verdict.good() ? "ok" : summary(verdict)};
}

}  // namespace attune::cli
