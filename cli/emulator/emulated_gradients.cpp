#include "cli/emulator/emulated_gradients.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/cpu/host_attention.h"
#include "runtime/cpu/host_gradients.h"

namespace attune::cli {
namespace {

using runtime::Operand;

constexpr std::size_t kGuardBytes = 1024;
constexpr std::uint8_t kGuard = 0xff;  // NaN in any type

std::size_t row_count(const Problem& p) { return static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q); }

}  // namespace

EmulatedGradients::EmulatedGradients(runtime::CpuDevice& device, const Problem& problem, const Options& options)
    : device_(&device),
      problem_(problem),
      options_(options),
      operands_(
          device, problem,
          {Operand::q, Operand::k, Operand::v, Operand::o, Operand::d_o, Operand::d_q, Operand::d_k, Operand::d_v},
          options.strides),
      lse_(device, row_count(problem) * sizeof(float)),
      d_lse_(device, options.d_lse ? row_count(problem) * sizeof(float) : 0),
      workspace_(device, options.workspace_bytes + kGuardBytes) {
  operands_.fill_inputs(options.scores, options.seed);
  operands_.fill(Operand::d_o, 1, {}, options.seed);
  fill_statistics();
  reset();
  runtime::HostGradients host = runtime::host_gradients(problem, args());
  const auto rows = [&](const char* name, int columns, std::vector<double>& exact, std::vector<double>& kernels) {
    return tuner::GradientRows{name, problem.dtype, columns, {}, std::move(exact), std::move(kernels), {}};
  };
  expected_ = {rows("dQ", problem.head_dim, host.exact.d_q, host.kernels.d_q),
               rows("dK", problem.head_dim, host.exact.d_k, host.kernels.d_k),
               rows("dV", problem.head_dim_v, host.exact.d_v, host.kernels.d_v)};
  expected_.d_q.alone = tuner::alone_of_queries(problem, {});
  expected_.d_k.alone = expected_.d_v.alone = tuner::alone_of_keys(problem, {});
}

// O and LSE as an exact forward pass leaves them, and dLSE.
void EmulatedGradients::fill_statistics() {
  const BackwardArgs a = args();
  const runtime::HostAttention forward = runtime::host_attention(
      problem_,
      {.q = a.q, .k = a.k, .v = a.v, .q_strides = a.q_strides, .k_strides = a.k_strides, .v_strides = a.v_strides}, {});
  operands_.write(Operand::o, forward.o);
  const std::vector<float> lse(forward.lse.begin(), forward.lse.end());
  device_->copy_to_device(lse_.data(), lse.data(), lse_.size());
  if (!options_.d_lse) return;
  std::mt19937 random(options_.seed);
  std::normal_distribution<float> normal;
  std::vector<float> d_lse(lse.size());
  for (float& value : d_lse) value = normal(random);
  device_->copy_to_device(d_lse_.data(), d_lse.data(), d_lse_.size());
}

BackwardArgs EmulatedGradients::args() const {
  BackwardArgs args;
  args.q = operands_.elements(Operand::q);
  args.k = operands_.elements(Operand::k);
  args.v = operands_.elements(Operand::v);
  args.o = operands_.elements(Operand::o);
  args.d_o = operands_.elements(Operand::d_o);
  args.lse = static_cast<const float*>(lse_.data());
  args.d_lse = static_cast<const float*>(d_lse_.data());
  args.d_q = operands_.elements(Operand::d_q);
  args.d_k = operands_.elements(Operand::d_k);
  args.d_v = operands_.elements(Operand::d_v);
  args.q_strides = operands_.strides(Operand::q);
  args.k_strides = operands_.strides(Operand::k);
  args.v_strides = operands_.strides(Operand::v);
  args.o_strides = operands_.strides(Operand::o);
  args.d_o_strides = operands_.strides(Operand::d_o);
  args.d_q_strides = operands_.strides(Operand::d_q);
  args.d_k_strides = operands_.strides(Operand::d_k);
  args.d_v_strides = operands_.strides(Operand::d_v);
  args.workspace = workspace_.data();
  args.workspace_bytes = options_.workspace_bytes;
  return args;
}

void EmulatedGradients::reset() {
  for (const Operand operand : {Operand::d_q, Operand::d_k, Operand::d_v}) operands_.poison(operand);
  std::memset(workspace_.data(), kGuard, workspace_.size());
  device_->forget(workspace_.data(), workspace_.size());
}

tuner::GradientCase EmulatedGradients::gradients() const {
  tuner::GradientCase all = expected_;
  all.d_q.got = operands_.read(Operand::d_q);
  all.d_k.got = operands_.read(Operand::d_k);
  all.d_v.got = operands_.read(Operand::d_v);
  return all;
}

tuner::CaseResult EmulatedGradients::result() const {
  return tuner::judge(gradients(), tuner::gradient_bounds(problem_, options_.scores));
}

std::optional<std::string> EmulatedGradients::damage() const {
  for (const Operand operand : {Operand::d_q, Operand::d_k, Operand::d_v}) {
    if (!operands_.gaps_intact(operand))
      return std::string("memory between the rows of ") + runtime::to_string(operand) + " was written";
  }
  std::vector<std::uint8_t> guard(kGuardBytes);
  device_->copy_to_host(guard.data(), static_cast<std::byte*>(workspace_.data()) + options_.workspace_bytes,
                        kGuardBytes);
  if (std::ranges::any_of(guard, [](std::uint8_t byte) { return byte != kGuard; }))
    return "memory behind the workspace was written";
  return {};
}

}  // namespace attune::cli
