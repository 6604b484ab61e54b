#include "runtime/forward_plan.h"

#include <algorithm>
#include <numbers>

#include "base/error.h"

namespace attune::runtime {
namespace {

// Share of the blocks of keys. A failing warp holds up those that take turns with it, so a few are enough; but where
// all warps fail at the same block, because of one key, it costs less (docs/kernels/NOTES.md, entry 36).
constexpr double kFailureLimit = 1.0 / 8;

// Of `tiles` that clusters take.
std::int64_t grid_of(const Device& device, const codegen::Config& config, std::int64_t tiles) {
  if (config.grid == codegen::Grid::plain) return tiles * config.cluster;
  const int workers = config.workers > 0 ? config.workers : device.properties().sms;
  return std::min<std::int64_t>(tiles, std::max(workers / config.cluster, 1)) * config.cluster;
}

// A section may have as many tiles as two turns of a persistent grid, there and back, which would give the same thread
// blocks its longest tiles again and again. So there it is all heads.
std::int32_t section_of(const codegen::Config& config, const Problem& problem) {
  if (config.grid == codegen::Grid::persistent) return static_cast<std::int32_t>(problem.heads * problem.batch);
  const std::int64_t section = config.section > 0 ? config.section : codegen::default_section(problem);
  return static_cast<std::int32_t>(std::min(section, std::max<std::int64_t>(problem.heads * problem.batch, 1)));
}

}  // namespace

ForwardPlan::ForwardPlan(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source)
    : PlanState(std::move(context), problem, source), default_o_strides_(default_strides(problem, Operand::o)) {
  const std::int64_t tiles_m = blocks_over(problem.seqlen_q, shape().block_m * source.config.cluster);
  const std::int64_t head_count = problem.heads * problem.batch;
  const std::int64_t tiles = tiles_m * head_count;
  params_.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  params_.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  params_.heads = problem.heads;
  params_.group = problem.heads / problem.heads_kv;
  params_.tiles_m = static_cast<std::int32_t>(tiles_m);
  params_.total_tiles = static_cast<std::int32_t>(tiles);
  params_.head_count = static_cast<std::int32_t>(head_count);
  params_.section = section_of(source.config, problem);
  launch_.grid.x = static_cast<unsigned>(grid_of(device(), source.config, tiles));
  launch_.block.x = static_cast<unsigned>(shape().threads);
  launch_.cluster.x = static_cast<unsigned>(source.config.cluster);
  launch_.shared_bytes = static_cast<unsigned>(shape().shared_bytes);
  launch_.waits_itself = source.config.dependent_launch;
  set_blocks(launch_.grid.x);
  function_ = function(shape().entry, shape().shared_bytes);
  if (tiles == 0) return;
  maps_.emplace(device(), problem, shape(),
                std::initializer_list<Operand>{Operand::q, Operand::k, Operand::v, Operand::o});
  if (shape().counter) workspaces_ = &PlanState::context().workspaces();
}

void ForwardPlan::update_maps(PlanMaps::Memo& memo, const ForwardArgs& args) const {
  maps_->update(memo, Operand::q, args.q, args.q_strides);
  if (problem().seqlen_k > 0) [[likely]] {
    maps_->update(memo, Operand::k, args.k, args.k_strides);
    maps_->update(memo, Operand::v, args.v, args.v_strides);
  } else {
    maps_->update(memo, Operand::k, args.q, {});
    maps_->update(memo, Operand::v, args.q, {});
  }
  maps_->update(memo, Operand::o, args.o, args.o_strides);
}

void ForwardPlan::check_owners(const ForwardArgs& args) const {
  check_owner("q", args.q);
  if (problem().seqlen_k > 0) {
    check_owner("k", args.k);
    check_owner("v", args.v);
  }
  check_owner("o", args.o);
  check_owner("lse", args.lse);
  check_owner("workspace", args.workspace);
}

unsigned* ForwardPlan::counter(const ForwardArgs& args) const {
  if (workspaces_ == nullptr) return nullptr;
  if (args.workspace == nullptr) return static_cast<unsigned*>(workspaces_->acquire(args.stream));
  if (args.workspace_bytes < WorkspacePool::kBytes) {
    fail(ErrorCode::invalid_argument, "workspace_bytes: {} (allowed: {} and more)", args.workspace_bytes,
         WorkspacePool::kBytes);
  }
  check_alignment("workspace", args.workspace, WorkspacePool::kBytes);
  return static_cast<unsigned*>(args.workspace);
}

void ForwardPlan::launch(const ForwardArgs& args, const Reporting& reporting) const {
  const float scale = checked_scale(args.scale);
  check_alignment("lse", args.lse, alignof(float));
  if (!maps_) return;
  PlanMaps::Memo& memo = maps_->of_this_thread();
  update_maps(memo, args);
  if (context().check_pointers()) [[unlikely]]
    check_owners(args);

  codegen::ForwardParams params = params_;
  params.lse = args.lse;
  params.counter = counter(args);
  params.failures = reporting.failures;
  params.report = reinterpret_cast<std::uint64_t*>(reporting.report);
  params.launch = reporting.launch;
  const Strides& o = args.o_strides == Strides{} ? default_o_strides_ : args.o_strides;
  params.o = args.o;
  params.o_batch = o.batch;
  params.o_head = o.head;
  params.o_row = o.row;
  params.scale = scale;
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  LaunchConfig config = launch_;
  config.stream = args.stream;
  void* arguments[] = {memo.of(Operand::q), memo.of(Operand::k), memo.of(Operand::v), memo.of(Operand::o), &params};
  device().launch(function_, config, arguments);
}

double failure_limit(const Problem& problem, const codegen::LaunchShape& shape, codegen::Softmax softmax) {
  constexpr std::int64_t kWarpRows = 16;
  const auto blocks_of = [&](std::int64_t keys) { return (keys + shape.block_n - 1) / shape.block_n; };
  // Rows that see keys, in warps; of a causal mask the first tile's and the last one's blocks, between which the number
  // grows evenly.
  const std::int64_t rows = problem.causal ? std::min(problem.seqlen_q, problem.seqlen_k) : problem.seqlen_q;
  const std::int64_t first =
      problem.causal ? problem.seqlen_k - rows + std::min<std::int64_t>(rows, shape.block_m) : problem.seqlen_k;
  const double blocks = static_cast<double>(blocks_of(first) + blocks_of(problem.seqlen_k)) / 2;
  const std::int64_t heads = problem.heads * problem.batch;
  const auto warps = static_cast<double>((rows + kWarpRows - 1) / kWarpRows * heads);
  // A tile's first block of keys may show its first rows one key or few, one of which then dominates.
  const bool always = problem.causal && softmax == codegen::Softmax::zero;
  const auto tiles = static_cast<double>((rows + shape.block_m - 1) / shape.block_m * heads);
  return kFailureLimit * warps * blocks + (always ? tiles : 0);
}

AdaptiveForwardPlan::AdaptiveForwardPlan(std::shared_ptr<const ForwardPlan> speculative,
                                         std::shared_ptr<const ForwardPlan> exact)
    : PlanState(Like{*speculative}),
      speculative_(std::move(speculative)),
      exact_(std::move(exact)),
      report_(device()),
      failures_(device(), sizeof(unsigned)),
      speculation_(report_.get(), failure_limit(problem(), shape(), codegen::parse_config(info().config).softmax)) {
  device().fill8(failures_.data(), 0, failures_.size(), nullptr);
  device().synchronize(nullptr);  // the launches to come are on other streams
  set_peaked_config(exact_->info().config);
}

void AdaptiveForwardPlan::launch(const ForwardArgs& args) const {
  Speculation::Choice choice = speculation_.next();
  if (choice.trial && device().capturing(args.stream)) [[unlikely]] {
    // A graph would hold the slower kernel for good, and tell nothing now.
    speculation_.withdraw_trial();
    choice.speculate = choice.trial = false;
  }
  const Reporting reporting{
      .failures = static_cast<unsigned*>(failures_.data()), .report = report_.get(), .launch = choice.launch};
  try {
    (choice.speculate ? speculative_ : exact_)->launch(args, reporting);
  } catch (...) {
    if (choice.trial) speculation_.withdraw_trial();
    throw;
  }
}

std::size_t AdaptiveForwardPlan::workspace_bytes() const {
  return std::max(speculative_->workspace_bytes(), exact_->workspace_bytes());
}

}  // namespace attune::runtime
