#include "tuner/tuner.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.h"
#include "tuner/environment.h"
#include "tuner/forecast.h"
#include "tuner/kernel_pool.h"
#include "tuner/problem_tuner.h"
#include "tuner/run.h"
#include "tuner/worker_measurer.h"
#include "tuner/worker_path.h"

namespace attune::tuner {
namespace {

// The rest is for racing, which must not starve where compiling is slow. Most of it goes on beside the compiling, but
// races under load take longer.
double compile_share(const Request& request) { return request.sustained ? 0.5 : 0.7; }

void check(const Request& request) {
  const auto at_least = [](const char* name, double value, double least) {
    if (!(value >= least)) fail(ErrorCode::invalid_argument, "{}: {} (allowed: {} and more)", name, value, least);
  };
  if (request.problems.empty()) fail(ErrorCode::invalid_argument, "problems: none (allowed: 1 and more)");
  for (const Problem& problem : request.problems) validate(problem);
  if (request.devices.empty()) fail(ErrorCode::invalid_argument, "devices: none (allowed: 1 and more)");
  if (!(request.seconds > 0)) fail(ErrorCode::invalid_argument, "seconds: {} (allowed: above 0)", request.seconds);
  if (!(request.hang_seconds > 0))
    fail(ErrorCode::invalid_argument, "hang_seconds: {} (allowed: above 0)", request.hang_seconds);
  at_least("max_candidates", request.max_candidates, 1);
  at_least("min_raced", request.min_raced, 0);
  at_least("compile_threads", request.compile_threads, 0);
  if (request.shard.count < 1 || request.shard.index < 0 || request.shard.index >= request.shard.count) {
    fail(ErrorCode::invalid_argument, "shard: {}/{} (allowed: 0 <= index < count)", request.shard.index,
         request.shard.count);
  }
}

bool share_kernels(const Problem& a, const Problem& b) {
  return a.dtype == b.dtype && a.head_dim == b.head_dim && a.head_dim_v == b.head_dim_v && a.causal == b.causal &&
         a.scores == b.scores;
}

// This shard's problems, each once, in the order of the request.
std::vector<Problem> share_of(const Request& request) {
  std::vector<Problem> all, mine;
  for (const Problem& problem : request.problems)
    if (std::find(all.begin(), all.end(), problem) == all.end()) all.push_back(problem);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (static_cast<int>(i % static_cast<std::size_t>(request.shard.count)) == request.shard.index)
      mine.push_back(all[i]);
  return mine;
}

// Code of the kernels that measuring needs beside the candidates.
struct ToolCode {
  std::shared_ptr<const std::string> helpers;
  std::map<std::string, std::shared_ptr<const std::string>> references;  // by text of the spec
};

std::string reference_code(const runtime::Compiler& compiler, runtime::Builder& builder,
                           const codegen::KernelSpec& spec) {
  // The cache may know that it spills, which is nothing to the yardstick, and so hold no code.
  std::string cubin = builder.build(spec).cubin;
  if (!cubin.empty()) return cubin;
  return compiler.compile(codegen::emit(spec).source, runtime::checked_options(codegen::compile_options(spec))).cubin;
}

std::shared_ptr<const std::string> shared_code(std::string cubin) {
  return std::make_shared<const std::string>(std::move(cubin));
}

// Compiled beside the first kernels.
std::future<ToolCode> compile_tools(const runtime::Compiler& compiler, runtime::Builder& builder, const Arch& arch,
                                    const std::vector<Problem>& problems) {
  return std::async(std::launch::async, [&compiler, &builder, arch, problems] {
    ToolCode tools;
    tools.helpers = shared_code(compiler.compile(std::string(helpers_source()), helpers_options(arch.name)).cubin);
    for (const Problem& problem : problems) {
      for (const std::string& spec : reference_specs(arch, problem)) {
        if (!tools.references.contains(spec))
          tools.references[spec] = shared_code(reference_code(compiler, builder, codegen::parse_kernel_spec(spec)));
      }
    }
    return tools;
  });
}

void give_tools(Measurer& measurer, const ToolCode& tools) {
  measurer.set_helpers(tools.helpers);
  for (const auto& [spec, cubin] : tools.references) measurer.set_reference(spec, cubin);
}

// Hands problems to the devices, the heaviest first; a device that fails gives its problem back. Those that were cut
// short come again when all have been served, since others leave some of their time, as long as that completes any.
class Queue {
 public:
  explicit Queue(std::deque<ProblemTuner*> order) : order_(std::move(order)) {
    for (const ProblemTuner* tuner : order_) weight_ += tuner->weight();
  }

  /// The next problem, and how much of the time is its. Null when all are done; while others are under way it waits,
  /// since one of them may come back.
  ProblemTuner* next(const StopCondition& stop, std::size_t devices, double* seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !order_.empty() || under_way_ == 0; });
    if (order_.empty() && std::exchange(completed_, false) && !failed_ && !stop.expired()) {
      order_ = std::exchange(cut_short_, {});
      weight_ = 0;
      for (const ProblemTuner* tuner : order_) weight_ += tuner->weight();
    }
    if (order_.empty()) return nullptr;
    ProblemTuner* const tuner = order_.front();
    order_.pop_front();
    ++under_way_;
    *seconds = stop.seconds_left() * std::min(1.0, tuner->weight() / weight_ * static_cast<double>(devices));
    weight_ = std::max(weight_ - tuner->weight(), 1e-9);
    return tuner;
  }
  void finished(ProblemTuner* tuner) {
    const std::lock_guard lock(mutex_);
    tuner->cut_short() ? cut_short_.push_back(tuner) : void(completed_ = true);
    --under_way_;
    changed_.notify_all();
  }
  /// It threw: the run as a whole will, too.
  void failed() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    --under_way_;
    changed_.notify_all();
  }
  void give_back(ProblemTuner* tuner) {
    const std::lock_guard lock(mutex_);
    order_.push_front(tuner);
    weight_ += tuner->weight();
    --under_way_;
    changed_.notify_all();
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return order_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ProblemTuner*> order_, cut_short_;
  bool completed_ = false;  // any since all were served
  bool failed_ = false;
  int under_way_ = 0;
  double weight_ = 0;
};

// What went wrong on any of the devices, the first of each kind.
struct Failures {
  std::mutex mutex;
  std::exception_ptr hardware, other;
};

void serve(Measurer& measurer, Queue& queue, const StopCondition& stop, std::size_t devices, Failures& failures) {
  double seconds = 0;
  while (ProblemTuner* const tuner = queue.next(stop, devices, &seconds)) {
    try {
      tuner->run(measurer, stop.slice(seconds));
      queue.finished(tuner);
    } catch (const HardwareFailure&) {
      queue.give_back(tuner);
      const std::lock_guard lock(failures.mutex);
      if (!failures.hardware) failures.hardware = std::current_exception();
      return;
    } catch (...) {
      queue.failed();
      const std::lock_guard lock(failures.mutex);
      if (!failures.other) failures.other = std::current_exception();
      return;
    }
  }
}

}  // namespace

bool is_twin(const std::vector<Problem>& problems, const Problem& problem) {
  return std::ranges::any_of(problems, [&](const Problem& other) { return peaked_twin(other) == problem; });
}

Report tune_with(const Request& request, const Hooks& hooks, const MeasurerFactory& make_measurer) {
  check(request);
  const std::vector<Problem> problems = share_of(request);
  const StopCondition stop(request.seconds, hooks.stop);
  Report report;
  if (problems.empty()) return report;

  Forecast forecast;
  std::mutex progress_mutex;
  Progress shown;
  shown.problem = problems.front();
  shown.problems = static_cast<int>(problems.size());
  const auto show = [&](const Progress& progress) {
    if (!hooks.progress) return;
    const std::lock_guard lock(progress_mutex);
    Progress full = progress;
    const auto at = std::find(problems.begin(), problems.end(), progress.problem);
    full.problem_index = static_cast<int>(at - problems.begin());
    full.problems = static_cast<int>(problems.size());
    full.seconds = stop.elapsed();
    if (progress.phase != Phase::starting)
      full.seconds_left = std::min(forecast.seconds_left(full), stop.seconds_left());
    hooks.progress(full);
  };
  show(shown);

  const std::shared_ptr<const runtime::Compiler> compiler = request.compiler();
  const std::unique_ptr<Measurer> first = make_measurer(request.devices.front());
  const DeviceInfo& device = first->device();
  report.device = device.properties.name;
  report.identity = runtime::identity_text(device.properties);
  report.environment = environment_text(device, compiler->version());

  runtime::Builder builder(request.store, [compiler] { return compiler; });
  const unsigned hardware = std::max(std::thread::hardware_concurrency(), 1u);
  KernelPool pool(builder, request.compile_threads > 0 ? request.compile_threads : static_cast<int>(hardware));
  RunContext run{.request = request,
                 .pool = pool,
                 .arch = runtime::arch_of(device.properties),
                 .identity = report.identity,
                 .environment = report.environment,
                 .session = new_session(),
                 .compile_stop = stop.slice(compile_share(request) * request.seconds),
                 .progress = show};

  // The heaviest first: its kernels serve the others too, and it is the one that must not be cut short. Peaked twins
  // last: a guess at their kernel does until then.
  std::vector<std::size_t> order(problems.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (problems[a].scores != problems[b].scores) return problems[a].scores < problems[b].scores;
    return flops(problems[a]) > flops(problems[b]);
  });
  std::vector<std::unique_ptr<ProblemTuner>> tuners(problems.size());
  std::deque<ProblemTuner*> unknown;
  std::vector<std::future<void>> preparations;
  for (const std::size_t i : order) {
    const bool leading = std::none_of(unknown.begin(), unknown.end(), [&](const ProblemTuner* earlier) {
      return share_kernels(earlier->report().problem, problems[i]);
    });
    tuners[i] = std::make_unique<ProblemTuner>(run, problems[i], leading);
    if (tuners[i]->known()) continue;
    unknown.push_back(tuners[i].get());
    preparations.push_back(std::async(std::launch::async, [tuner = unknown.back()] { tuner->prepare(); }));
  }
  KernelTexts preferred;
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    preparations[i].get();
    unknown[i]->select(preferred);
    forecast.expect(unknown[i]->report().problem, unknown[i]->weight());
  }

  Failures failures;
  Queue queue(unknown);
  if (!unknown.empty()) {
    const ToolCode tools = compile_tools(*compiler, builder, run.arch, problems).get();
    give_tools(*first, tools);
    std::vector<std::jthread> others;
    for (std::size_t d = 1; d < request.devices.size(); ++d) {
      others.emplace_back([&, name = request.devices[d]] {
        try {
          const std::unique_ptr<Measurer> measurer = make_measurer(name);
          const std::string identity = runtime::identity_text(measurer->device().properties);
          if (identity != report.identity) {
            fail(ErrorCode::invalid_argument, "devices: {} is '{}', {} is '{}' (allowed: equal devices)", name,
                 identity, request.devices.front(), report.identity);
          }
          give_tools(*measurer, tools);
          serve(*measurer, queue, stop, request.devices.size(), failures);
        } catch (...) {
          const std::lock_guard lock(failures.mutex);
          if (!failures.other) failures.other = std::current_exception();
        }
      });
    }
    serve(*first, queue, stop, request.devices.size(), failures);
    for (std::jthread& thread : others) thread.join();
    // Given back by a failed device, and none was left to take it.
    if (failures.hardware && !failures.other && !queue.empty()) std::rethrow_exception(failures.hardware);
    if (failures.other) std::rethrow_exception(failures.other);
  }
  pool.drop_waiting();

  for (const std::unique_ptr<ProblemTuner>& tuner : tuners) report.problems.push_back(tuner->report());
  report.interrupted = stop.interrupted();
  report.out_of_time = stop.expired() && !report.interrupted && report.complete() < static_cast<int>(problems.size());
  const KernelPool::Totals totals = pool.totals();
  report.kernels = totals.kernels;
  report.compiled = totals.compiled;
  report.rejected = totals.rejected;
  report.seconds = stop.elapsed();
  if (totals.last_build > 0) report.compile_seconds = report.seconds - (steady_seconds() - totals.last_build);
  shown.phase = Phase::done;
  show(shown);
  return report;
}

Report tune(const Request& request, const Hooks& hooks) {
  check(request);
  const std::string worker = request.worker.empty() ? find_worker() : request.worker;
  std::mutex warn_mutex;
  const auto warn = [&](const std::string& text) {
    const std::lock_guard lock(warn_mutex);
    if (hooks.warn) hooks.warn(text);
  };
  return tune_with(request, hooks, [&](const std::string& device) {
    WorkerOptions options;
    options.path = worker;
    options.device = device;
    options.hang_seconds = request.hang_seconds;
    options.stop = hooks.stop;
    options.warn = warn;
    return std::make_unique<WorkerMeasurer>(std::move(options));
  });
}

}  // namespace attune::tuner
