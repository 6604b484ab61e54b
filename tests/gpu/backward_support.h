// Everything that a backward launch reads and writes, on the GPU, with poisoned gaps, and the exact gradients.
#pragma once

#include <array>
#include <string>

#include "runtime/reference_backward.h"
#include "tests/gpu/support.h"
#include "tuner/measure/gradient_accuracy.h"
#include "tuner/measure/workbench.h"

namespace attune::gpu {

using runtime::Operand;

/// Compiles them, so that they are there when Backward needs them.
inline void build_references(const Problem& problem) {
  const Arch arch = runtime::arch_of(device()->properties());
  builder().build(codegen::specialise(arch, problem, {.family = codegen::Family::reference_backward}));
  builder().build(codegen::specialise(arch, tuner::forward_of(problem), {.family = codegen::Family::reference}));
}

/// Elements that no tensor owns (gaps of the strides, a guard band at the end) hold NaN: who reads them is found out,
/// and who writes them too. O and LSE come from the forward reference.
class Backward {
 public:
  struct Options {
    unsigned seed = 1;
    bool gaps = false;   ///< rows, heads and batches lie further apart than they need, each tensor's in its own way
    bool d_lse = false;  ///< the loss depends on LSE too
    runtime::GradientSample sample = {};  ///< that is compared
  };

  explicit Backward(const Problem& problem) : Backward(problem, Options()) {}
  Backward(const Problem& problem, const Options& options) : problem_(problem), options_(options) {
    for (int i = 0; i < runtime::kOperands; ++i) {
      const auto operand = static_cast<Operand>(i);
      strides_[i] = options.gaps ? gapped(operand) : runtime::default_strides(problem, operand);
      const runtime::TensorShape s = runtime::shape_of(problem, operand);
      const std::int64_t elements = s.batch == 0 || s.rows == 0
                                        ? 0
                                        : (s.batch - 1) * strides_[i].batch + (s.heads - 1) * strides_[i].head +
                                              (s.rows - 1) * strides_[i].row + s.head_dim;
      host_[i].assign(static_cast<std::size_t>(elements + kGuard), kPoison);
      if (operand == Operand::q || operand == Operand::k || operand == Operand::v || operand == Operand::d_o)
        fill(operand, options.seed * runtime::kOperands + static_cast<unsigned>(i));
      memory_[i] = runtime::DeviceBuffer(*device(), host_[i].size() * 2);
      device()->copy_to_device(memory_[i].data(), host_[i].data(), host_[i].size() * 2);
    }
    const auto rows = static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q);
    lse_ = runtime::DeviceBuffer(*device(), (rows + 1) * 4);
    if (options.d_lse) {
      std::mt19937 random(options.seed);
      std::normal_distribution<float> normal;
      std::vector<float> values(rows + 1);
      for (float& value : values) value = normal(random);
      d_lse_ = runtime::DeviceBuffer(*device(), values.size() * 4);
      device()->copy_to_device(d_lse_.data(), values.data(), values.size() * 4);
    }
    attend();
  }

  const Problem& problem() const { return problem_; }

  /// For a plan with this workspace, which is poisoned.
  BackwardArgs args(const Plan& plan) {
    workspace_bytes_ = plan.workspace_bytes();
    if (workspace_.size() < workspace_bytes_ + kGuard)
      workspace_ = runtime::DeviceBuffer(*device(), workspace_bytes_ + kGuard);
    device()->fill8(workspace_.data(), 0xff, workspace_.size(), nullptr);
    device()->synchronize();
    BackwardArgs args = inputs();
    args.workspace = workspace_.data();
    args.workspace_bytes = plan.workspace_bytes();
    return args;
  }

  /// Overwrites dQ, dK and dV with NaN.
  void poison() {
    device()->synchronize();
    for (const Operand operand : kOutputs) {
      const auto i = static_cast<std::size_t>(operand);
      device()->copy_to_device(memory_[i].data(), host_[i].data(), host_[i].size() * 2);
    }
  }

  /// Bits of a gradient as they are on the device now, gaps included.
  std::vector<std::uint16_t> bits(Operand operand) const {
    std::vector<std::uint16_t> all(host_[static_cast<std::size_t>(operand)].size());
    device()->synchronize();
    device()->copy_to_host(all.data(), memory_[static_cast<std::size_t>(operand)].data(), all.size() * 2);
    return all;
  }

  /// Compares with the exact gradients, and checks that nothing else was written.
  tuner::CaseResult compare() {
    if (!exact_) compute_exact();
    tuner::GradientCase& g = *exact_;
    g.d_q.got = rows(Operand::d_q, options_.sample.queries);
    g.d_k.got = rows(Operand::d_k, options_.sample.keys);
    g.d_v.got = rows(Operand::d_v, options_.sample.keys);
    for (const Operand operand : kOutputs) check_gaps(operand);
    check_behind_workspace();
    return tuner::judge(g, tuner::gradient_bounds(problem_, {.name = "plain"}));
  }

 private:
  static constexpr std::int64_t kGuard = 256;
  static constexpr std::array kOutputs{Operand::d_q, Operand::d_k, Operand::d_v};

  Strides gapped(Operand operand) const {
    const runtime::TensorShape s = runtime::shape_of(problem_, operand);
    const std::int64_t gap = 8 * (1 + static_cast<std::int64_t>(operand)), rows = std::max<std::int64_t>(s.rows, 1);
    Strides strides;
    if (problem_.layout == Layout::bshd) {
      strides.head = s.head_dim + gap;
      strides.row = s.heads * strides.head + 16;
      strides.batch = rows * strides.row + 24;
    } else {
      strides.row = s.head_dim + gap;
      strides.head = rows * strides.row + 16;
      strides.batch = s.heads * strides.head + 24;
    }
    return strides;
  }

  template <typename Visit>
  void each_row(Operand operand, const runtime::RowSample& sample, const Visit& visit) const {
    const runtime::TensorShape s = runtime::shape_of(problem_, operand);
    const Strides& strides = strides_[static_cast<std::size_t>(operand)];
    const std::int64_t count = runtime::rows_of(runtime::to_string(operand), s.rows, sample);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < count; ++i)
          visit(b * strides.batch + h * strides.head + (sample.first + i * sample.step) * strides.row, s.head_dim);
  }

  void fill(Operand operand, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t>& to = host_[static_cast<std::size_t>(operand)];
    each_row(operand, {}, [&](std::int64_t at, std::int64_t count) {
      for (std::int64_t c = 0; c < count; ++c)
        to[static_cast<std::size_t>(at + c)] = to_bits(problem_.dtype, normal(random));
    });
  }

  std::vector<double> rows(Operand operand, const runtime::RowSample& sample) const {
    const std::vector<std::uint16_t> all = bits(operand);
    std::vector<double> values;
    each_row(operand, sample, [&](std::int64_t at, std::int64_t count) {
      for (std::int64_t c = 0; c < count; ++c)
        values.push_back(to_float(problem_.dtype, all[static_cast<std::size_t>(at + c)]));
    });
    return values;
  }

  void check_gaps(Operand operand) const {
    std::vector<std::uint16_t> all = bits(operand);
    each_row(operand, {}, [&](std::int64_t at, std::int64_t count) { std::fill_n(all.begin() + at, count, kPoison); });
    CHECK_MESSAGE(std::ranges::count(all, kPoison) == static_cast<std::int64_t>(all.size()),
                  "written outside of " << runtime::to_string(operand));
  }

  void check_behind_workspace() const {
    std::vector<std::uint8_t> guard(workspace_.size() - workspace_bytes_);
    device()->copy_to_host(guard.data(), static_cast<const std::byte*>(workspace_.data()) + workspace_bytes_,
                           guard.size());
    CHECK_MESSAGE(std::ranges::count(guard, 0xff) == static_cast<std::int64_t>(guard.size()),
                  "written behind the workspace");
  }

  BackwardArgs inputs() const {
    const auto data = [&](Operand operand) { return memory_[static_cast<std::size_t>(operand)].data(); };
    const auto strides = [&](Operand operand) { return strides_[static_cast<std::size_t>(operand)]; };
    return {.q = data(Operand::q),
            .k = data(Operand::k),
            .v = data(Operand::v),
            .o = data(Operand::o),
            .d_o = data(Operand::d_o),
            .lse = static_cast<const float*>(lse_.data()),
            .d_lse = static_cast<const float*>(d_lse_.data()),
            .d_q = data(Operand::d_q),
            .d_k = data(Operand::d_k),
            .d_v = data(Operand::d_v),
            .q_strides = strides(Operand::q),
            .k_strides = strides(Operand::k),
            .v_strides = strides(Operand::v),
            .o_strides = strides(Operand::o),
            .d_o_strides = strides(Operand::d_o),
            .d_q_strides = strides(Operand::d_q),
            .d_k_strides = strides(Operand::d_k),
            .d_v_strides = strides(Operand::d_v)};
  }

  void attend() {
    const Problem forward = tuner::forward_of(problem_);
    const BackwardArgs a = inputs();
    const runtime::Reference reference(device(), builder(), forward);
    reference.launch(forward,
                     {.q = a.q,
                      .k = a.k,
                      .v = a.v,
                      .q_strides = a.q_strides,
                      .k_strides = a.k_strides,
                      .v_strides = a.v_strides,
                      .o_strides = a.o_strides},
                     {}, {.o = const_cast<void*>(a.o), .lse = static_cast<float*>(lse_.data())});
    device()->synchronize();
  }

  void compute_exact() {
    const Problem& p = problem_;
    const std::int64_t queries = runtime::rows_of("queries", p.seqlen_q, options_.sample.queries),
                       keys = runtime::rows_of("keys", p.seqlen_k, options_.sample.keys);
    const auto buffer = [&](std::int64_t heads, std::int64_t count, int columns) {
      return runtime::DeviceBuffer(*device(), static_cast<std::size_t>(p.batch * heads * count * columns) * 8);
    };
    const runtime::DeviceBuffer d_q = buffer(p.heads, queries, p.head_dim), d_k = buffer(p.heads_kv, keys, p.head_dim),
                                d_v = buffer(p.heads_kv, keys, p.head_dim_v);
    const runtime::DeviceBuffer statistics(*device(), runtime::ReferenceBackward::workspace_bytes(p));
    BackwardArgs args = inputs();
    args.workspace = statistics.data();
    args.workspace_bytes = statistics.size();
    const runtime::ReferenceBackward reference(device(), builder(), p);
    tuner::GradientCase& g = exact_.emplace();
    g.d_q = {.name = "dQ", .dtype = p.dtype, .columns = p.head_dim};
    g.d_k = {.name = "dK", .dtype = p.dtype, .columns = p.head_dim};
    g.d_v = {.name = "dV", .dtype = p.dtype, .columns = p.head_dim_v};
    g.d_q.alone = tuner::alone_of_queries(p, options_.sample.queries);
    g.d_k.alone = g.d_v.alone = tuner::alone_of_keys(p, options_.sample.keys);
    const auto values = [](const runtime::DeviceBuffer& memory) {
      std::vector<double> host(memory.size() / 8);
      if (!host.empty()) device()->copy_to_host(host.data(), memory.data(), memory.size());
      return host;
    };
    for (const auto rounding : {runtime::GradientRounding::none, runtime::GradientRounding::kernels}) {
      reference.launch(p, args, options_.sample, rounding, runtime::GradientStatistics::computed,
                       {.dq_exact = static_cast<double*>(d_q.data()),
                        .dk_exact = static_cast<double*>(d_k.data()),
                        .dv_exact = static_cast<double*>(d_v.data())});
      device()->synchronize();
      const bool rounded = rounding == runtime::GradientRounding::kernels;
      (rounded ? g.d_q.kernels : g.d_q.exact) = values(d_q);
      (rounded ? g.d_k.kernels : g.d_k.exact) = values(d_k);
      (rounded ? g.d_v.kernels : g.d_v.exact) = values(d_v);
    }
  }

  const Problem problem_;
  const Options options_;
  std::array<Strides, runtime::kOperands> strides_;
  std::array<std::vector<std::uint16_t>, runtime::kOperands> host_;
  std::array<runtime::DeviceBuffer, runtime::kOperands> memory_;
  runtime::DeviceBuffer lse_, d_lse_, workspace_;
  std::size_t workspace_bytes_ = 0;  // of the plan that it was last handed to
  std::optional<tuner::GradientCase> exact_;
};

/// Launches, compares and checks; names the case where it fails.
inline tuner::CaseResult check_right(const Plan& plan, Backward& backward) {
  backward.poison();
  plan.launch(backward.args(plan));
  tuner::CaseResult result = backward.compare();
  CAPTURE(plan.info().problem);
  CAPTURE(plan.info().config);
  CHECK(result.wrong.value_or("") == "");
  return result;
}

}  // namespace attune::gpu
