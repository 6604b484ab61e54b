// Source of one backward build: the kernels that prepare, compute and finish the gradients.
#include <algorithm>

#include "base/error.h"
#include "codegen/backward/emit_parts.h"
#include "codegen/backward/space.h"
#include "codegen/emit_parts.h"

namespace attune::codegen::backward {
namespace {

const char* word_of(Split split) {
  switch (split) {
    case Split::rows: return "row";
    case Split::columns: return "column";
    case Split::products: return "product";
  }
  return "";
}

const char* way_of(DqPath dq) {
  switch (dq) {
    case DqPath::bulk: return "by bulk copies";
    case DqPath::direct: return "from registers";
    case DqPath::pass: return "in a pass of its own";
  }
  return "";
}

void emit_heading(Writer& out, const KernelSpec& spec) {
  const Tunables& t = spec.config.backward;
  const bool passes = t.dq == DqPath::pass;
  const char* const order = passes ? "" : t.lag ? ", dQ one step late" : ", one barrier a step";
  out.line(
      "// attune backward  {}  |  {}x{}, {} split, {} Q + {} dO + {} {} stages{}{}{}, dQ {}{}", problem_words(spec),
      t.block_m, t.block_n(), word_of(t.split), t.q_stages, t.do_stages, t.ds_stages, passes ? "P" : "dS", order,
      t.ping_pong ? ", ping-pong" : "", t.late_fences ? ", late fences" : "", way_of(t.dq),
      fmt::format("{}{}{}{}{}{}{}", takes_turns(spec) ? " in order" : "",
                  t.sums == Sums::stored ? ", the first one stored" : "",
                  t.visits == Visits::descending ? ", last tiles first" : "", t.skip ? ", unseen tiles skipped" : "",
                  t.boundary == Boundary::overlapped ? ", overlapped boundaries" : "",
                  t.persistent ? ", persistent" : "",
                  t.finish == Finish::ring ? ", finished from a ring of sums" : "") +
          (t.prepare == Prepare::inside ? ", prepared inside" : "") +
          (t.dkv == DkvPath::parts ? ", dK and dV from parts" : ""));
  out.line("// spec: {}", to_string(spec));
  out.line("// reproduce: attune emit --spec {}", to_string(spec));
  out.line("");
}

void emit_plan(Writer& out, const KernelSpec& spec) {
  const Tunables& t = spec.config.backward;
  const Layout l = backward::layout_of(spec);
  const int score_columns = t.split == Split::columns ? t.block_m / 2 : t.block_m;
  out.line("constexpr int kBlockM = {}, kBlockN = {}, kQStages = {}, kDoStages = {}, kDsStages = {};", t.block_m,
           t.block_n(), t.q_stages, t.do_stages, t.ds_stages);
  out.line("constexpr int kQkChunks = {}, kVChunks = {};  // 64 columns each, zero-filled beyond the head dim",
           l.qk_chunks, l.v_chunks);
  out.line("constexpr int kQkSteps = {}, kVSteps = {};  // of 16 columns", (spec.head_dim + 15) / 16,
           (spec.head_dim_v + 15) / 16);
  out.line("constexpr int kScores = {}, kPacked = {};  // registers a thread", score_columns / 2, score_columns / 4);
  out.line("constexpr int kDqFloats = {};  // sums of dQ a query tile", l.dq_floats());
  out.line("constexpr bool kDescending = {};  // a block of keys visits the last query tile of a head first",
           t.visits == Visits::descending);
  out.line("");
  out.line("// Shared memory, bytes from the first 1024-byte boundary.");
  out.line("constexpr uint32_t kQBytes = {}, kDoBytes = {}, kStatisticsBytes = {};", l.q_bytes, l.do_bytes,
           l.statistics_bytes);
  out.line("constexpr uint32_t kSharedK = {}, kSharedV = {}, kSharedQ = {}, kSharedDo = {};", l.k_at, l.v_at, l.q_at,
           l.do_at);
  if (l.ds_bytes > 0) out.line("constexpr uint32_t kSharedDs = {}, kDsBytes = {};", l.ds_at, l.ds_bytes);
  if (l.p_stages > 0) out.line("constexpr uint32_t kSharedP = {}, kPBytes = {};", l.p_at, l.p_bytes);
  if (t.dq == DqPath::bulk) out.line("constexpr uint32_t kSharedDq = {};", l.dq_at);
  if (t.finish == Finish::ring)
    out.line("constexpr uint32_t kSharedRows = {}, kSharedSums = {};  // of dQ to be finished", l.rows_at, l.sums_at);
  out.line("constexpr uint32_t kSharedLse = {}, kSharedDelta = {};", l.lse_at, l.delta_at);
  if (t.k_stages > 1) out.line("constexpr uint32_t kKBytes = {};  // one of two buffers", l.k_bytes);
  out.line("constexpr uint32_t kKFull = {}, kVFull = kKFull + {};", l.barriers_at, 8 * t.k_stages);
  out.line("constexpr uint32_t kQFull = kVFull + 8, kQEmpty = kQFull + 8 * kQStages;");
  out.line("constexpr uint32_t kDoFull = kQEmpty + 8 * kQStages, kDoEmpty = kDoFull + 8 * kDoStages;");
  out.line("constexpr uint32_t kDsFull = kDoEmpty + 8 * kDoStages, kDsEmpty = kDsFull + 8 * kDsStages;");
  if (t.persistent) {
    out.line("constexpr uint32_t kKEmpty = kDsEmpty + 8 * kDsStages, kVEmpty = kKEmpty + {};", 8 * t.k_stages);
    out.line("constexpr uint32_t kItemFull = kVEmpty + 8, kItemEmpty = kItemFull + 16;");
    if (t.finish == Finish::ring) out.line("constexpr uint32_t kSumsFull = kItemEmpty + 16;");
  }
  if (t.persistent || takes_turns(spec))
    out.line("constexpr uint32_t kItems = {};  // {} from the producer", l.items_at,
             t.persistent ? "two blocks of keys" : "a block of keys");
  out.line("");
}

void emit_barriers(Writer& out, const KernelSpec& spec) {
  const Tunables& t = spec.config.backward;
  for (int i = 0; i < t.k_stages; i++) out.line("mbarrier_init(shared + kKFull{}, 1);", i == 0 ? "" : " + 8");
  out.line("mbarrier_init(shared + kVFull, 1);");
  const auto ring = [&](const char* stages, const char* name, const char* full) {
    out.open(fmt::format("for (int i = 0; i < {}; i++) {{", stages));
    out.line("mbarrier_init(shared + k{}Full + 8 * i, {});", name, full);
    out.line("mbarrier_init(shared + k{}Empty + 8 * i, 8);  // one arrival a warp", name);
    out.close();
  };
  ring("kQStages", "Q", "1");
  ring("kDoStages", "Do", "1");
  if (t.lag) ring("kDsStages", "Ds", "8");
  if (!t.persistent) return;
  for (int i = 0; i < t.k_stages; i++) out.line("mbarrier_init(shared + kKEmpty{}, 8);", i == 0 ? "" : " + 8");
  out.line("mbarrier_init(shared + kVEmpty, 8);");
  out.open("for (int i = 0; i < 2; i++) {");
  out.line("mbarrier_init(shared + kItemFull + 8 * i, 1);");
  const int others = adders(spec);
  out.line("mbarrier_init(shared + kItemEmpty + 8 * i, {});  // the consumers' warps and {} of dQ", 8 + others,
           others == 1 ? "the one" : "those");
  out.close();
  if (t.finish == Finish::ring) out.line("mbarrier_init(shared + kSumsFull, 1);");
}

void emit_main(Writer& out, const KernelSpec& spec, const LaunchShape& shape) {
  const Tunables& t = spec.config.backward;
  open_main(out, shape, t.finish == Finish::ring);
  const std::string block_at = fmt::format("key_block_at<kBlockM, kBlockN, {}>", spec.causal);
  emit_no_queries(out, block_at);
  out.line("const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be");
  out.open("if (threadIdx.x == 0) {");
  emit_barriers(out, spec);
  out.line("fence_mbarrier_init();");
  if (takes_turns(spec) && !t.persistent) {
    out.line("follow_closely();  // the ticket is zeroed by the kernel before");
    out.line("st_shared(shared + kItems, atomicAdd(params.ticket, 1u));  // blocks are numbered as they start");
  }
  out.close();
  out.line("__syncthreads();");
  out.line("follow_closely();");
  if (!t.persistent)
    out.line("const KeyBlock block = {}({}, params);", block_at,
             takes_turns(spec) ? "ld_shared(shared + kItems)" : "blockIdx.x");
  const char* const block = t.persistent ? "" : ", block";
  out.open("if (warpgroup == 0) {");
  out.line("setmaxnreg_dec<{}>();", t.producer_registers());
  out.line("const int warp = __shfl_sync(kFullWarp, threadIdx.x >> 5, 0);");
  out.line("if (threadIdx.x == 0) produce(&map_q, &map_k, &map_v, &map_do, params, shared{});", block);
  if (t.dq == DqPath::bulk) {
    const bool two = adders(spec) == 2;
    out.line("if (warp == 1{}) add_dq_{}(params, shared{}{}{});", two ? " || warp == 3" : "",
             t.persistent ? "blocks" : "tiles", block, two ? ", warp >> 1" : "",
             adds_by_step(spec) && !t.persistent ? ", warp >> 1" : "");
  }
  if (t.finish == Finish::ring) {
    out.line("if (warp == 2)");
    out.line("  finish_tiles<{}, {}, {}, kBlockM, kBlockN, {}, kDescending, {}, {}, {}>(", element_name(spec.dtype),
             spec.head_dim, spec.head_dim_v, spec.causal, t.sums == Sums::stored, t.prepare == Prepare::inside,
             rows_at_once(t));
    out.line("      &map_dq, params, shared + kSharedSums, shared + kSharedRows, shared + kSumsFull);");
  }
  if (t.prepare == Prepare::inside && t.finish == Finish::launch) {
    out.line("if (warp >= 2)");
    out.line("  {}", prepare_ahead_call(spec));
  }
  out.reopen("} else {");
  out.line("setmaxnreg_inc<{}>();", t.registers);
  if (consumers_are_alike(spec)) {
    out.line("consume(&map_dk, &map_dv, params, shared{}, warpgroup - 1);", block);
  } else {
    out.open("if (warpgroup == 1) {");
    out.line("consume_0(&map_dk, &map_dv, params, shared{});", block);
    out.reopen("} else {");
    out.line("consume_1(&map_dk, &map_dv, params, shared{});", block);
    out.close();
  }
  out.close();
  out.close();
}

void open_side(Writer& out, const SideLaunch& side) {
  out.line("extern \"C\" __global__ void __launch_bounds__({})", side.threads);
  out.open(fmt::format("{}(const __grid_constant__ BackwardParams params) {{", side.entry));
  out.line("follow_closely();");
}

void emit_prepare(Writer& out, const KernelSpec& spec, const SideLaunch& side) {
  const Tunables& t = spec.config.backward;
  const int counters = adds_by_part(spec) ? 2 : counts_tiles(spec);
  open_side(out, side);
  out.line("prepare_tile<{}, {}, {}, kBlockM, kBlockN, kDqFloats, {}, {}, {}, {}, {}, {}>(params);",
           element_name(spec.dtype), spec.head_dim, spec.head_dim_v, spec.causal, counters,
           takes_turns(spec) || t.persistent, t.finish == Finish::ring, t.sums == Sums::stored,
           t.prepare == Prepare::inside);
  out.close();
  out.line("");
}

std::string part_text(const DqPart& part, bool transposed) {
  return fmt::format("DqPart{{{}, {}, {}, {}}}", part.row, part.column, part.width, transposed);
}

void emit_finish(Writer& out, const KernelSpec& spec, const SideLaunch& side) {
  const Layout l = backward::layout_of(spec);
  const char* const element = element_name(spec.dtype);
  const std::string finish_tile =
      fmt::format("finish_tile<{}, {}, kBlockM>(params, rows, {}, {});", element, spec.head_dim,
                  part_text(l.dq[0], l.transposed_dq), part_text(l.dq[1], l.transposed_dq));
  open_side(out, side);
  if (spec.config.backward.dkv == DkvPath::parts) {
    out.line("constexpr int kOfQueries = kBlockM * pitch_of({}), kOfKeys = 64 * pitch_of({});", spec.head_dim,
             std::max(spec.head_dim, spec.head_dim_v));
    out.line("__shared__ __align__(16) uint16_t rows[kOfQueries > kOfKeys ? kOfQueries : kOfKeys];");
    out.line("const int block = blockIdx.x, tiles = params.pairs * params.tiles_of_pair;");
    out.line("if (block < tiles)");
    out.line("  {}", finish_tile);
    out.line("else");
    out.line("  finish_keys<{}, {}, {}, kBlockN>(params, rows, block - tiles);", element, spec.head_dim,
             spec.head_dim_v);
  } else {
    out.line("__shared__ __align__(16) uint16_t rows[kBlockM * pitch_of({})];", spec.head_dim);
    out.line("{}", finish_tile);
  }
  out.close();
  out.line("");
}

}  // namespace

int rows_at_once(const Tunables& t) { return t.producer_registers() >= 56 ? 4 : 2; }

std::string prepare_ahead_call(const KernelSpec& spec) {
  const Tunables& t = spec.config.backward;
  return fmt::format("prepare_ahead<{}, {}, kBlockM, {}, {}>(params);", element_name(spec.dtype), spec.head_dim_v,
                     t.persistent, rows_at_once(t));
}

void open_main(Writer& out, const LaunchShape& shape, bool dq) {
  out.line("extern \"C\" __global__ void __launch_bounds__({}, 1)", shape.threads);
  out.open(fmt::format(
      "{}(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,\n"
      "                const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_do,\n"
      "                const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,\n"
      "                {}const __grid_constant__ BackwardParams params) {{",
      shape.entry, dq ? "const __grid_constant__ TensorMap map_dq, " : ""));
  out.line("extern __shared__ uint8_t shared_memory[];");
  out.line("const uint32_t shared = (shared_address(shared_memory) + 1023) & ~1023u;");
}

void emit_no_queries(Writer& out, const std::string& block_at) {
  out.open("if (params.tiles_m == 0) {  // no queries");
  out.line("follow_closely();");
  out.line("const KeyBlock block = {}(blockIdx.x, params);", block_at);
  out.line("store_zeros<kQkChunks, kBlockN>(&map_dk, shared, block.n * kBlockN, block.head, block.batch);");
  out.line("store_zeros<kVChunks, kBlockN>(&map_dv, shared, block.n * kBlockN, block.head, block.batch);");
  out.line("return;");
  out.close();
}

EmittedKernel emit(const KernelSpec& spec) {
  if (const auto reason = backward::violates(parse_arch(spec.arch), spec))
    fail(ErrorCode::invalid_argument, "config: {}", *reason);
  EmittedKernel kernel;
  kernel.shape = backward::launch_shape(spec);
  Writer out;
  emit_heading(out, spec);
  std::vector<std::string> parts{
      "ptx/mbarrier.cuh", "ptx/registers.cuh", "ptx/shared.cuh",      "ptx/grid.cuh",          "ptx/wgmma.cuh",
      "ptx/bulk.cuh",     "backward/tile.cuh", "backward/scores.cuh", "backward/epilogue.cuh", "backward/prepare.cuh"};
  const bool passes = spec.config.backward.dq == DqPath::pass, ring = spec.config.backward.finish == Finish::ring;
  if (counts_tiles(spec)) parts.push_back("ptx/turn.cuh");
  if (spec.config.backward.prepare == Prepare::inside) parts.push_back("backward/ahead.cuh");
  if (passes)
    parts.insert(parts.end(), {"backward/exchange.cuh", "backward/queries.cuh"});
  else
    parts.push_back(ring ? "backward/ring.cuh" : "backward/finish.cuh");
  if (spec.config.backward.dkv == DkvPath::parts) parts.push_back("backward/parts.cuh");
  out.raw(assemble_templates(parts));
  mark_own_lines(out);
  emit_plan(out, spec);
  backward::emit_products(out, spec);
  emit_prepare(out, spec, kernel.shape.before.front());
  if (passes) {
    emit_passes(out, spec, kernel.shape);
  } else {
    backward::emit_producer(out, spec);
    if (spec.config.backward.dq == DqPath::bulk) emit_add_dq(out, spec);
    emit_consumers(out, spec);
    for (const SideLaunch& side : kernel.shape.after) emit_finish(out, spec, side);
    emit_main(out, spec, kernel.shape);
  }
  kernel.source = out.take();
  return kernel;
}

}  // namespace attune::codegen::backward
