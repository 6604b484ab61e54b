#include "codegen/kernel_spec.h"

#include <array>

#include "base/error.h"
#include "base/fields.h"
#include "codegen/backward/layout.h"
#include "codegen/layout.h"

namespace attune::codegen {
namespace {

constexpr std::array<const char*, 5> kEdges{"none", "tail", "length", "diagonal", "diagonals"};

Edge parse_edge(std::string_view text) {
  for (std::size_t i = 0; i < kEdges.size(); i++)
    if (text == kEdges[i]) return static_cast<Edge>(i);
  fail(ErrorCode::invalid_argument, "spec edge: '{}' is unknown (allowed: none, tail, length, diagonal, diagonals)",
       text);
}

// Only a warpgroup's first block crosses the diagonal: the diagonal meets block corners.
bool diagonal_is_aligned(const Config& c, std::int64_t offset) {
  if (offset % c.block_n != 0) return false;
  return c.skips_blocks() ? c.block_n % 64 == 0 : c.cluster_m() == c.block_n;
}

}  // namespace

std::string to_string(const KernelSpec& spec) {
  Fields fields{{"arch", spec.arch},
                {"dtype", attune::to_string(spec.dtype)},
                {"head_dim", std::to_string(spec.head_dim)},
                {"head_dim_v", std::to_string(spec.head_dim_v)},
                {"causal", spec.causal ? "1" : "0"},
                {"edge", kEdges[static_cast<std::size_t>(spec.edge)]},
                {"tail", std::to_string(spec.tail)}};
  if (spec.config.family == Family::sm90_backward) fields.emplace_back("deterministic", spec.deterministic ? "1" : "0");
  return join_fields(fields) + "," + kernel_part(spec.config);
}

KernelSpec parse_kernel_spec(std::string_view text) {
  KernelSpec spec;
  Fields config;
  for (auto& [key, value] : parse_fields("spec", text)) {
    if (key == "arch")
      spec.arch = parse_arch(value).name;
    else if (key == "dtype")
      spec.dtype = parse_dtype(value);
    else if (key == "head_dim")
      spec.head_dim = static_cast<int>(parse_int(key, value, 8, 256));
    else if (key == "head_dim_v")
      spec.head_dim_v = static_cast<int>(parse_int(key, value, 8, 256));
    else if (key == "causal")
      spec.causal = parse_bool(key, value);
    else if (key == "edge")
      spec.edge = parse_edge(value);
    else if (key == "tail")
      spec.tail = static_cast<int>(parse_int(key, value, 0, 255));
    else if (key == "deterministic")
      spec.deterministic = parse_bool(key, value);
    else
      config.emplace_back(key, value);
  }
  spec.config = without_launch_part(parse_config(join_fields(config)));
  if (spec.deterministic && spec.config.family != Family::sm90_backward)
    fail(ErrorCode::invalid_argument, "spec deterministic: 1 (allowed with this family: 0)");
  return spec;
}

KernelSpec specialise(const Arch& arch, const Problem& problem, const Config& config) {
  validate(problem);
  if (op_of(config.family) != problem.op)
    fail(ErrorCode::invalid_argument, "config family: computes op = {}, the problem asks for {}",
         attune::to_string(op_of(config.family)), attune::to_string(problem.op));
  KernelSpec spec;
  spec.arch = arch.name;
  spec.dtype = problem.dtype;
  spec.head_dim = problem.head_dim;
  spec.head_dim_v = problem.head_dim_v;
  spec.causal = problem.causal;
  spec.config = without_launch_part(config);
  if (is_reference(config.family)) {
    spec.config = Config{.family = config.family};
    return spec;  // any length
  }
  if (config.family == Family::sm90_backward) {
    spec.edge = backward::edge_of(problem, config.backward);
    spec.deterministic = problem.deterministic;
    return spec;
  }
  if (problem.causal) {
    spec.edge = diagonal_is_aligned(config, problem.seqlen_k - problem.seqlen_q) ? Edge::diagonal : Edge::diagonals;
    // No key at all: every row must be masked, which the aligned kernel's tiles still do in their first block.
    return spec;
  }
  const int rest = static_cast<int>(problem.seqlen_k % config.block_n);
  if (problem.seqlen_k > 0 && rest == 0) {
    spec.edge = Edge::none;
  } else if (problem.seqlen_k > 0 && config.exact_tail && rest % 16 == 0) {
    spec.edge = Edge::tail;
    spec.tail = rest;
  } else {
    spec.edge = Edge::length;
  }
  return spec;
}

bool serves(const KernelSpec& spec, const Problem& problem) {
  if (op_of(spec.config.family) != problem.op || spec.dtype != problem.dtype || spec.head_dim != problem.head_dim ||
      spec.head_dim_v != problem.head_dim_v || spec.causal != problem.causal)
    return false;
  if (is_reference(spec.config.family)) return true;
  if (spec.config.family == Family::sm90_backward)
    return spec.deterministic >= problem.deterministic && backward::edge_serves(spec, problem);
  switch (spec.edge) {
    case Edge::length:
    case Edge::diagonals: return true;
    case Edge::none: return problem.seqlen_k > 0 && problem.seqlen_k % spec.config.block_n == 0;
    case Edge::tail: return problem.seqlen_k > 0 && problem.seqlen_k % spec.config.block_n == spec.tail;
    case Edge::diagonal: return diagonal_is_aligned(spec.config, problem.seqlen_k - problem.seqlen_q);
  }
  return false;
}

LaunchShape launch_shape(const KernelSpec& spec) {
  LaunchShape shape;
  if (spec.config.family == Family::reference) {
    shape.entry = "attune_reference_forward";
    shape.threads = 128;
    shape.block_m = 1;
    return shape;
  }
  if (spec.config.family == Family::reference_backward) {
    shape.entry = "attune_reference_backward_keys";
    shape.threads = 128;
    shape.block_m = 1;
    shape.before = {{.entry = "attune_reference_backward_rows", .threads = 128}};
    return shape;
  }
  if (spec.config.family == Family::sm90_backward) return backward::launch_shape(spec);
  const SharedLayout layout = layout_of(spec);
  shape.entry = "attune_forward";
  shape.threads = 128 * (spec.config.consumers + 1);
  shape.shared_bytes = layout.bytes;
  shape.block_m = spec.config.block_m();
  shape.block_n = spec.config.block_n;
  shape.q_box_rows = 64;
  shape.kv_box_rows = spec.config.block_n / spec.config.cluster;
  shape.o_box_rows = spec.config.warp_epilogue ? 16 : 64;
  shape.counter = spec.config.grid == Grid::dynamic;
  return shape;
}

SharedLayout layout_of(const KernelSpec& spec) {
  const Config& c = spec.config;
  SharedLayout l;
  l.qk_chunks = (spec.head_dim + 63) / 64;
  l.v_chunks = (spec.head_dim_v + 63) / 64;
  l.q_bytes = c.block_m() * l.qk_chunks * 128;
  l.o_chunks = (l.v_chunks + c.o_pieces - 1) / c.o_pieces;
  l.o_bytes = c.o == OBuffer::direct ? 0 : c.block_m() * l.o_chunks * 128;
  l.k_bytes = c.block_n * l.qk_chunks * 128;
  l.v_bytes = c.block_n * l.v_chunks * 128;
  l.q_at = 0;
  l.o_at = c.o == OBuffer::over_q ? l.q_at : l.q_at + c.q_buffers * l.q_bytes;
  l.k_at = c.q_buffers * l.q_bytes + (c.o == OBuffer::own ? l.o_bytes : 0);
  l.v_at = l.k_at + c.stages * l.k_bytes;
  l.barriers_at = l.v_at + c.stages * l.v_bytes;
  l.claims = c.tells_claims() ? c.stages + 2 : 0;
  // K full, K empty, V full, V empty per stage; Q full, Q empty per Q buffer; of claims each one told and all read;
  // then the ring of four tile slots.
  const int barriers = 4 * c.stages + 2 * c.q_buffers + (c.tells_claims() ? l.claims + 1 : 0);
  l.slots_at = l.barriers_at + (8 * barriers + 15) / 16 * 16;
  l.claims_at = l.slots_at + 4 * 16;
  l.bytes = l.claims_at + 16 * l.claims + 1024;  // swizzled tiles start on 1024 bytes; the window's start need not
  return l;
}

int q_steps_in_registers(const KernelSpec& spec) {
  return (spec.config.q == QSource::registers ? spec.head_dim + 15 : spec.config.q_columns) / 16;
}

int registers_needed(const KernelSpec& spec) {
  const int scores = spec.config.block_n / 2, packed = spec.config.block_n / 4, output = spec.head_dim_v / 2;
  return scores + packed + output + 4 * q_steps_in_registers(spec) + 20;
}

RegisterSplit register_split(const KernelSpec& spec) {
  switch (spec.config.consumers) {
    case 1: return {56, 256};
    case 2:
      // A producer that claims tiles gets by with 24 if it must, and spills where it asks for the next Q ahead, too.
      return spec.config.grid == Grid::dynamic && registers_needed(spec) <= 224 ? RegisterSplit{40, 232}
                                                                                : RegisterSplit{24, 240};
    default: return {32, 160};
  }
}

}  // namespace attune::codegen
