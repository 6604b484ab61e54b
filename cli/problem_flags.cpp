#include "cli/problem_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/fields.h"
#include "codegen/space.h"
#include "runtime/driver_device.h"

namespace attune::cli {
namespace {

constexpr const char* kProblemGroup = "Problem";

// The library's own check knows the range; here only what does not fit the type is refused.
int parse_dimension(const char* name, const std::string& text) {
  constexpr int kFar = 1 << 30;
  return static_cast<int>(parse_int(name, text, -kFar, kFar));
}

std::int64_t parse_length(const char* name, const std::string& text) {
  constexpr std::int64_t kFar = 1ll << 40;
  return parse_int(name, text, -kFar, kFar);
}

void require_work(const Problem& problem) {
  const auto check = [](const char* name, std::int64_t value) {
    if (value == 0) fail(ErrorCode::invalid_argument, "{}: 0 leaves nothing to compute (allowed: 1 and more)", name);
  };
  check("batch", problem.batch);
  check("seqlen_q", problem.seqlen_q);
  check("seqlen_k", problem.seqlen_k);
}

}  // namespace

// -- problem

void ProblemFlags::add(CLI::App& command) {
  const auto option = [&](const char* name, auto& value, const char* text, const char* type = "N") {
    return command.add_option(name, value, text)->group(kProblemGroup)->type_name(type);
  };
  option("--arch", arch_, "chip to compile for (default: sm_90a)", "NAME");
  option("--op", op_, "forward (default) or backward", "OP");
  option("--dtype", dtype_, "of Q, K, V and O: bf16 (default) or fp16", "TYPE");
  option("--head-dim", head_dim_, "of Q and K: 8, 16, ..., 256 (default: 128)");
  option("--head-dim-v", head_dim_v_, "of V and O (default: as --head-dim)");
  option("--heads", heads_, "query heads (default: 32)");
  option("--heads-kv", heads_kv_, "key and value heads, a divisor of --heads (default: as --heads)");
  option("--batch", batch_, "sequences (default: 4)");
  option("--seqlen", seqlen_, "queries and keys of a sequence (default: 4096)");
  option("--seqlen-q", seqlen_q_, "queries, where they differ from keys");
  option("--seqlen-k", seqlen_k_, "keys, where they differ from queries");
  command.add_flag("--causal", causal_, "mask aligned to the bottom right")->group(kProblemGroup);
  command.add_flag("--no-causal", not_causal_, "no mask (default)")->group(kProblemGroup);
  command.add_flag("--deterministic", deterministic_, "backward: dQ has the same bits in every run (slower)")
      ->group(kProblemGroup);
  option("--layout", layout_, "order of the dimensions in memory: bshd (default) or bhsd", "ORDER");
  option("--scores", scores_, "forward: what the kernel is chosen for, any (default) or peaked", "KIND");
  option("--problem", problem_, "canonical text, as `attune cache ls` prints it; other flags override its fields",
         "TEXT");
}

Problem ProblemFlags::over(Problem base) const {
  Problem p = base;
  if (op_) p.op = parse_op(*op_);
  if (deterministic_) p.deterministic = true;
  if (dtype_) p.dtype = parse_dtype(*dtype_);
  if (head_dim_) p.head_dim = p.head_dim_v = parse_dimension("head_dim", *head_dim_);
  if (head_dim_v_) p.head_dim_v = parse_dimension("head_dim_v", *head_dim_v_);
  if (heads_) p.heads = p.heads_kv = parse_dimension("heads", *heads_);
  if (heads_kv_) p.heads_kv = parse_dimension("heads_kv", *heads_kv_);
  if (batch_) p.batch = parse_length("batch", *batch_);
  if (seqlen_) p.seqlen_q = p.seqlen_k = parse_length("seqlen", *seqlen_);
  if (seqlen_q_) p.seqlen_q = parse_length("seqlen_q", *seqlen_q_);
  if (seqlen_k_) p.seqlen_k = parse_length("seqlen_k", *seqlen_k_);
  if (causal_ && not_causal_) fail(ErrorCode::invalid_argument, "causal: --causal and --no-causal exclude each other");
  if (causal_ || not_causal_) p.causal = causal_;
  if (layout_) p.layout = parse_layout(*layout_);
  if (scores_) p.scores = parse_score_kind(*scores_);
  return p;
}

Problem ProblemFlags::problem() const {
  const Problem p = over(problem_.empty() ? Problem{.batch = 4} : parse_problem(problem_));
  validate(p);
  require_work(p);
  return p;
}

Arch ProblemFlags::arch() const { return parse_arch(arch_); }

std::vector<std::string> ProblemFlags::given() const {
  std::vector<std::string> names;
  const auto note = [&](bool is_given, const char* name) {
    if (is_given) names.emplace_back(name);
  };
  note(op_.has_value(), "--op");
  note(dtype_.has_value(), "--dtype");
  note(head_dim_.has_value(), "--head-dim");
  note(head_dim_v_.has_value(), "--head-dim-v");
  note(heads_.has_value(), "--heads");
  note(heads_kv_.has_value(), "--heads-kv");
  note(batch_.has_value(), "--batch");
  note(seqlen_.has_value(), "--seqlen");
  note(seqlen_q_.has_value(), "--seqlen-q");
  note(seqlen_k_.has_value(), "--seqlen-k");
  note(causal_, "--causal");
  note(not_causal_, "--no-causal");
  note(deterministic_, "--deterministic");
  note(layout_.has_value(), "--layout");
  note(scores_.has_value(), "--scores");
  note(!problem_.empty(), "--problem");
  return names;
}

bool ProblemFlags::admits(const Problem& problem) const {
  if (!problem_.empty()) {
    const Problem asked = this->problem();
    return problem == asked || (!says_scores() && problem == peaked_twin(asked));
  }
  Problem wanted = over(problem);
  // --head-dim and --heads alone say nothing about their neighbours.
  if (!head_dim_v_) wanted.head_dim_v = problem.head_dim_v;
  if (!heads_kv_) wanted.heads_kv = problem.heads_kv;
  return wanted == problem;
}

// -- kernel

void KernelFlags::add(CLI::App& command) {
  problem.add(command);
  command.add_option("--config", config, "tunables, key=value,... (default: the best guess for the problem)")
      ->type_name("TEXT")
      ->group("Kernel");
  command.add_option("--spec", spec, "canonical text of a kernel, as it stands in its source; instead of a problem")
      ->type_name("TEXT")
      ->group("Kernel");
}

codegen::Config checked_config(const Arch& arch, const Problem& problem, const std::string& text) {
  const codegen::Config config = codegen::parse_config(text);
  if (const auto why = codegen::violates(arch, codegen::specialise(arch, problem, config)))
    fail(ErrorCode::invalid_argument, "config: {}", *why);
  return config;
}

codegen::KernelSpec checked_spec(const std::string& text) {
  const codegen::KernelSpec spec = codegen::parse_kernel_spec(text);
  if (const auto why = codegen::violates(parse_arch(spec.arch), spec))
    fail(ErrorCode::invalid_argument, "spec: {}", *why);
  return spec;
}

KernelFlags::Choice KernelFlags::choice() const {
  Choice choice;
  if (spec.empty()) {
    choice.problem = problem.problem();
    choice.config = config.empty() ? codegen::default_config(problem.arch(), *choice.problem)
                                   : checked_config(problem.arch(), *choice.problem, config);
    choice.spec = codegen::specialise(problem.arch(), *choice.problem, choice.config);
    return choice;
  }
  if (const auto given = problem.given(); !given.empty())
    fail(ErrorCode::invalid_argument, "spec: stands for a whole kernel and excludes {}", given.front());
  if (!config.empty()) fail(ErrorCode::invalid_argument, "spec: stands for a whole kernel and excludes --config");
  choice.spec = checked_spec(spec);
  choice.config = choice.spec.config;
  return choice;
}

// -- device

void DeviceFlag::add(CLI::App& command, bool takes_cpu) {
  takes_cpu_ = takes_cpu;
  command
      .add_option(
          "--device", device_,
          takes_cpu ? "ordinal of the GPU (default: 0), or `cpu`: the emulator" : "ordinal of the GPU (default: 0)")
      ->type_name(takes_cpu ? "N|cpu" : "N");
}

void DeviceFlag::refuse_cpu() {
  fail(
      ErrorCode::unsupported,
      "device: 'cpu' is for `attune verify` alone: the CPU emulator says nothing about time (allowed: the ordinal of a "
      "GPU)");
}

int DeviceFlag::ordinal() const {
  if (is_cpu()) refuse_cpu();
  int ordinal = 0;
  const auto [end, error] = std::from_chars(device_.data(), device_.data() + device_.size(), ordinal);
  if (error != std::errc() || end != device_.data() + device_.size() || ordinal < 0)
    fail(ErrorCode::invalid_argument, "device: '{}' is unknown (allowed: the ordinal of a GPU: 0, 1, ...{})", device_,
         takes_cpu_ ? "; cpu: the emulator" : "");
  return ordinal;
}

std::shared_ptr<runtime::Device> DeviceFlag::open() const { return runtime::open_device(ordinal()); }

// -- cache

void CacheFlag::add(CLI::App& command) {
  command
      .add_option("--cache-dir", directory_,
                  "folder of the cache (default: $ATTUNE_CACHE_DIR, $XDG_CACHE_HOME/attune or ~/.cache/attune)")
      ->type_name("DIR");
}

std::string CacheFlag::directory() const { return directory_.empty() ? cache::default_directory() : directory_; }

cache::Store CacheFlag::open(Output& output, bool read_only) const {
  cache::Options options;
  options.directory = directory();
  options.read_only = read_only;
  options.warn = [&output](const std::string& message) { output.warn(message); };
  return cache::Store::open(std::move(options));
}

cache::Store CacheFlag::require(Output& output, bool read_only) const {
  const std::string folder = directory();
  if (folder.empty())
    fail(ErrorCode::cache,
         "cache_dir: no folder for the cache (set --cache-dir, ATTUNE_CACHE_DIR, XDG_CACHE_HOME or HOME)");
  std::error_code error;
  if (read_only && !std::filesystem::exists(folder, error))
    fail(ErrorCode::cache, "cache_dir: {} does not exist", folder);
  cache::Store store = open(output, read_only);
  if (!store.stats().on_disk)
    fail(ErrorCode::cache, "cache_dir: {} {}", folder, read_only ? "holds no usable cache" : "cannot be used");
  return store;
}

// -- values

std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t low, std::int64_t high) {
  return parse_int(name, text, low, high);
}

std::vector<std::int64_t> parse_counts(const std::string& name, const std::string& text) {
  std::vector<std::int64_t> counts;
  std::size_t start = 0;
  for (;;) {
    const std::size_t comma = text.find(',', start);
    counts.push_back(parse_count(name, text.substr(start, comma - start), 1, 1ll << 31));
    if (comma == std::string::npos) return counts;
    start = comma + 1;
  }
}

namespace {

// A number with a unit of one letter; `factors` pairs letters and factors, 1 without a letter.
std::optional<double> parse_scaled(std::string_view text, std::initializer_list<std::pair<char, double>> factors) {
  double value = 0, factor = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.size() > 1) return std::nullopt;
  if (unit.size() == 1) {
    const auto* found = std::ranges::find(factors, unit[0], &std::pair<char, double>::first);
    if (found == factors.end()) return std::nullopt;
    factor = found->second;
  }
  return value * factor;
}

}  // namespace

double parse_duration(const std::string& name, const std::string& text) {
  const std::optional<double> seconds = parse_scaled(text, {{'s', 1}, {'m', 60}, {'h', 3600}});
  if (!seconds || !(*seconds > 0) || *seconds > 1e9)
    fail(ErrorCode::invalid_argument, "{}: '{}' is not a time (allowed: 90, 90s, 1.5m, 2h, ...)", name, text);
  return *seconds;
}

std::int64_t parse_bytes(const std::string& name, const std::string& text) {
  const std::optional<double> bytes =
      parse_scaled(text, {{'k', 0x1p10}, {'K', 0x1p10}, {'M', 0x1p20}, {'G', 0x1p30}, {'T', 0x1p40}});
  if (!bytes || !(*bytes >= 0) || *bytes > 0x1p60)
    fail(ErrorCode::invalid_argument, "{}: '{}' is not a size (allowed: 512, 64k, 4M, 2G, ...)", name, text);
  return static_cast<std::int64_t>(*bytes);
}

}  // namespace attune::cli
