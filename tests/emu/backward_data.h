// Tensors of one backward problem in an emulated machine's memory, and launches of the kernels on them.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include <attune/emulator.h>
#include <attune/plan.h>

#include "codegen/backward/params.h"
#include "codegen/kernel_spec.h"
#include "runtime/compiler.h"
#include "runtime/tensor_map.h"
#include "tests/emu/gradients.h"
#include "tests/emu/ptx_cache.h"

namespace attune::emulator {

using runtime::Operand;

/// What a case has beside its problem.
struct BackwardOptions {
  bool gaps = false;   ///< rows, heads and batches lie further apart than they need
  bool d_lse = false;  ///< the loss depends on LSE too
  float sd = 1;        ///< standard deviation of Q
  unsigned seed = 1;   ///< of the numbers
};

/// A 16-bit tensor in the machine's memory.
struct DeviceTensor {
  std::uint16_t* data = nullptr;
  runtime::TensorShape shape;
  Strides strides;
  std::size_t elements = 0;  ///< gaps included

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return b * strides.batch + h * strides.head + r * strides.row;
  }
};

class BackwardData {
 public:
  BackwardData(Machine& machine, const Problem& problem, const BackwardOptions& options = {})
      : machine_(machine),
        problem_(problem),
        options_(options),
        inputs{Values(problem.batch, problem.heads, problem.seqlen_q, problem.head_dim),
               Values(problem.batch, problem.heads_kv, problem.seqlen_k, problem.head_dim),
               Values(problem.batch, problem.heads_kv, problem.seqlen_k, problem.head_dim_v),
               Values(problem.batch, problem.heads, problem.seqlen_q, problem.head_dim_v),
               Values(problem.batch, problem.heads, problem.seqlen_q, 1),
               static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim))))},
        forward{Values(0, 0, 0, 0), Values(0, 0, 0, 0)} {
    std::mt19937 random(options.seed);
    q = tensor(Operand::q), k = tensor(Operand::k), v = tensor(Operand::v);
    o = tensor(Operand::o), d_o = tensor(Operand::o);
    d_q = tensor(Operand::q), d_k = tensor(Operand::k), d_v = tensor(Operand::v);
    draw(q, inputs.q, random, options.sd), draw(k, inputs.k, random, 1), draw(v, inputs.v, random, 1);
    draw(d_o, inputs.d_o, random, 1);
    if (options.d_lse)
      for (double& value : inputs.d_lse.data) value = static_cast<double>(static_cast<float>(normal(random)));
    forward = attention(problem, inputs);
    write(o, forward.o);
    lse = floats(forward.lse);
    if (options.d_lse) d_lse = floats(inputs.d_lse);
  }

  /// Gradients become unwritten, and NaN.
  void reset() {
    for (DeviceTensor* t : {&d_q, &d_k, &d_v}) {
      std::fill_n(t->data, t->elements, runtime::kPoisonElement);
      machine_.mark_written(t->data, t->elements * 2, false);
    }
  }

  Gradients results() const { return {read(d_q), read(d_k), read(d_v)}; }

  /// What kernels wrote beside their tensors, in words; empty if nothing.
  std::string damage() const {
    for (const DeviceTensor* t : {&d_q, &d_k, &d_v}) {
      std::vector<bool> inside(t->elements, false);
      each_row(*t, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
        for (std::int64_t c = 0; c < t->shape.head_dim; ++c)
          inside[static_cast<std::size_t>(t->at(b, h, r) + c)] = true;
      });
      for (std::size_t i = 0; i < t->elements; ++i)
        if (!inside[i] && t->data[i] != runtime::kPoisonElement) return "element " + std::to_string(i) + " in a gap";
    }
    return {};
  }

  void* allocate(std::size_t bytes) const { return machine_.allocate(bytes); }

 private:
  Machine& machine_;
  Problem problem_;
  BackwardOptions options_;

 public:
  Inputs inputs;
  Outputs forward;
  DeviceTensor q, k, v, o, d_o, d_q, d_k, d_v;
  float *lse = nullptr, *d_lse = nullptr;

 private:
  // The standard's distributions differ between libraries: sums of uniform numbers do.
  static float normal(std::mt19937& random) {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random()) * 0x1p-32f;
    return sum - 6;
  }

  template <typename Visit>
  static void each_row(const DeviceTensor& t, const Visit& visit) {
    for (std::int64_t b = 0; b < t.shape.batch; ++b)
      for (std::int64_t h = 0; h < t.shape.heads; ++h)
        for (std::int64_t r = 0; r < t.shape.rows; ++r) visit(b, h, r);
  }

  DeviceTensor tensor(Operand operand) const {
    DeviceTensor t;
    t.shape = runtime::shape_of(problem_, operand);
    t.strides = runtime::default_strides(problem_, operand);
    if (options_.gaps) {
      const bool rows_outside = problem_.layout == Layout::bshd;
      t.strides.head = rows_outside ? t.shape.head_dim + 8 : t.shape.rows * (t.shape.head_dim + 8) + 16;
      t.strides.row = rows_outside ? t.shape.heads * t.strides.head + 16 : t.shape.head_dim + 8;
      t.strides.batch = std::max(t.shape.rows * t.strides.row, t.shape.heads * t.strides.head) + 24;
    }
    t.elements = static_cast<std::size_t>(
        std::max<std::int64_t>(t.shape.batch * std::max(t.strides.batch, t.shape.head_dim), 8));
    t.data = static_cast<std::uint16_t*>(machine_.allocate(t.elements * 2));
    std::fill_n(t.data, t.elements, runtime::kPoisonElement);
    return t;
  }

  void write(const DeviceTensor& t, const Values& values) const {
    each_row(t, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
      for (std::int64_t c = 0; c < t.shape.head_dim; ++c)
        t.data[t.at(b, h, r) + c] = runtime::to_element(problem_.dtype, static_cast<float>(values.row(b, h, r)[c]));
      machine_.mark_written(t.data + t.at(b, h, r), static_cast<std::size_t>(t.shape.head_dim) * 2);
    });
  }

  void draw(const DeviceTensor& t, Values& values, std::mt19937& random, float sd) const {
    for (double& value : values.data)
      value = static_cast<double>(
          runtime::to_float(problem_.dtype, runtime::to_element(problem_.dtype, sd * normal(random))));
    write(t, values);
  }

  Values read(const DeviceTensor& t) const {
    Values values(t.shape.batch, t.shape.heads, t.shape.rows, t.shape.head_dim);
    each_row(t, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
      for (std::int64_t c = 0; c < t.shape.head_dim; ++c)
        values.row(b, h, r)[c] = static_cast<double>(runtime::to_float(problem_.dtype, t.data[t.at(b, h, r) + c]));
    });
    return values;
  }

  float* floats(const Values& values) const {
    const std::size_t bytes = std::max<std::size_t>(values.data.size(), 1) * 4;
    auto* const memory = static_cast<float*>(machine_.allocate(bytes));
    for (std::size_t i = 0; i < values.data.size(); ++i) memory[i] = static_cast<float>(values.data[i]);
    machine_.mark_written(memory, bytes);
    return memory;
  }
};

inline unsigned count(std::int64_t value) { return static_cast<unsigned>(value); }

/// Both kernels of a Family::reference_backward build, over every row.
inline std::vector<Report> launch_reference(Machine& machine, const Program& program, const codegen::LaunchShape& shape,
                                            const Problem& p, const BackwardData& data, std::uint64_t seed = 0) {
  codegen::ReferenceBackwardParams params;
  params.q = data.q.data, params.k = data.k.data, params.v = data.v.data, params.d_o = data.d_o.data;
  params.d_lse = data.d_lse;
  params.statistics = static_cast<double*>(
      machine.allocate(std::max<std::size_t>(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q), 1) * 16));
  params.d_q = data.d_q.data, params.d_k = data.d_k.data, params.d_v = data.d_v.data;
  const auto set = [](const Strides& s, std::int64_t& batch, std::int64_t& head, std::int64_t& row) {
    batch = s.batch, head = s.head, row = s.row;
  };
  set(data.q.strides, params.q_batch, params.q_head, params.q_row);
  set(data.k.strides, params.k_batch, params.k_head, params.k_row);
  set(data.v.strides, params.v_batch, params.v_head, params.v_row);
  set(data.d_o.strides, params.do_batch, params.do_head, params.do_row);
  set(data.d_q.strides, params.dq_batch, params.dq_head, params.dq_row);
  set(data.d_k.strides, params.dk_batch, params.dk_head, params.dk_row);
  set(data.d_v.strides, params.dv_batch, params.dv_head, params.dv_row);
  params.scale = data.inputs.scale;
  params.seqlen_q = static_cast<std::int32_t>(p.seqlen_q);
  params.seqlen_k = static_cast<std::int32_t>(p.seqlen_k);
  params.heads = p.heads;
  params.heads_kv = p.heads_kv;
  void* arguments[] = {&params};
  LaunchOptions options;
  options.seed = seed;
  options.block = {static_cast<unsigned>(shape.threads)};
  std::vector<Report> reports;
  if (p.seqlen_q > 0) {
    options.grid = {count(p.seqlen_q), count(p.heads), count(p.batch)};
    reports.push_back(machine.launch(program, shape.before.front().entry, options, arguments));
  }
  if (p.seqlen_k > 0) {
    options.grid = {count(p.seqlen_k), count(p.heads_kv), count(p.batch)};
    reports.push_back(machine.launch(program, shape.entry, options, arguments));
  }
  return reports;
}

/// A tensor map of 64-column boxes, as the kernels take them. An empty tensor's map is over one row of `other`.
inline TensorMap map_of(DType dtype, const DeviceTensor& tensor, int box_rows, const DeviceTensor& other) {
  const bool empty = tensor.shape.rows == 0;
  const DeviceTensor& t = empty ? other : tensor;
  TensorMapDescription d;
  d.type = dtype == DType::bf16 ? TensorType::bf16 : TensorType::f16;
  d.rank = 4;
  d.base = t.data;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  d.dims = {size(t.shape.head_dim), empty ? 1 : size(t.shape.rows), size(t.shape.heads), size(t.shape.batch), 0};
  d.strides = {size(t.strides.row) * 2, size(t.strides.head) * 2, size(t.strides.batch) * 2, 0};
  d.box = {64, static_cast<std::uint32_t>(box_rows), 1, 1, 0};
  d.swizzle = Swizzle::bytes128;
  return encode_tensor_map(d);
}

/// All kernels of a Family::sm90_backward build.
inline std::vector<Report> launch_backward(Machine& machine, const Program& program, const codegen::KernelSpec& spec,
                                           const Problem& p, const BackwardData& data, std::uint64_t seed,
                                           const codegen::backward::Tunables& launch_part = {}) {
  const codegen::LaunchShape shape = codegen::launch_shape(spec);
  constexpr int kWorkers = 2;  // few, so that each computes many blocks of keys
  const codegen::BackwardGrid grid = codegen::backward_grid(spec, launch_part, p, kWorkers);
  const codegen::BackwardWorkspace workspace = codegen::backward_workspace(spec, p, grid);
  auto* const memory = static_cast<std::byte*>(machine.allocate(std::max<std::size_t>(workspace.bytes, 1)));
  std::memset(memory, 0xff, workspace.bytes);  // NaN, and unwritten

  codegen::BackwardParams params = codegen::backward_params(spec, p, grid);
  params.o = data.o.data, params.d_o = data.d_o.data, params.d_q = data.d_q.data;
  params.d_k = data.d_k.data, params.d_v = data.d_v.data;
  params.lse = data.lse, params.d_lse = data.d_lse;
  params.shifts = reinterpret_cast<float*>(memory + workspace.shifts_at);
  params.deltas = reinterpret_cast<float*>(memory + workspace.deltas_at);
  params.dq_sums = reinterpret_cast<float*>(memory + workspace.dq_sums_at);
  params.turns = reinterpret_cast<unsigned*>(memory + workspace.turns_at);
  params.ticket = reinterpret_cast<unsigned*>(memory + workspace.ticket_at);
  params.finished = reinterpret_cast<unsigned*>(memory + workspace.finished_at);
  params.ready = reinterpret_cast<unsigned*>(memory + workspace.ready_at);
  params.dkv_parts = reinterpret_cast<float*>(memory + workspace.parts_at);
  params.o_batch = data.o.strides.batch, params.o_head = data.o.strides.head, params.o_row = data.o.strides.row;
  params.do_batch = data.d_o.strides.batch, params.do_head = data.d_o.strides.head;
  params.do_row = data.d_o.strides.row;
  params.dq_batch = data.d_q.strides.batch, params.dq_head = data.d_q.strides.head;
  params.dq_row = data.d_q.strides.row;
  params.dk_batch = data.d_k.strides.batch, params.dk_head = data.d_k.strides.head;
  params.dk_row = data.d_k.strides.row;
  params.dv_batch = data.d_v.strides.batch, params.dv_head = data.d_v.strides.head;
  params.dv_row = data.d_v.strides.row;
  params.scale = static_cast<float>(data.inputs.scale);
  params.scale_log2 = params.scale * std::numbers::log2e_v<float>;

  std::vector<Report> reports;
  LaunchOptions options;
  options.seed = seed;
  options.resident_blocks = 3;
  const auto side = [&](const codegen::SideLaunch& launch, std::int64_t blocks) {
    if (blocks == 0) return;
    options.grid = {count(blocks)};
    options.block = {static_cast<unsigned>(launch.threads)};
    options.dynamic_shared_bytes = static_cast<std::size_t>(launch.shared_bytes);
    void* arguments[] = {&params};
    reports.push_back(machine.launch(program, launch.entry, options, arguments));
  };
  for (const codegen::SideLaunch& launch : shape.before) side(launch, grid.prepared);
  if (grid.blocks > 0) {
    TensorMap q = map_of(p.dtype, data.q, shape.q_box_rows, data.k),
              k = map_of(p.dtype, data.k, shape.kv_box_rows, data.q),
              v = map_of(p.dtype, data.v, shape.kv_box_rows, data.q),
              d_o = map_of(p.dtype, data.d_o, shape.q_box_rows, data.k),
              d_k = map_of(p.dtype, data.d_k, shape.o_box_rows, data.q),
              d_v = map_of(p.dtype, data.d_v, shape.o_box_rows, data.q),
              d_q = map_of(p.dtype, data.d_q, shape.o_box_rows, data.k);
    options.grid = {count(grid.blocks)};
    options.block = {static_cast<unsigned>(shape.threads)};
    options.dynamic_shared_bytes = static_cast<std::size_t>(shape.shared_bytes);
    std::vector<void*> arguments{&q, &k, &v, &d_o, &d_k, &d_v};
    if (spec.config.backward.finish == codegen::backward::Finish::ring) arguments.push_back(&d_q);
    arguments.push_back(&params);
    reports.push_back(machine.launch(program, shape.entry, options, arguments.data()));
  }
  for (const codegen::SideLaunch& launch : shape.after) side(launch, grid.finishing);
  machine.free(memory);
  return reports;
}

/// The PTX of a build's source, with the lines of its templates.
inline std::string ptx_of(const std::string& source) {
  return tests::ptx_compiler()
      ->compile(source, {"--gpu-architecture=sm_90a", "--std=c++17", "-default-device"}, true)
      .ptx;
}

}  // namespace attune::emulator
