#include "runtime/backward_plan.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <span>

#include "base/error.h"

namespace attune::runtime {
namespace {

struct Named {
  const char* name;
  const void* pointer;
};

void require_floats(const char* name, const void* pointer) {
  if (pointer == nullptr) [[unlikely]]
    fail(ErrorCode::invalid_argument, "{}: null (allowed: device memory aligned to {} bytes)", name, alignof(float));
  check_alignment(name, pointer, alignof(float));
}

// Tensors may interleave, so that only what starts at one address overlaps for certain.
void check_apart(std::span<const Named> outputs, std::span<const Named> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto check = [&](const Named& other) {
      if (outputs[i].pointer != other.pointer) [[likely]]
        return;
      fail(ErrorCode::invalid_argument, "{}: address {} is {}'s, too (allowed: memory of its own)", outputs[i].name,
           outputs[i].pointer, other.name);
    };
    for (const Named& input : inputs) check(input);
    for (const Named& output : outputs.first(i)) check(output);
  }
}

}  // namespace

BackwardPlan::BackwardPlan(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source)
    : PlanState(std::move(context), problem, source),
      grid_(codegen::backward_grid(source.spec, source.config.backward, problem, device().properties().sms)),
      workspace_(codegen::backward_workspace(source.spec, problem, grid_)),
      default_o_strides_(default_strides(problem, Operand::o)),
      default_q_strides_(default_strides(problem, Operand::q)),
      default_k_strides_(default_strides(problem, Operand::k)),
      default_v_strides_(default_strides(problem, Operand::v)) {
  // The workspace follows from the spec, the grids from the shape: a pack that disagrees would write beyond it.
  if (shape() != codegen::launch_shape(source.spec))
    fail(ErrorCode::invalid_argument, "launch shape: not that of {}", codegen::to_string(source.spec));
  params_ = codegen::backward_params(source.spec, problem, grid_);
  const std::int64_t query_tiles = std::int64_t{params_.tiles_of_pair} * params_.pairs;
  has_queries_ = query_tiles > 0;
  has_keys_ = std::int64_t{params_.tiles_n} * params_.pairs > 0;
  stores_dq_ = source.spec.config.backward.finish == codegen::backward::Finish::ring;
  main_.function = function(shape().entry, shape().shared_bytes);
  main_.config.grid.x = static_cast<unsigned>(grid_.blocks);
  main_.config.waits_itself = true;
  main_.config.block.x = static_cast<unsigned>(shape().threads);
  main_.config.shared_bytes = static_cast<unsigned>(shape().shared_bytes);
  set_blocks(grid_.blocks);
  before_ = kernels_of(shape().before, grid_.prepared);
  after_ = kernels_of(shape().after, grid_.finishing);
  if (!has_queries_ && !has_keys_) return;
  maps_.emplace(device(), problem, shape(),
                std::initializer_list<Operand>{Operand::q, Operand::k, Operand::v, Operand::d_o, Operand::d_q,
                                               Operand::d_k, Operand::d_v});
}

std::vector<BackwardPlan::Kernel> BackwardPlan::kernels_of(const std::vector<codegen::SideLaunch>& sides,
                                                           std::int64_t blocks) {
  std::vector<Kernel> kernels;
  for (const codegen::SideLaunch& side : sides) {
    Kernel& kernel = kernels.emplace_back();
    kernel.function = function(side.entry, side.shared_bytes);
    kernel.config.grid.x = static_cast<unsigned>(blocks);
    kernel.config.waits_itself = true;
    kernel.config.block.x = static_cast<unsigned>(side.threads);
    kernel.config.shared_bytes = static_cast<unsigned>(side.shared_bytes);
  }
  if (blocks == 0) kernels.clear();
  return kernels;
}

void BackwardPlan::update_maps(PlanMaps::Memo& memo, const BackwardArgs& args) const {
  if (has_queries_) [[likely]] {
    maps_->update(memo, Operand::q, args.q, args.q_strides);
    maps_->check(memo, Operand::o, args.o, args.o_strides);
    maps_->update(memo, Operand::d_o, args.d_o, args.d_o_strides);
    if (stores_dq_)
      maps_->update(memo, Operand::d_q, args.d_q, args.d_q_strides);
    else
      maps_->check(memo, Operand::d_q, args.d_q, args.d_q_strides);
  }
  if (has_keys_) [[likely]] {
    maps_->update(memo, Operand::k, args.k, args.k_strides);
    maps_->update(memo, Operand::v, args.v, args.v_strides);
    maps_->update(memo, Operand::d_k, args.d_k, args.d_k_strides);
    maps_->update(memo, Operand::d_v, args.d_v, args.d_v_strides);
  }
  if (!has_queries_) {
    maps_->update(memo, Operand::q, args.k, {});
    maps_->update(memo, Operand::d_o, args.k, {});
    if (stores_dq_) maps_->update(memo, Operand::d_q, args.k, {});
  }
}

void BackwardPlan::check_pointers(const BackwardArgs& args) const {
  if (has_queries_) {
    require_floats("lse", args.lse);
    check_alignment("d_lse", args.d_lse, alignof(float));
  }
  if (workspace_.bytes > 0) {
    if (args.workspace == nullptr) [[unlikely]] {
      fail(ErrorCode::invalid_argument, "workspace: null (allowed: {} bytes of device memory aligned to {} bytes)",
           workspace_.bytes, codegen::BackwardWorkspace::kAlignment);
    }
    if (args.workspace_bytes < workspace_.bytes) [[unlikely]] {
      fail(ErrorCode::invalid_argument, "workspace_bytes: {} (allowed: {} and more)", args.workspace_bytes,
           workspace_.bytes);
    }
    check_alignment("workspace", args.workspace, codegen::BackwardWorkspace::kAlignment);
  }
  const std::array<Named, 3> outputs{{{"d_q", args.d_q}, {"d_k", args.d_k}, {"d_v", args.d_v}}};
  const std::array<Named, 8> inputs{{{"q", args.q},
                                     {"o", args.o},
                                     {"d_o", args.d_o},
                                     {"lse", args.lse},
                                     {"d_lse", args.d_lse},
                                     {"k", args.k},
                                     {"v", args.v},
                                     {"workspace", args.workspace}}};
  if (has_queries_ && has_keys_) [[likely]]
    check_apart(outputs, inputs);
}

void BackwardPlan::check_owners(const BackwardArgs& args) const {
  if (has_queries_) {
    for (const Named& tensor : {Named{"q", args.q},
                                {"o", args.o},
                                {"d_o", args.d_o},
                                {"lse", args.lse},
                                {"d_lse", args.d_lse},
                                {"d_q", args.d_q}})
      check_owner(tensor.name, tensor.pointer);
  }
  if (has_keys_) {
    for (const Named& tensor : {Named{"k", args.k}, {"v", args.v}, {"d_k", args.d_k}, {"d_v", args.d_v}})
      check_owner(tensor.name, tensor.pointer);
  }
  check_owner("workspace", args.workspace);
}

codegen::BackwardParams BackwardPlan::params_of(const BackwardArgs& args, float scale) const {
  codegen::BackwardParams params = params_;
  params.o = args.o;
  params.d_o = args.d_o;
  params.d_q = args.d_q;
  params.d_k = args.d_k;
  params.d_v = args.d_v;
  params.lse = args.lse;
  params.d_lse = args.d_lse;
  auto* const memory = static_cast<std::byte*>(args.workspace);
  params.shifts = reinterpret_cast<float*>(memory + workspace_.shifts_at);
  params.deltas = reinterpret_cast<float*>(memory + workspace_.deltas_at);
  params.dq_sums = reinterpret_cast<float*>(memory + workspace_.dq_sums_at);
  params.turns = reinterpret_cast<unsigned*>(memory + workspace_.turns_at);
  params.ticket = reinterpret_cast<unsigned*>(memory + workspace_.ticket_at);
  params.finished = reinterpret_cast<unsigned*>(memory + workspace_.finished_at);
  params.ready = reinterpret_cast<unsigned*>(memory + workspace_.ready_at);
  params.dkv_parts = reinterpret_cast<float*>(memory + workspace_.parts_at);
  const auto or_dense = [](const Strides& given, const Strides& dense) { return given == Strides{} ? dense : given; };
  const Strides o = or_dense(args.o_strides, default_o_strides_), d_o = or_dense(args.d_o_strides, default_o_strides_),
                d_q = or_dense(args.d_q_strides, default_q_strides_),
                d_k = or_dense(args.d_k_strides, default_k_strides_),
                d_v = or_dense(args.d_v_strides, default_v_strides_);
  params.o_batch = o.batch, params.o_head = o.head, params.o_row = o.row;
  params.do_batch = d_o.batch, params.do_head = d_o.head, params.do_row = d_o.row;
  params.dq_batch = d_q.batch, params.dq_head = d_q.head, params.dq_row = d_q.row;
  params.dk_batch = d_k.batch, params.dk_head = d_k.head, params.dk_row = d_k.row;
  params.dv_batch = d_v.batch, params.dv_head = d_v.head, params.dv_row = d_v.row;
  params.scale = scale;
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  return params;
}

void BackwardPlan::launch_sides(const std::vector<Kernel>& kernels, codegen::BackwardParams& params,
                                Stream stream) const {
  for (const Kernel& kernel : kernels) {
    LaunchConfig config = kernel.config;
    config.stream = stream;
    void* arguments[] = {&params};
    device().launch(kernel.function, config, arguments);
  }
}

void BackwardPlan::launch(const BackwardArgs& args) const {
  const float scale = checked_scale(args.scale);
  if (!maps_) return;
  PlanMaps::Memo& memo = maps_->of_this_thread();
  update_maps(memo, args);
  check_pointers(args);
  if (context().check_pointers()) [[unlikely]]
    check_owners(args);

  codegen::BackwardParams params = params_of(args, scale);
  launch_sides(before_, params, args.stream);
  if (grid_.blocks > 0) [[likely]] {
    LaunchConfig config = main_.config;
    config.stream = args.stream;
    std::array<void*, 8> arguments{memo.of(Operand::q),   memo.of(Operand::k),   memo.of(Operand::v),
                                   memo.of(Operand::d_o), memo.of(Operand::d_k), memo.of(Operand::d_v)};
    std::size_t count = 6;
    if (stores_dq_) arguments[count++] = memo.of(Operand::d_q);
    arguments[count] = &params;
    device().launch(main_.function, config, arguments.data());
  }
  launch_sides(after_, params, args.stream);
}

}  // namespace attune::runtime
