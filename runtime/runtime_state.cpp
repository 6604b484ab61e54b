#include "runtime/runtime_state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "runtime/tune_hook.h"

namespace attune::runtime {
namespace {

cache::Store open_store(const RuntimeOptions& options, const std::shared_ptr<Warnings>& warn) {
  cache::Options cache_options;
  if (!options.use_cache) {
    cache_options.directory.clear();  // asked for, so nothing to warn of
  } else {
    if (!options.cache_directory.empty()) cache_options.directory = options.cache_directory;
    cache_options.warn = [warn](const std::string& text) { (*warn)(text); };
  }
  return cache::Store::open(std::move(cache_options));
}

using CompilerSource = std::function<std::shared_ptr<const Compiler>()>;

CompilerSource compiler_of(const RuntimeOptions& options, CompilerSource compiler) {
  if (options.allow_compiler) return compiler;
  return []() -> std::shared_ptr<const Compiler> {
    fail(ErrorCode::unsupported,
         "allow_compiler: the runtime was created without a compiler, so kernels come from packs and the cache alone");
  };
}

std::vector<Pack> open_packs(const RuntimeOptions& options) {
  std::vector<Pack> packs;
  for (const std::string& folder : options.packs) {
    packs.push_back(read_pack(folder, {.allow_unsigned = options.allow_unsigned_packs}));
  }
  return packs;
}

// Whether another config may well do better: this one does not compile, spills, or its schedule was found faulty.
bool fault_of_one_config(const Error& error) {
  return error.code() == ErrorCode::compile_failed || error.code() == ErrorCode::internal;
}

// "0.000123 s", as packs state times.
std::optional<double> seconds_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || value <= 0) return std::nullopt;
  const std::string unit = end;
  if (unit == " s") return value;
  if (unit == " ms") return value * 1e-3;
  if (unit == " us") return value * 1e-6;
  return std::nullopt;
}

std::vector<codegen::SideLaunch> sides_of(const std::vector<PackSideLaunch>& sides) {
  std::vector<codegen::SideLaunch> all;
  for (const PackSideLaunch& side : sides) {
    all.push_back({.entry = side.entry,
                   .threads = static_cast<int>(side.threads),
                   .shared_bytes = static_cast<int>(side.shared_bytes)});
  }
  return all;
}

PlanSource pack_source(const Pack& pack, const PackEntry& entry) {
  PlanSource source;
  source.config = codegen::parse_config(entry.config);
  source.spec = codegen::parse_kernel_spec(entry.spec);
  const PackLaunch& l = entry.launch;
  source.shape = {.entry = l.entry,
                  .threads = static_cast<int>(l.threads),
                  .shared_bytes = static_cast<int>(l.shared_bytes),
                  .block_m = static_cast<int>(l.block_m),
                  .block_n = static_cast<int>(l.block_n),
                  .q_box_rows = static_cast<int>(l.q_box_rows),
                  .kv_box_rows = static_cast<int>(l.kv_box_rows),
                  .o_box_rows = static_cast<int>(l.o_box_rows),
                  .counter = l.counter,
                  .before = sides_of(l.before),
                  .after = sides_of(l.after),
                  .dq_rows = static_cast<int>(l.dq_rows)};
  source.cubin = pack.cubin(entry);
  source.build_key = entry.build_key;
  source.origin = Origin::pack;
  source.expected_seconds = seconds_of(entry.median);
  source.errors = entry.errors;
  return source;
}

}  // namespace

void Warnings::operator()(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!said_.insert(text).second) return;
  }
  if (sink_)
    sink_(text);
  else
    std::fprintf(stderr, "attune: %s\n", text.c_str());
}

RuntimeState::RuntimeState(RuntimeOptions options, std::shared_ptr<Device> device, CompilerSource compiler)
    : options_(std::move(options)),
      device_(std::move(device)),
      warn_(std::make_shared<Warnings>(options_.on_warning)),
      store_(open_store(options_, warn_)),
      builder_(store_, compiler_of(options_, std::move(compiler))),
      packs_(open_packs(options_)),
      context_(std::make_shared<PlanContext>(device_, options_.check_pointers)) {}

RuntimeState::~RuntimeState() {
  if (!tuner_.joinable()) return;
  tuner_.request_stop();
  more_jobs_.notify_all();
  tuner_.join();
}

Plan RuntimeState::plan(const Problem& problem, const PlanOptions& options) {
  validate(problem);
  if (!(options.tune_seconds > 0)) {
    fail(ErrorCode::invalid_argument, "tune_seconds: {} (allowed: above 0)", options.tune_seconds);
  }
  const bool captured = capturing(options);
  const std::shared_ptr<Entry> entry =
      entry_for(to_string(problem) + "|" + options.config + (options.pinned ? "|pinned" : ""));
  std::unique_lock lock(entry->mutex, std::defer_lock);
  if (captured) {
    // Whoever holds the lock is making the plan, which a capture must not wait for.
    if (!lock.try_lock() || !entry->plan) {
      fail(ErrorCode::not_prepared,
           "plan: the stream is being captured, where nothing may be compiled or loaded; call plan() for this problem "
           "before "
           "the capture ({})",
           to_string(problem));
    }
    return *entry->plan;
  }
  lock.lock();
  // A guess does not do where tuning was asked for.
  const bool enough =
      entry->plan && (options.on_miss != MissPolicy::tune || entry->plan->info().origin != Origin::heuristic);
  if (!enough) entry->plan = resolve(problem, options, entry);
  return *entry->plan;
}

std::shared_ptr<RuntimeState::Entry> RuntimeState::entry_for(const std::string& key) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = entries_[key];
  if (!entry) entry = std::make_shared<Entry>();
  return entry;
}

bool RuntimeState::capturing(const PlanOptions& options) {
  return options.stream.has_value() && device_->capturing(*options.stream);
}

Plan RuntimeState::resolve(const Problem& problem, const PlanOptions& options, const std::shared_ptr<Entry>& entry) {
  if (!options.config.empty()) return by_config(problem, codegen::parse_config(options.config), Origin::override);
  if (auto plan = from_packs(problem)) return adaptive(*plan, options);
  if (auto plan = from_cache(problem, Origin::cache)) return adaptive(*plan, options);
  store_.note_miss(plan_key(problem, device_identity(), codegen::emitter_digest()), to_string(problem));
  switch (options.on_miss) {
    case MissPolicy::fail:
      fail(ErrorCode::not_prepared,
           "plan: nobody has tuned this problem for this device, and the miss policy is `fail` ({})",
           to_string(problem));
    case MissPolicy::tune: return adaptive(tuned(problem, options.tune_seconds, {}), options);
    case MissPolicy::background:
      if (!entry->queued) queue_tuning(problem, options, entry);
      entry->queued = true;
      break;
    case MissPolicy::heuristic:
      (*warn_)(fmt::format("nobody has tuned this problem for this device; using a guess: {}", to_string(problem)));
      break;
  }
  return adaptive(by_heuristic(problem), options);
}

Plan RuntimeState::adaptive(Plan plan, const PlanOptions& options) {
  const std::optional<Problem> peaked = peaked_twin(plan.problem());
  if (options.pinned || !peaked || !speculates(codegen::parse_config(plan.info().config))) return plan;
  try {
    std::optional<Plan> exact = from_packs(*peaked);
    if (!exact) exact = from_cache(*peaked, Origin::cache);
    // What packs or the cache have needs no compiler, and is not to wait for one.
    const Origin origin = plan.info().origin;
    if (!exact && (origin == Origin::heuristic || origin == Origin::tuned)) exact = by_heuristic(*peaked);
    if (exact && !speculates(codegen::parse_config(exact->info().config))) return adaptive_plan(plan, *exact);
  } catch (const Error& error) {
    // It is as right without one.
    (*warn_)(fmt::format("no second kernel, for peaked scores: {} ({})", error.what(), to_string(plan.problem())));
  }
  return plan;
}

std::optional<Plan> RuntimeState::from_packs(const Problem& problem) {
  if (packs_.empty()) return std::nullopt;
  const std::string arch = arch_of(device_->properties()).name;
  for (const Pack& pack : packs_) {
    for (const PackEntry* entry : pack.find(to_string(problem), arch)) {
      try {
        return make_plan(context_, problem, pack_source(pack, *entry));
      } catch (const Error& error) {
        if (error.code() == ErrorCode::out_of_memory) throw;
        (*warn_)(fmt::format("pack {}: skipping an entry: {}", pack.directory(), error.what()));
      }
    }
  }
  return std::nullopt;
}

std::optional<Plan> RuntimeState::from_cache(const Problem& problem, Origin origin) {
  const std::optional<cache::Winner> winner =
      store_.winner(plan_key(problem, device_identity(), codegen::emitter_digest()));
  if (!winner) return std::nullopt;
  // The winner comes first. The rest of the tie set is as good, and may be there when the winner's code is not.
  for (const cache::Standing& standing : winner->tie_set) {
    const std::string errors = standing.config == winner->config ? winner->errors : "";
    if (auto plan = from_standing(problem, standing, errors, origin)) return plan;
  }
  return std::nullopt;
}

std::optional<Plan> RuntimeState::from_standing(const Problem& problem, const cache::Standing& standing,
                                                const std::string& errors, Origin origin) {
  try {
    const codegen::Config config = codegen::parse_config(standing.config);
    std::optional<Build> build;
    if (!standing.build_key.empty()) build = builder_.find(standing.build_key);
    if (!build) build = builder_.build(codegen::specialise(arch_of(device_->properties()), problem, config));
    PlanSource source = plan_source(*build, config, origin);
    source.expected_seconds = standing.median;
    source.errors = errors;
    return make_plan(context_, problem, std::move(source));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::out_of_memory) throw;
    (*warn_)(fmt::format("cache: skipping a winner: {}", error.what()));
    return std::nullopt;
  }
}

Plan RuntimeState::by_config(const Problem& problem, const codegen::Config& config, Origin origin) {
  const Arch arch = arch_of(device_->properties());
  const codegen::KernelSpec spec = codegen::specialise(arch, problem, config);
  if (const std::optional<std::string> why = codegen::violates(arch, spec)) {
    fail(ErrorCode::invalid_argument, "config: {} ({})", *why, codegen::to_string(config));
  }
  return make_plan(context_, problem, plan_source(builder_.build(spec), config, origin));
}

Plan RuntimeState::by_heuristic(const Problem& problem) {
  const Arch arch = arch_of(device_->properties());
  std::string last;
  std::vector<codegen::Config> guesses = codegen::tabled_guesses(arch, problem);
  bool all = false;
  for (std::size_t i = 0;; ++i) {
    // More, which begin with the same, only where they are needed: listing a space may take longer than a build.
    if (i == guesses.size() && !all) {
      guesses = codegen::default_configs(arch, problem);
      all = true;
    }
    if (i >= guesses.size()) break;
    try {
      return by_config(problem, guesses[i], Origin::heuristic);
    } catch (const Error& error) {
      if (!fault_of_one_config(error)) throw;
      if (last.empty()) (*warn_)(fmt::format("the best guess does not build cleanly, trying others: {}", error.what()));
      last = error.what();
    }
  }
  fail(ErrorCode::compile_failed, "plan: no guess builds cleanly for {} (the last one: {})", to_string(problem), last);
}

Plan RuntimeState::tuned(const Problem& problem, double seconds, std::stop_token stop) {
  const std::shared_ptr<TuneHook> hook = tune_hook();
  if (!hook) {
    fail(ErrorCode::unsupported,
         "on_miss: this process has no tuner (allowed here: heuristic, fail); run `attune tune`");
  }
  hook->tune({problem, device_, store_, seconds}, std::move(stop));
  if (auto plan = from_cache(problem, Origin::tuned)) return *plan;
  fail(ErrorCode::internal, "tune: the tuner left no winner for {}", to_string(problem));
}

void RuntimeState::queue_tuning(const Problem& problem, const PlanOptions& options,
                                const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back({problem, options, entry});
  if (!tuner_.joinable()) tuner_ = std::jthread([this](std::stop_token stop) { tune_in_background(std::move(stop)); });
  more_jobs_.notify_all();
}

void RuntimeState::tune_in_background(std::stop_token stop) {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!more_jobs_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    if (stop.stop_requested()) return;
    try {
      Plan plan = adaptive(tuned(job.problem, job.options.tune_seconds, stop), job.options);
      const std::lock_guard lock(job.entry->mutex);
      job.entry->plan = std::move(plan);
    } catch (const std::exception& error) {
      if (!stop.stop_requested()) {
        (*warn_)(fmt::format("tuning in the background failed, the guess stays: {}", error.what()));
      }
    }
  }
}

}  // namespace attune::runtime
