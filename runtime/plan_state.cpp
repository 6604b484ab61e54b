#include "runtime/plan_state.h"

#include <cmath>
#include <ranges>

#include "base/error.h"
#include "runtime/backward_plan.h"
#include "runtime/forward_plan.h"

namespace attune::runtime {
namespace {

// Below 2^31, so that a kernel may add its grid to a tile's number.
constexpr std::int64_t kMaxTiles = (1ll << 31) - (1 << 20);

void check_kernel(const CubinInfo& cubin, const std::string& entry, int threads) {
  const auto kernel = std::ranges::find(cubin.kernels, entry, &CubinKernel::name);
  if (kernel == cubin.kernels.end()) fail(ErrorCode::not_found, "cubin: holds no kernel '{}'", entry);
  if (kernel->max_threads != 0 && threads > kernel->max_threads) {
    fail(ErrorCode::invalid_argument, "cubin: {} allows {} threads a block, but {} are to be launched", kernel->name,
         kernel->max_threads, threads);
  }
}

void check_code(const Device& device, const CubinInfo& cubin, const codegen::LaunchShape& shape) {
  const DeviceProperties& p = device.properties();
  if (cubin.sm != p.compute_capability) {
    fail(ErrorCode::unsupported, "cubin: compiled for sm_{}, but device {} ({}) is sm_{}", cubin.sm, p.ordinal, p.name,
         p.compute_capability);
  }
  check_kernel(cubin, shape.entry, shape.threads);
  for (const auto* sides : {&shape.before, &shape.after})
    for (const codegen::SideLaunch& side : *sides) check_kernel(cubin, side.entry, side.threads);
}

void check_shared(const Device& device, int bytes) {
  const int limit = device.properties().shared_per_block;
  if (bytes > limit) fail(ErrorCode::unsupported, "shared memory: {} bytes needed, {} available", bytes, limit);
}

bool is_block(int threads, int shared_bytes) { return threads >= 32 && threads <= 1024 && shared_bytes >= 0; }

void check_shape(const Device& device, Op op, const codegen::LaunchShape& shape) {
  check_shared(device, shape.shared_bytes);
  const auto box = [](int rows) { return rows >= 1 && rows <= 256; };
  if (!is_block(shape.threads, shape.shared_bytes) || shape.block_m < 1 || (op == Op::backward && shape.block_n < 1) ||
      !box(shape.q_box_rows) || !box(shape.kv_box_rows) || !box(shape.o_box_rows)) {
    fail(ErrorCode::invalid_argument,
         "launch shape: {} threads, {} bytes of shared memory, tiles of {}x{}, boxes of {}, {} and {} rows make no "
         "sense",
         shape.threads, shape.shared_bytes, shape.block_m, shape.block_n, shape.q_box_rows, shape.kv_box_rows,
         shape.o_box_rows);
  }
  if (op == Op::backward && shape.before.empty())
    fail(ErrorCode::invalid_argument, "launch shape: {} needs a kernel before it", shape.entry);
  for (const auto* sides : {&shape.before, &shape.after}) {
    for (const codegen::SideLaunch& side : *sides) {
      check_shared(device, side.shared_bytes);
      if (!is_block(side.threads, side.shared_bytes)) {
        fail(ErrorCode::invalid_argument, "launch shape: {} threads, {} bytes of shared memory for {} make no sense",
             side.threads, side.shared_bytes, side.entry);
      }
    }
  }
}

void check_tiles(const char* rows_name, std::int64_t rows, int block, const char* heads_name, int heads,
                 std::int64_t batch) {
  const std::int64_t tiles =
      blocks_over(rows, block) * heads * batch;  // heads * batch is at most 2^30, says validate()
  if (tiles > kMaxTiles) {
    fail(ErrorCode::invalid_argument, "{}: {} x {} = {} x batch = {} make {} tiles of {} rows (allowed: up to {})",
         rows_name, rows, heads_name, heads, batch, tiles, block, kMaxTiles);
  }
}

[[noreturn]] void refuse(Op op, Op given) {
  const auto name = [](Op which) { return which == Op::forward ? "ForwardArgs" : "BackwardArgs"; };
  fail(ErrorCode::invalid_argument, "args: {} for a plan of op = {} (allowed: {})", name(given), to_string(op),
       name(op));
}

}  // namespace

PlanContext::PlanContext(std::shared_ptr<Device> device, bool check_pointers)
    : device_(std::move(device)), check_pointers_(check_pointers) {}

WorkspacePool& PlanContext::workspaces() {
  const std::lock_guard lock(mutex_);
  if (!workspaces_) workspaces_ = std::make_unique<WorkspacePool>(*device_);
  return *workspaces_;
}

PlanSource plan_source(const Build& build, const codegen::Config& config, Origin origin) {
  require_accepted(build);
  PlanSource source;
  source.config = config;
  source.spec = codegen::parse_kernel_spec(build.info.spec);
  source.shape = build.info.shape;
  source.cubin = build.cubin;
  source.build_key = build.key;
  source.origin = origin;
  return source;
}

Plan make_plan(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source) {
  if (problem.op == Op::backward)
    return Plan(std::make_shared<const BackwardPlan>(std::move(context), problem, source));
  return Plan(std::make_shared<const ForwardPlan>(std::move(context), problem, source));
}

bool speculates(const codegen::Config& config) {
  return config.family == codegen::Family::sm90 && config.softmax != codegen::Softmax::exact;
}

Plan adaptive_plan(const Plan& plan, const Plan& exact) {
  const auto kernel_of = [](const Plan& of) {
    auto kernel = std::dynamic_pointer_cast<const ForwardPlan>(of.state());
    if (!kernel) fail(ErrorCode::internal, "plan: {} has no forward kernel of its own", of.info().problem);
    return kernel;
  };
  return Plan(std::make_shared<const AdaptiveForwardPlan>(kernel_of(plan), kernel_of(exact)));
}

PlanState::PlanState(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source)
    : context_(std::move(context)), problem_(problem), shape_(source.shape) {
  validate(problem_);
  Device& device = context_->device();
  if (codegen::is_reference(source.spec.config.family)) {
    fail(ErrorCode::unsupported,
         "config: family=reference{} is the yardstick of `attune verify`, no kernel to plan with (allowed: sm90{})",
         problem_.op == Op::backward ? "_backward" : "", problem_.op == Op::backward ? "_backward" : "");
  }
  if (!codegen::serves(source.spec, problem_)) {
    fail(ErrorCode::invalid_argument, "kernel {} does not serve problem {}", codegen::to_string(source.spec),
         to_string(problem_));
  }
  check_shape(device, problem_.op, shape_);
  check_tiles("seqlen_q", problem_.seqlen_q, shape_.block_m, "heads", problem_.heads, problem_.batch);
  if (problem_.op == Op::backward)
    check_tiles("seqlen_k", problem_.seqlen_k, shape_.block_n, "heads_kv", problem_.heads_kv, problem_.batch);
  const CubinInfo code = device.inspect(source.cubin);
  check_code(device, code, shape_);
  default_scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem_.head_dim)));
  module_ = device.load(source.cubin);

  info_.registers = std::ranges::find(code.kernels, shape_.entry, &CubinKernel::name)->registers;
  info_.problem = to_string(problem_);
  info_.config = codegen::to_string(source.config);
  info_.spec = codegen::to_string(source.spec);
  info_.kernel = shape_.entry;
  info_.build_key = source.build_key;
  info_.origin = source.origin;
  info_.shared_bytes = shape_.shared_bytes;
  info_.threads = shape_.threads;
  info_.expected_seconds = source.expected_seconds;
  info_.errors = source.errors;
}

PlanState::PlanState(Like first)
    : context_(first.plan.context_),
      problem_(first.plan.problem_),
      shape_(first.plan.shape_),
      info_(first.plan.info_),
      default_scale_(first.plan.default_scale_) {}

void PlanState::launch(const ForwardArgs&) const { refuse(problem_.op, Op::forward); }
void PlanState::launch(const BackwardArgs&) const { refuse(problem_.op, Op::backward); }

float PlanState::checked_scale(float given) const {
  if (given == 0) return default_scale_;
  if (!(given > 0 && std::isfinite(given))) [[unlikely]] {
    fail(ErrorCode::invalid_argument, "scale: {} (allowed: positive and finite, or 0 for 1 / sqrt(head_dim) = {})",
         given, default_scale_);
  }
  return given;
}

void PlanState::check_owner(const char* name, const void* pointer) const {
  if (pointer == nullptr) return;
  const PointerKind kind = context_->device().pointer_kind(pointer);
  if (kind != PointerKind::host && kind != PointerKind::other_device) return;
  const DeviceProperties& p = context_->device().properties();
  fail(ErrorCode::invalid_argument, "{}: address {} is {} (allowed: memory of device {}, {})", name, pointer,
       kind == PointerKind::host ? "host memory" : "another device's memory", p.ordinal, p.name);
}

void check_alignment(const char* name, const void* pointer, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) [[unlikely]]
    fail(ErrorCode::invalid_argument, "{}: address {} is not aligned to {} bytes", name, pointer, alignment);
}

}  // namespace attune::runtime
