#include "runtime/reference_backward.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "codegen/backward/params.h"
#include "runtime/plan_state.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

constexpr std::int64_t kMaxGridYz = 65535;

codegen::KernelSpec reference_spec(const Device& device, const Problem& problem) {
  return codegen::specialise(arch_of(device.properties()), problem,
                             codegen::Config{.family = codegen::Family::reference_backward});
}

template <typename T>
T* advanced(T* base, std::int64_t count) {
  return base == nullptr ? nullptr : base + count;
}

const void* advanced(const void* base, std::int64_t elements) {
  return advanced(static_cast<const std::byte*>(base), 2 * elements);
}
void* advanced(void* base, std::int64_t elements) { return advanced(static_cast<std::byte*>(base), 2 * elements); }

// Strides of every operand, checked where the tensor has rows.
class AllStrides {
 public:
  AllStrides(const Problem& problem, const BackwardArgs& args)
      : q(checked(problem, Operand::q, args.q_strides)),
        k(checked(problem, Operand::k, args.k_strides)),
        v(checked(problem, Operand::v, args.v_strides)),
        o(checked(problem, Operand::o, args.o_strides)),
        d_o(checked(problem, Operand::d_o, args.d_o_strides)),
        d_q(checked(problem, Operand::d_q, args.d_q_strides)),
        d_k(checked(problem, Operand::d_k, args.d_k_strides)),
        d_v(checked(problem, Operand::d_v, args.d_v_strides)) {}

  const Strides q, k, v, o, d_o, d_q, d_k, d_v;

 private:
  static Strides checked(const Problem& problem, Operand operand, const Strides& given) {
    const Strides resolved = resolve_strides(problem, operand, given);
    if (shape_of(problem, operand).rows > 0) check_strides(problem, operand, resolved);
    return resolved;
  }
};

void check_inputs(const Problem& problem, const BackwardArgs& args, bool needs_o, bool needs_lse) {
  if (problem.seqlen_q > 0) {
    check_base(Operand::q, args.q);
    check_base(Operand::d_o, args.d_o);
    if (needs_o) check_base(Operand::o, args.o);
    if (needs_lse && args.lse == nullptr)
      fail(ErrorCode::invalid_argument, "lse: null (allowed: device memory aligned to {} bytes)", alignof(float));
  }
  check_alignment("lse", args.lse, alignof(float));
  check_alignment("d_lse", args.d_lse, alignof(float));
  if (problem.seqlen_k > 0) {
    check_base(Operand::k, args.k);
    check_base(Operand::v, args.v);
  }
  const std::size_t bytes = ReferenceBackward::workspace_bytes(problem);
  if (bytes > 0 && (args.workspace == nullptr || args.workspace_bytes < bytes)) {
    fail(ErrorCode::invalid_argument, "workspace: {} bytes at {} (allowed: {} bytes and more)", args.workspace_bytes,
         args.workspace, bytes);
  }
  check_alignment("workspace", args.workspace, alignof(double));
}

}  // namespace

ReferenceBackward::ReferenceBackward(std::shared_ptr<Device> device, Builder& builder, const Problem& problem)
    : device_(std::move(device)), spec_(reference_spec(*device_, problem)) {
  const Build build = builder.build(spec_);
  // Spills cost time alone, and the yardstick is not in a hurry: only a build without code cannot serve.
  if (build.cubin.empty()) require_accepted(build);
  shape_ = build.info.shape;
  module_ = device_->load(build.cubin);
  keys_ = module_->function(shape_.entry, shape_.shared_bytes);
  rows_ = module_->function(shape_.before.front().entry, shape_.before.front().shared_bytes);
}

std::size_t ReferenceBackward::workspace_bytes(const Problem& problem) {
  return static_cast<std::size_t>(problem.batch) * static_cast<std::size_t>(problem.heads) *
         static_cast<std::size_t>(problem.seqlen_q) * 2 * sizeof(double);
}

void ReferenceBackward::launch(const Problem& problem, const BackwardArgs& args, const GradientSample& sample,
                               GradientRounding rounding, GradientStatistics statistics,
                               const GradientOutputs& outputs) const {
  validate(problem);
  if (!codegen::serves(spec_, problem)) {
    fail(ErrorCode::invalid_argument, "reference: compiled for {}, which does not serve {}", codegen::to_string(spec_),
         to_string(problem));
  }
  if (problem.heads > kMaxGridYz)
    fail(ErrorCode::unsupported, "heads: {} (the reference kernels allow up to {})", problem.heads, kMaxGridYz);
  const std::int64_t queries = rows_of("queries", problem.seqlen_q, sample.queries);
  const std::int64_t keys = rows_of("keys", problem.seqlen_k, sample.keys);
  const AllStrides s(problem, args);
  const bool needs_lse = statistics == GradientStatistics::given;
  const bool needs_o = needs_lse || rounding == GradientRounding::kernels;
  check_inputs(problem, args, needs_o, needs_lse);

  codegen::ReferenceBackwardParams params;
  params.q_batch = s.q.batch, params.q_head = s.q.head, params.q_row = s.q.row;
  params.k_batch = s.k.batch, params.k_head = s.k.head, params.k_row = s.k.row;
  params.v_batch = s.v.batch, params.v_head = s.v.head, params.v_row = s.v.row;
  params.do_batch = s.d_o.batch, params.do_head = s.d_o.head, params.do_row = s.d_o.row;
  params.o_batch = s.o.batch, params.o_head = s.o.head, params.o_row = s.o.row;
  params.dq_batch = s.d_q.batch, params.dq_head = s.d_q.head, params.dq_row = s.d_q.row;
  params.dk_batch = s.d_k.batch, params.dk_head = s.d_k.head, params.dk_row = s.d_k.row;
  params.dv_batch = s.d_v.batch, params.dv_head = s.d_v.head, params.dv_row = s.d_v.row;
  params.scale = args.scale != 0 ? args.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  params.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  params.heads = problem.heads;
  params.heads_kv = problem.heads_kv;
  params.key_first = static_cast<std::int32_t>(sample.keys.first);
  params.key_step = static_cast<std::int32_t>(sample.keys.step);
  params.rounded = rounding == GradientRounding::kernels;

  LaunchConfig config;
  config.block.x = static_cast<unsigned>(shape_.threads);
  config.stream = args.stream;
  const auto launch_over = [&](Function function, std::int64_t rows, int heads) {
    if (rows == 0) return;
    config.grid.x = static_cast<unsigned>(rows);
    config.grid.y = static_cast<unsigned>(heads);
    void* arguments[] = {&params};
    device_->launch(function, config, arguments);
  };
  // Keys need the statistics of every row, which come with dQ where all of its rows are wanted.
  const bool wants_dq = outputs.d_q != nullptr || outputs.dq_exact != nullptr;
  const bool statistics_first = keys > 0 && !(wants_dq && queries == problem.seqlen_q);
  for (std::int64_t batch = 0; batch < problem.batch; batch += kMaxGridYz) {
    config.grid.z = static_cast<unsigned>(std::min(problem.batch - batch, kMaxGridYz));
    const std::int64_t pairs = batch * problem.heads, pairs_kv = batch * problem.heads_kv;
    params.q = advanced(args.q, batch * s.q.batch);
    params.k = advanced(args.k, batch * s.k.batch);
    params.v = advanced(args.v, batch * s.v.batch);
    params.d_o = advanced(args.d_o, batch * s.d_o.batch);
    params.o = needs_o ? advanced(args.o, batch * s.o.batch) : nullptr;
    params.lse = needs_lse ? advanced(args.lse, pairs * problem.seqlen_q) : nullptr;
    params.d_lse = advanced(args.d_lse, pairs * problem.seqlen_q);
    params.statistics = advanced(static_cast<double*>(args.workspace), 2 * pairs * problem.seqlen_q);
    params.d_q = nullptr;
    params.dq_exact = nullptr;
    params.row_first = 0;
    params.row_step = 1;
    if (statistics_first) launch_over(rows_, problem.seqlen_q, problem.heads);
    params.d_q = advanced(outputs.d_q, batch * s.d_q.batch);
    params.dq_exact = advanced(outputs.dq_exact, pairs * queries * problem.head_dim);
    params.row_first = static_cast<std::int32_t>(sample.queries.first);
    params.row_step = static_cast<std::int32_t>(sample.queries.step);
    if (wants_dq) launch_over(rows_, queries, problem.heads);
    params.d_k = advanced(outputs.d_k, batch * s.d_k.batch);
    params.d_v = advanced(outputs.d_v, batch * s.d_v.batch);
    params.dk_exact = advanced(outputs.dk_exact, pairs_kv * keys * problem.head_dim);
    params.dv_exact = advanced(outputs.dv_exact, pairs_kv * keys * problem.head_dim_v);
    launch_over(keys_, keys, problem.heads_kv);
  }
}

}  // namespace attune::runtime
