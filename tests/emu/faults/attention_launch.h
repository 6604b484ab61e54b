// Runs an attention kernel on the emulator and compares what it computes with a plain computation in double.
#pragma once

#include <algorithm>
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
#include "runtime/compiler.h"
#include "runtime/tensor_map.h"

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

inline TensorMap map_of(const Problem& problem, const codegen::LaunchShape& shape, Operand operand,
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
  return encode_tensor_map(d);
}

inline double worst_error(const Problem& problem, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                          double scale) {
  double worst = 0;
  std::vector<double> p(static_cast<std::size_t>(problem.seqlen_k));
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
            dot += static_cast<double>(q.at(batch, head, row, c)) * static_cast<double>(k.at(batch, kv_head, key, c));
          sum += p[static_cast<std::size_t>(key)] = std::exp(dot * scale);
        }
        for (int c = 0; c < problem.head_dim_v; ++c) {
          double value = 0;
          for (std::int64_t key = 0; key < keys; ++key)
            value += p[static_cast<std::size_t>(key)] * static_cast<double>(v.at(batch, kv_head, key, c));
          const double error = std::abs(static_cast<double>(o.at(batch, head, row, c)) - (keys > 0 ? value / sum : 0));
          worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
        }
      }
    }
  }
  return worst;
}

/// How a launch differs from the one that the kernel was made for.
struct LaunchEdits {
  int kv_box_rows = 0;      ///< 0: as the kernel expects
  bool no_swizzle = false;  ///< of K's tensor map
};

struct AttentionRun {
  Report report;
  double worst = 0;  ///< largest error of O; NaN counts as infinite
};

/// With `workers` blocks. O and LSE are unwritten.
inline AttentionRun run_attention(const Program& program, const codegen::LaunchShape& shape, const Problem& problem,
                                  int workers, const LaunchOptions& options, const LaunchEdits& edits = {}) {
  const std::unique_ptr<Machine> machine = Machine::create();
  const Tensor q = make_tensor(machine.get(), problem, Operand::q), k = make_tensor(machine.get(), problem, Operand::k),
               v = make_tensor(machine.get(), problem, Operand::v), o = make_tensor(machine.get(), problem, Operand::o);
  codegen::LaunchShape boxes = shape;
  if (edits.kv_box_rows > 0) boxes.kv_box_rows = edits.kv_box_rows;
  TensorMap map_q = map_of(problem, boxes, Operand::q, q, Swizzle::bytes128);
  TensorMap map_k = map_of(problem, boxes, Operand::k, k, edits.no_swizzle ? Swizzle::none : Swizzle::bytes128);
  TensorMap map_v = map_of(problem, boxes, Operand::v, v, Swizzle::bytes128);
  TensorMap map_o = map_of(problem, boxes, Operand::o, o, Swizzle::bytes128);

  codegen::ForwardParams params;
  params.lse = static_cast<float*>(
      machine->allocate(static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q) * 4));
  params.counter = static_cast<unsigned*>(machine->allocate(8));
  params.counter[0] = params.counter[1] = 0;
  machine->mark_written(params.counter, 8);
  params.o = o.data;
  params.o_batch = o.strides.batch;
  params.o_head = o.strides.head;
  params.o_row = o.strides.row;
  params.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  params.heads = problem.heads;
  params.group = problem.heads / problem.heads_kv;
  params.tiles_m = static_cast<std::int32_t>((problem.seqlen_q + shape.block_m - 1) / shape.block_m);
  params.head_count = static_cast<std::int32_t>(problem.heads * problem.batch);
  params.total_tiles = params.tiles_m * params.head_count;
  params.section = codegen::default_section(problem);
  params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  params.scale_log2 = params.scale * std::numbers::log2e_v<float>;

  LaunchOptions launch = options;
  launch.grid = {static_cast<unsigned>(workers), 1, 1};
  launch.block = {static_cast<unsigned>(shape.threads), 1, 1};
  launch.dynamic_shared_bytes = static_cast<std::size_t>(shape.shared_bytes);
  void* arguments[] = {&map_q, &map_k, &map_v, &map_o, &params};
  AttentionRun run;
  run.report = machine->launch(program, shape.entry, launch, arguments);
  run.worst = worst_error(problem, q, k, v, o, static_cast<double>(params.scale));
  return run;
}

/// The PTX of a CUDA source, by NVRTC, with the lines of the source.
inline std::string ptx_of(const std::string& source, const std::vector<std::string>& definitions = {}) {
  std::vector<std::string> options{"--gpu-architecture=compute_90a", "--std=c++17", "-default-device",
                                   "--generate-line-info"};
  for (const std::string& definition : definitions) options.push_back("-D" + definition);
  return runtime::Compiler::get()->compile(source, options, true).ptx;
}

}  // namespace attune::emulator
