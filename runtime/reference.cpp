#include "runtime/reference.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

constexpr std::int64_t kMaxGridYz = 65535;

codegen::KernelSpec reference_spec(const Device& device, const Problem& problem) {
  codegen::Config config;
  config.family = codegen::Family::reference;
  return codegen::specialise(arch_of(device.properties()), problem, config);
}

const void* advanced(const void* base, std::int64_t elements) {
  return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + 2 * elements;
}

}  // namespace

Reference::Reference(std::shared_ptr<Device> device, Builder& builder, const Problem& problem)
    : device_(std::move(device)), spec_(reference_spec(*device_, problem)) {
  const Build build = builder.build(spec_);
  // Spills cost time alone, and the yardstick is not in a hurry: only a build without code cannot serve.
  if (build.cubin.empty()) require_accepted(build);
  shape_ = build.info.shape;
  module_ = device_->load(build.cubin);
  function_ = module_->function(shape_.entry, shape_.shared_bytes);
}

std::int64_t visible_keys(const Problem& p, std::int64_t row) {
  return p.causal ? std::clamp<std::int64_t>(row + 1 + p.seqlen_k - p.seqlen_q, 0, p.seqlen_k) : p.seqlen_k;
}

std::int64_t rows_of(const char* name, std::int64_t rows, const RowSample& sample) {
  if (sample.first < 0 || sample.step < 1 || sample.step > INT32_MAX || sample.count < 0) {
    fail(ErrorCode::invalid_argument,
         "{}: first {}, step {}, count {} (allowed: first >= 0, step 1 to below 2^31, count >= 0)", name, sample.first,
         sample.step, sample.count);
  }
  if (sample.first >= rows) return 0;
  const std::int64_t all = (rows - sample.first + sample.step - 1) / sample.step;
  return sample.count == 0 ? all : std::min(sample.count, all);
}

std::int64_t Reference::rows_in(const Problem& problem, const RowSample& rows) {
  return rows_of("rows", problem.seqlen_q, rows);
}

void Reference::launch(const Problem& problem, const ForwardArgs& args, const RowSample& rows,
                       const ReferenceOutputs& outputs) const {
  validate(problem);
  if (!codegen::serves(spec_, problem)) {
    fail(ErrorCode::invalid_argument, "reference: compiled for {}, which does not serve {}", codegen::to_string(spec_),
         to_string(problem));
  }
  if (problem.heads > kMaxGridYz) {
    fail(ErrorCode::unsupported, "heads: {} (the reference kernel allows up to {})", problem.heads, kMaxGridYz);
  }
  const std::int64_t sampled = rows_in(problem, rows);
  if (sampled == 0 || problem.batch == 0) return;

  const auto strides = [&](Operand operand, const Strides& given) {
    const Strides resolved = resolve_strides(problem, operand, given);
    const bool absent = problem.seqlen_k == 0 && (operand == Operand::k || operand == Operand::v);
    if (!absent) check_strides(problem, operand, resolved);
    return resolved;
  };
  const Strides q = strides(Operand::q, args.q_strides), k = strides(Operand::k, args.k_strides),
                v = strides(Operand::v, args.v_strides), o = strides(Operand::o, args.o_strides);
  check_base(Operand::q, args.q);
  if (problem.seqlen_k > 0) {
    check_base(Operand::k, args.k);
    check_base(Operand::v, args.v);
  }
  codegen::ReferenceParams params;
  params.q_batch = q.batch, params.q_head = q.head, params.q_row = q.row;
  params.k_batch = k.batch, params.k_head = k.head, params.k_row = k.row;
  params.v_batch = v.batch, params.v_head = v.head, params.v_row = v.row;
  params.o_batch = o.batch, params.o_head = o.head, params.o_row = o.row;
  params.scale = args.scale != 0 ? args.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  params.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  params.heads = problem.heads;
  params.group = problem.heads / problem.heads_kv;
  params.row_first = static_cast<std::int32_t>(rows.first);
  params.row_step = static_cast<std::int32_t>(rows.step);

  LaunchConfig config;
  config.grid.x = static_cast<unsigned>(sampled);
  config.grid.y = static_cast<unsigned>(problem.heads);
  config.block.x = static_cast<unsigned>(shape_.threads);
  config.shared_bytes = static_cast<unsigned>(shape_.shared_bytes);
  config.stream = args.stream;
  for (std::int64_t batch = 0; batch < problem.batch; batch += kMaxGridYz) {
    params.q = advanced(args.q, batch * q.batch);
    params.k = advanced(args.k, batch * k.batch);
    params.v = advanced(args.v, batch * v.batch);
    params.o = const_cast<void*>(advanced(outputs.o, batch * o.batch));
    const std::int64_t pairs = batch * problem.heads;
    params.lse = outputs.lse == nullptr ? nullptr : outputs.lse + pairs * problem.seqlen_q;
    params.o_exact = outputs.o_exact == nullptr ? nullptr : outputs.o_exact + pairs * sampled * problem.head_dim_v;
    config.grid.z = static_cast<unsigned>(std::min(problem.batch - batch, kMaxGridYz));
    void* arguments[] = {&params};
    device_->launch(function_, config, arguments);
  }
}

}  // namespace attune::runtime
