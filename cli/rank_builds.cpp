#include "cli/rank_builds.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "cli/emulator.h"
#include "cli/problem_flags.h"
#include "cli/ranking.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "runtime/builder.h"

namespace attune::cli {
namespace {

struct Job {
  codegen::KernelSpec spec;
  std::optional<runtime::Build> build;  // nothing: not compiled in time, or `failure` says why not
  std::string failure;
  std::optional<EmulatedOutcome> outcome;  // on the CPU emulator
};

bool accepted(const Job& job) { return job.build && job.build->info.rejected.empty(); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

struct Line {
  RankedConfig ranked;
  Job* job;
};

// The best configs of a problem, one for each kernel: launch parts that differ compile to the same code.
std::vector<RankedConfig> choose(const RankBuildsRequest& request, const Problem& problem) {
  std::vector<RankedConfig> chosen;
  for (const std::string& text : request.configs) {
    const codegen::Config config = checked_config(request.arch, problem, text);
    chosen.push_back({config, codegen::estimate(request.arch, problem, config)});
  }
  if (!request.configs.empty()) return chosen;
  std::set<std::string> kernels;
  for (RankedConfig& r : ranked_candidates(request.arch, problem)) {
    if (static_cast<int>(chosen.size()) == request.builds) break;
    if (kernels.insert(codegen::kernel_part(r.config)).second) chosen.push_back(std::move(r));
  }
  return chosen;
}

void compile(const RankBuildsRequest& request, std::vector<Job*> jobs, Output& output) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.seconds));
  runtime::Builder builder(request.store);
  std::atomic<std::size_t> next{0}, done{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      if (request.stop.stop_requested() || Clock::now() >= end) return;
      try {
        jobs[i]->build = builder.build(jobs[i]->spec);
      } catch (const std::exception& error) {
        jobs[i]->failure = first_line(error.what());
      }
      output.progress(fmt::format("compiling  {}/{}", ++done, jobs.size()));
    }
  };
  std::vector<std::jthread> threads;
  const std::size_t count = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, jobs.size());
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
  threads.clear();
  output.end_progress();
}

// Of each problem the best kernels that were accepted.
void emulate(const RankBuildsRequest& request, const std::vector<std::vector<Line>>& problems, Output& output) {
  for (std::size_t i = 0; i < problems.size(); ++i) {
    int tried = 0;
    for (const Line& line : problems[i]) {
      Job& job = *line.job;
      if (tried == request.emulate || request.stop.stop_requested()) break;
      if (!accepted(job)) continue;
      ++tried;
      if (job.outcome) continue;
      output.progress(
          fmt::format("{}  on the emulator  {}/{}", short_problem_text(request.problems[i]), tried, request.emulate));
      try {
        job.outcome = try_on_emulator(job.spec, request.stop);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) break;
        job.outcome = {false, "failed: " + first_line(error.what())};
      }
    }
  }
  output.end_progress();
}

std::string verdict(const Job& job) {
  if (!job.failure.empty()) return "failed: " + job.failure;
  if (!job.build) return "not compiled";
  if (!accepted(job)) return "rejected: " + job.build->info.rejected;
  if (!job.outcome) return "accepted";
  return job.outcome->good ? "accepted, right on the emulator" : "on the emulator: " + job.outcome->text;
}

Json line_json(const Line& line) {
  Json json{{"config", codegen::to_string(line.ranked.config)},
            {"spec", codegen::to_string(line.job->spec)},
            {"estimate", estimate_json(line.ranked.estimate)},
            {"verdict", verdict(*line.job)}};
  if (line.job->outcome) json["emulator"] = {{"ok", line.job->outcome->good}, {"text", line.job->outcome->text}};
  if (line.job->build) {
    json["build_key"] = line.job->build->key;
    json["registers"] = line.job->build->info.registers;
    json["compile_ms"] = line.job->build->info.compile_ms;
    json["from_cache"] = line.job->build->from_cache;
  }
  return json;
}

void print(const Problem& problem, const std::vector<Line>& lines, Output& output) {
  output.line("{}: by the cost model, nothing was measured", problem_text(problem));
  Table table({{"#"},
               {"config", Align::left},
               {"estimate"},
               {"TFLOP/s"},
               {"limit", Align::left},
               {"registers"},
               {"cubin"},
               {"compile"},
               {"verdict", Align::left}});
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const codegen::CostEstimate& e = lines[i].ranked.estimate;
    const Job& job = *lines[i].job;
    std::string registers, size, time;
    if (job.build) {
      registers = std::to_string(job.build->info.registers);
      size = job.build->cubin.empty() ? "" : bytes_text(static_cast<std::int64_t>(job.build->cubin.size()));
      time = job.build->from_cache ? "cached" : fmt::format("{:.0f} ms", job.build->info.compile_ms);
    }
    table.row({std::to_string(i + 1), config_text(lines[i].ranked.config), seconds_text(e.total),
               tflops_text(problem, e.total), e.limit, registers, size, time, verdict(job)});
  }
  table.print(output);
  output.line();
}

}  // namespace

ExitCode rank_builds(const RankBuildsRequest& request, Output& output) {
  if (request.emulate > 0) require_emulator();
  runtime::Compiler::get();  // without NVRTC nothing below makes sense: its error comes first, once
  std::map<std::string, Job> jobs;
  std::vector<Job*> order;
  std::vector<std::vector<Line>> problems;
  for (const Problem& problem : request.problems) {
    std::vector<Line>& lines = problems.emplace_back();
    for (RankedConfig& ranked : choose(request, problem)) {
      const codegen::KernelSpec spec = codegen::specialise(request.arch, problem, ranked.config);
      const auto [job, fresh] = jobs.try_emplace(codegen::to_string(spec), Job{spec, {}, {}, {}});
      if (fresh) order.push_back(&job->second);
      lines.push_back({std::move(ranked), &job->second});
    }
  }
  compile(request, order, output);
  if (request.emulate > 0) emulate(request, problems, output);

  Json list = Json::array();
  bool every_problem = true, every_right = true;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    print(request.problems[i], problems[i], output);
    Json candidates = Json::array();
    bool any = false;
    for (const Line& line : problems[i]) {
      candidates.push_back(line_json(line));
      any = any || accepted(*line.job);
      every_right = every_right && (!line.job->outcome || line.job->outcome->good);
    }
    every_problem = every_problem && any;
    list.push_back({{"problem", to_string(request.problems[i])}, {"candidates", std::move(candidates)}});
  }
  const auto built = std::ranges::count_if(order, [](const Job* job) { return job->build.has_value(); });
  const auto kept = std::ranges::count_if(order, [](const Job* job) { return accepted(*job); });
  output.line("{} kernels compiled, {} accepted and kept in {}.", built, kept, cache::Store(request.store).directory());
  output.line(request.emulate > 0
                  ? "How fast they are needs a GPU: attune tune, without --no-gpu."
                  : "Whether they are right and how fast they are needs a GPU: attune tune, without --no-gpu.");
  output.document()["measured"] = false;
  output.document()["problems"] = std::move(list);
  if (request.stop.stop_requested()) {
    output.error("interrupted; the kernels so far are kept");
    return ExitCode::interrupted;
  }
  if (!every_right) {
    output.error("tune: a kernel is wrong, or the emulator found a fault in it");
    return ExitCode::failure;
  }
  if (built < static_cast<std::ptrdiff_t>(order.size())) return built > 0 ? ExitCode::partly_tuned : ExitCode::failure;
  return every_problem ? ExitCode::ok : ExitCode::partly_tuned;
}

}  // namespace attune::cli
