// Runs an attention kernel on the emulator and compares what it computes with a plain computation in double.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include <attune/emulator.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/tensor_map.h"
#include "tests/emu/ptx_cache.h"

namespace attune::emulator {

using runtime::Operand;

inline float to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
inline std::uint16_t to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Q, K, V or O in the machine's memory.
struct Tensor {
  std::uint16_t* data = nullptr;
  runtime::TensorShape shape;
  Strides strides;
  std::size_t elements() const {
    return static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.head_dim);
  }
  float at(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
    return to_float(data[batch * strides.batch + head * strides.head + row * strides.row + column]);
  }
};

inline Tensor make_tensor(Machine* machine, const Problem& problem, Operand operand) {
  Tensor t;
  t.shape = runtime::shape_of(problem, operand);
  t.strides = runtime::default_strides(problem, operand);
  t.data = static_cast<std::uint16_t*>(machine->allocate(t.elements() * 2));
  if (operand == Operand::o) {
    std::fill_n(t.data, t.elements(), std::uint16_t{0x7fc1});  // NaN, and unwritten
    return t;
  }
  std::mt19937 random(static_cast<unsigned>(operand) + 1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < t.elements(); ++i) t.data[i] = to_bfloat(normal(random));
  machine->mark_written(t.data, t.elements() * 2);
  return t;
}

inline TensorMapDescription map_of(const Problem& problem, const codegen::LaunchShape& shape, Operand operand,
                                   const Tensor& tensor, Swizzle swizzle) {
  const runtime::TensorMapGeometry g = runtime::geometry(problem, shape, operand, tensor.strides);
  TensorMapDescription d;
  d.type = TensorType::bf16;
  d.rank = 4;
  d.base = tensor.data;
  std::ranges::copy(g.dims, d.dims.begin());
  std::ranges::copy(g.strides, d.strides.begin());
  d.box = {64, g.box_rows, 1, 1};
  d.element_strides = {1, 1, 1, 1, 1};
  d.swizzle = swizzle;
  return d;
}

/// How a launch differs from the one that the kernel was made for.
struct LaunchEdits {
  int kv_box_rows = 0;      ///< 0: as the kernel expects
  bool no_swizzle = false;  ///< of K's tensor map
};

/// What a launch takes: memory of a machine, unwritten where the kernel is to write, and all arguments.
struct AttentionLaunch {
  Tensor q, k, v, o;
  std::size_t lse_elements = 0;
  std::array<TensorMapDescription, 4> maps;  ///< of Q, K, V, O
  codegen::ForwardParams params;
  LaunchOptions options;  ///< grid, cluster, block and shared memory
};

/// With `workers` blocks, in clusters of `cluster`.
inline AttentionLaunch prepare_attention(Machine* machine, const codegen::LaunchShape& shape, const Problem& problem,
                                         int workers, int cluster, const LaunchEdits& edits = {}) {
  AttentionLaunch launch;
  launch.q = make_tensor(machine, problem, Operand::q);
  launch.k = make_tensor(machine, problem, Operand::k);
  launch.v = make_tensor(machine, problem, Operand::v);
  launch.o = make_tensor(machine, problem, Operand::o);
  codegen::LaunchShape boxes = shape;
  if (edits.kv_box_rows > 0) boxes.kv_box_rows = edits.kv_box_rows;
  const Swizzle swizzle_k = edits.no_swizzle ? Swizzle::none : Swizzle::bytes128;
  launch.maps = {map_of(problem, boxes, Operand::q, launch.q, Swizzle::bytes128),
                 map_of(problem, boxes, Operand::k, launch.k, swizzle_k),
                 map_of(problem, boxes, Operand::v, launch.v, Swizzle::bytes128),
                 map_of(problem, boxes, Operand::o, launch.o, Swizzle::bytes128)};

  codegen::ForwardParams& params = launch.params;
  launch.lse_elements = static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q);
  params.lse = static_cast<float*>(machine->allocate(launch.lse_elements * sizeof(float)));
  std::fill_n(params.lse, launch.lse_elements, std::numeric_limits<float>::quiet_NaN());
  params.counter = static_cast<unsigned*>(machine->allocate(8));
  params.counter[0] = params.counter[1] = 0;
  machine->mark_written(params.counter, 8);
  params.o = launch.o.data;
  params.o_batch = launch.o.strides.batch;
  params.o_head = launch.o.strides.head;
  params.o_row = launch.o.strides.row;
  params.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  params.heads = problem.heads;
  params.group = problem.heads / problem.heads_kv;
  const int rows = shape.block_m * cluster;
  params.tiles_m = static_cast<std::int32_t>((problem.seqlen_q + rows - 1) / rows);
  params.head_count = static_cast<std::int32_t>(problem.heads * problem.batch);
  params.total_tiles = params.tiles_m * params.head_count;
  params.section = codegen::default_section(problem);
  params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  params.scale_log2 = params.scale * std::numbers::log2e_v<float>;

  launch.options.grid = {static_cast<unsigned>(workers), 1, 1};
  launch.options.cluster = {static_cast<unsigned>(cluster), 1, 1};
  launch.options.block = {static_cast<unsigned>(shape.threads), 1, 1};
  launch.options.dynamic_shared_bytes = static_cast<std::size_t>(shape.shared_bytes);
  return launch;
}

/// What a kernel has to write, computed in double.
struct AttentionOutput {
  std::vector<double> o;    ///< as O lies in memory
  std::vector<double> lse;  ///< [batch, heads, seqlen_q]
};

inline AttentionOutput expected_output(const Problem& problem, const AttentionLaunch& launch) {
  AttentionOutput output;
  output.o.resize(launch.o.elements());
  std::vector<double> p(static_cast<std::size_t>(problem.seqlen_k));
  const double scale = static_cast<double>(launch.params.scale);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const std::int64_t kv_head = head / (problem.heads / problem.heads_kv);
      for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
        const std::int64_t keys = problem.causal
                                      ? std::min(problem.seqlen_k, row + 1 + problem.seqlen_k - problem.seqlen_q)
                                      : problem.seqlen_k;
        double sum = 0;
        for (std::int64_t key = 0; key < keys; ++key) {
          double dot = 0;
          for (int c = 0; c < problem.head_dim; ++c)
            dot += static_cast<double>(launch.q.at(batch, head, row, c)) *
                   static_cast<double>(launch.k.at(batch, kv_head, key, c));
          sum += p[static_cast<std::size_t>(key)] = std::exp(dot * scale);
        }
        output.lse.push_back(std::log(sum));
        const Strides& strides = launch.o.strides;
        double* const o = output.o.data() + batch * strides.batch + head * strides.head + row * strides.row;
        for (int c = 0; c < problem.head_dim_v; ++c) {
          double value = 0;
          for (std::int64_t key = 0; key < keys; ++key)
            value += p[static_cast<std::size_t>(key)] * static_cast<double>(launch.v.at(batch, kv_head, key, c));
          o[c] = keys > 0 ? value / sum : 0;
        }
      }
    }
  }
  return output;
}

/// Largest error of O and LSE; NaN counts as infinite.
inline double worst_error(const AttentionLaunch& launch, const AttentionOutput& expected) {
  double worst = 0;
  const auto compare = [&](double value, double right) {
    const double error = value == right ? 0 : std::abs(value - right);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  };
  for (std::size_t i = 0; i < expected.o.size(); ++i)
    compare(static_cast<double>(to_float(launch.o.data[i])), expected.o[i]);
  for (std::size_t i = 0; i < expected.lse.size(); ++i)
    compare(static_cast<double>(launch.params.lse[i]), expected.lse[i]);
  return worst;
}

struct AttentionRun {
  Report report;
  double worst = 0;  ///< as worst_error() has it
};

/// With `workers` blocks, in clusters of `cluster`.
inline AttentionRun run_attention(const Program& program, const codegen::LaunchShape& shape, const Problem& problem,
                                  int workers, int cluster, const LaunchOptions& options,
                                  const LaunchEdits& edits = {}) {
  const std::unique_ptr<Machine> machine = Machine::create();
  AttentionLaunch launch = prepare_attention(machine.get(), shape, problem, workers, cluster, edits);
  LaunchOptions all = options;
  all.grid = launch.options.grid;
  all.cluster = launch.options.cluster;
  all.block = launch.options.block;
  all.dynamic_shared_bytes = launch.options.dynamic_shared_bytes;
  std::array<TensorMap, 4> maps;
  std::ranges::transform(launch.maps, maps.begin(), encode_tensor_map);
  void* arguments[] = {&maps[0], &maps[1], &maps[2], &maps[3], &launch.params};
  AttentionRun run;
  run.report = machine->launch(program, shape.entry, all, arguments);
  run.worst = worst_error(launch, expected_output(problem, launch));
  return run;
}

/// Of the kernels, with the lines of their source.
inline std::vector<std::string> compile_options(const std::string& architecture,
                                                const std::vector<std::string>& definitions) {
  std::vector<std::string> options{"--gpu-architecture=" + architecture, "--std=c++17", "-default-device",
                                   "--generate-line-info"};
  for (const std::string& definition : definitions) options.push_back("-D" + definition);
  return options;
}

/// The PTX of a CUDA source, by NVRTC.
inline std::string ptx_of(const std::string& source, const std::vector<std::string>& definitions = {}) {
  return tests::ptx_compiler()->compile(source, compile_options("compute_90a", definitions), true).ptx;
}

}  // namespace attune::emulator
