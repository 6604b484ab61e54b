#include "runtime/plan_state.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace attune::runtime {
namespace {

// Below 2^31, so that a kernel may add its grid to a tile's number.
constexpr std::int64_t kMaxTiles = (1ll << 31) - (1 << 20);
// Any address will do for a map whose base is replaced before use; it is never read through.
const void* const kNowhere = reinterpret_cast<const void*>(std::uintptr_t{1} << 32);

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> ids{0};
  return ++ids;
}

void check_code(const Device& device, const CubinInfo& cubin, const PlanSource& source) {
  const DeviceProperties& p = device.properties();
  if (cubin.sm != p.compute_capability) {
    fail(ErrorCode::unsupported, "cubin: compiled for sm_{}, but device {} ({}) is sm_{}", cubin.sm, p.ordinal, p.name,
         p.compute_capability);
  }
  for (const CubinKernel& kernel : cubin.kernels) {
    if (kernel.name != source.shape.entry) continue;
    if (kernel.max_threads != 0 && source.shape.threads > kernel.max_threads) {
      fail(ErrorCode::invalid_argument, "cubin: {} allows {} threads a block, but {} are to be launched", kernel.name,
           kernel.max_threads, source.shape.threads);
    }
    return;
  }
  fail(ErrorCode::not_found, "cubin: holds no kernel '{}'", source.shape.entry);
}

void check_shape(const Device& device, const codegen::LaunchShape& shape) {
  const int limit = device.properties().shared_per_block;
  if (shape.shared_bytes > limit) {
    fail(ErrorCode::unsupported, "shared memory: {} bytes needed, {} available", shape.shared_bytes, limit);
  }
  const auto box = [](int rows) { return rows >= 1 && rows <= 256; };
  if (shape.threads < 32 || shape.threads > 1024 || shape.shared_bytes < 0 || shape.block_m < 1 ||
      !box(shape.q_box_rows) || !box(shape.kv_box_rows) || !box(shape.o_box_rows)) {
    fail(ErrorCode::invalid_argument,
         "launch shape: {} threads, {} bytes of shared memory, block_m {}, boxes of {}, {} and {} rows make no sense",
         shape.threads, shape.shared_bytes, shape.block_m, shape.q_box_rows, shape.kv_box_rows, shape.o_box_rows);
  }
}

std::int64_t grid_of(const Device& device, const codegen::Config& config, std::int64_t tiles) {
  if (config.grid == codegen::Grid::plain) return tiles;
  return std::min<std::int64_t>(tiles, config.workers > 0 ? config.workers : device.properties().sms);
}

}  // namespace

// What this thread last launched of a plan: strides seldom change from launch to launch, addresses often do not either.
struct PlanState::Maps {
  std::uint64_t plan = 0;
  std::array<bool, kOperands> encoded{};
  std::array<const void*, kOperands> base{};
  std::array<Strides, kOperands> strides;
  std::array<TensorMap, kOperands> map;
};

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

PlanState::PlanState(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source)
    : context_(std::move(context)), problem_(problem), shape_(source.shape), id_(next_id()) {
  validate(problem_);
  Device& device = context_->device();
  if (source.spec.config.family != codegen::Family::sm90) {
    fail(ErrorCode::unsupported,
         "config: family=reference is the yardstick of `attune verify`, no kernel to plan with (allowed: sm90)");
  }
  if (!codegen::serves(source.spec, problem_)) {
    fail(ErrorCode::invalid_argument, "kernel {} does not serve problem {}", codegen::to_string(source.spec),
         to_string(problem_));
  }
  check_shape(device, shape_);
  const CubinInfo code = device.inspect(source.cubin);
  check_code(device, code, source);

  const std::int64_t tiles_m = (problem_.seqlen_q + shape_.block_m - 1) / shape_.block_m;
  const std::int64_t head_count = problem_.heads * problem_.batch;  // at most 2^30, says validate()
  if (tiles_m * head_count > kMaxTiles) {
    fail(ErrorCode::invalid_argument,
         "seqlen_q: {} x heads = {} x batch = {} make {} tiles of {} rows (allowed: up to {})", problem_.seqlen_q,
         problem_.heads, problem_.batch, tiles_m * head_count, shape_.block_m, kMaxTiles);
  }
  const std::int64_t tiles = tiles_m * head_count;
  empty_ = tiles == 0;
  counter_ = shape_.counter;
  default_scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem_.head_dim)));
  default_o_strides_ = default_strides(problem_, Operand::o);

  params_.seqlen_q = static_cast<std::int32_t>(problem_.seqlen_q);
  params_.seqlen_k = static_cast<std::int32_t>(problem_.seqlen_k);
  params_.heads = problem_.heads;
  params_.group = problem_.heads / problem_.heads_kv;
  params_.tiles_m = static_cast<std::int32_t>(tiles_m);
  params_.total_tiles = static_cast<std::int32_t>(tiles);
  params_.head_count = static_cast<std::int32_t>(head_count);
  params_.section = source.config.section > 0 ? source.config.section : codegen::default_section(problem_);
  launch_.grid.x = static_cast<unsigned>(grid_of(device, source.config, tiles));
  launch_.block.x = static_cast<unsigned>(shape_.threads);
  launch_.shared_bytes = static_cast<unsigned>(shape_.shared_bytes);

  if (!empty_) {
    for (int i = 0; i < kOperands; ++i) {
      const auto operand = static_cast<Operand>(i);
      // Layouts beyond TMA's limits are an error only for who launches with them: other strides may do.
      try {
        device.encode(geometry(problem_, shape_, operand, default_strides(problem_, operand)), kNowhere,
                      &prebuilt_[i].emplace());
      } catch (const Error&) {
        prebuilt_[i].reset();
      }
    }
    if (counter_) workspaces_ = &context_->workspaces();
  }
  module_ = device.load(source.cubin);
  function_ = module_->function(shape_.entry, shape_.shared_bytes);

  for (const CubinKernel& kernel : code.kernels) {
    if (kernel.name == shape_.entry) info_.registers = kernel.registers;
  }
  info_.problem = to_string(problem_);
  info_.config = codegen::to_string(source.config);
  info_.spec = codegen::to_string(source.spec);
  info_.kernel = shape_.entry;
  info_.build_key = source.build_key;
  info_.origin = source.origin;
  info_.shared_bytes = shape_.shared_bytes;
  info_.threads = shape_.threads;
  info_.blocks = launch_.grid.x;
  info_.expected_seconds = source.expected_seconds;
  info_.errors = source.errors;
}

Plan make_plan(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source) {
  return Plan(std::make_shared<const PlanState>(std::move(context), problem, std::move(source)));
}

PlanState::Maps& PlanState::maps_of_this_thread() const {
  // A few plans take turns in a model's forward pass; more than eight share places and re-encode.
  thread_local std::array<Maps, 8> memo;
  Maps& maps = memo[id_ % memo.size()];
  if (maps.plan != id_) {
    maps.plan = id_;
    maps.encoded = {};
  }
  return maps;
}

void PlanState::update_map(Maps& maps, Operand operand, const void* base, const Strides& strides) const {
  const auto i = static_cast<std::size_t>(operand);
  check_base(operand, base);
  if (maps.encoded[i] && maps.strides[i] == strides) [[likely]] {
    if (maps.base[i] == base) return;
    maps.encoded[i] = false;  // in case the next call throws
    context_->device().replace_base(&maps.map[i], base);
  } else if (strides == Strides{} && prebuilt_[i]) {
    maps.encoded[i] = false;
    maps.map[i] = *prebuilt_[i];
    context_->device().replace_base(&maps.map[i], base);
  } else {
    maps.encoded[i] = false;
    const Strides resolved = resolve_strides(problem_, operand, strides);
    context_->device().encode(geometry(problem_, shape_, operand, resolved), base, &maps.map[i]);
  }
  maps.base[i] = base;
  maps.strides[i] = strides;
  maps.encoded[i] = true;
}

void PlanState::update_maps(Maps& maps, const ForwardArgs& args) const {
  update_map(maps, Operand::q, args.q, args.q_strides);
  if (problem_.seqlen_k > 0) [[likely]] {
    update_map(maps, Operand::k, args.k, args.k_strides);
    update_map(maps, Operand::v, args.v, args.v_strides);
  } else {
    update_map(maps, Operand::k, args.q, {});
    update_map(maps, Operand::v, args.q, {});
  }
  update_map(maps, Operand::o, args.o, args.o_strides);
}

void PlanState::check_scalars(const ForwardArgs& args) const {
  if (args.scale != 0 && !(args.scale > 0 && std::isfinite(args.scale))) [[unlikely]] {
    fail(ErrorCode::invalid_argument, "scale: {} (allowed: positive and finite, or 0 for 1 / sqrt(head_dim) = {})",
         args.scale, default_scale_);
  }
  if (reinterpret_cast<std::uintptr_t>(args.lse) % alignof(float) != 0) [[unlikely]] {
    fail(ErrorCode::invalid_argument, "lse: address {} is not aligned to 4 bytes", static_cast<void*>(args.lse));
  }
}

void PlanState::check_pointers(const ForwardArgs& args) const {
  const auto check = [this](const char* name, const void* pointer) {
    if (pointer == nullptr) return;
    const PointerKind kind = context_->device().pointer_kind(pointer);
    if (kind != PointerKind::host && kind != PointerKind::other_device) return;
    const DeviceProperties& p = context_->device().properties();
    fail(ErrorCode::invalid_argument, "{}: address {} is {} (allowed: memory of device {}, {})", name, pointer,
         kind == PointerKind::host ? "host memory" : "another device's memory", p.ordinal, p.name);
  };
  check("q", args.q);
  if (problem_.seqlen_k > 0) {
    check("k", args.k);
    check("v", args.v);
  }
  check("o", args.o);
  check("lse", args.lse);
  check("workspace", args.workspace);
}

unsigned* PlanState::counter(const ForwardArgs& args) const {
  if (!counter_) return nullptr;
  if (args.workspace == nullptr) return static_cast<unsigned*>(workspaces_->acquire(args.stream));
  if (args.workspace_bytes < WorkspacePool::kBytes) {
    fail(ErrorCode::invalid_argument, "workspace_bytes: {} (allowed: {} and more)", args.workspace_bytes,
         WorkspacePool::kBytes);
  }
  if (reinterpret_cast<std::uintptr_t>(args.workspace) % WorkspacePool::kBytes != 0) {
    fail(ErrorCode::invalid_argument, "workspace: address {} is not aligned to {} bytes", args.workspace,
         WorkspacePool::kBytes);
  }
  return static_cast<unsigned*>(args.workspace);
}

void PlanState::launch(const ForwardArgs& args) const {
  check_scalars(args);
  if (empty_) return;
  Maps& maps = maps_of_this_thread();
  update_maps(maps, args);
  if (context_->check_pointers()) [[unlikely]]
    check_pointers(args);

  codegen::ForwardParams params = params_;
  params.lse = args.lse;
  params.counter = counter(args);
  const Strides& o = args.o_strides == Strides{} ? default_o_strides_ : args.o_strides;
  params.o = args.o;
  params.o_batch = o.batch;
  params.o_head = o.head;
  params.o_row = o.row;
  params.scale = args.scale != 0 ? args.scale : default_scale_;
  params.scale_log2 = params.scale * std::numbers::log2e_v<float>;
  LaunchConfig config = launch_;
  config.stream = args.stream;
  void* arguments[] = {&maps.map[0], &maps.map[1], &maps.map[2], &maps.map[3], &params};
  context_->device().launch(function_, config, arguments);
}

}  // namespace attune::runtime
