#include "codegen/backward/emit_parts.h"

namespace attune::codegen::backward {
namespace {

void emit_load_keys(Writer& out) {
  out.line("// K or V of the block: it comes once.");
  out.line("template <int kChunks>");
  out.open(
      "ATTUNE_DEVICE void load_keys(const TensorMap* map, uint32_t buffer, uint32_t full, const KeyBlock& block) {");
  out.line("mbarrier_arrive_expect_tx(full, kChunks * kBlockN * 128);");
  out.line("#pragma unroll");
  out.line("for (int chunk = 0; chunk < kChunks; chunk++)");
  out.line(
      "  bulk_tensor_load(buffer + chunk * (kBlockN * 128), map, full, chunk * 64, block.n * kBlockN, block.head,");
  out.line("                   block.batch, kEvictFirst);");
  out.close();
  out.line("");
}

void emit_load_queries(Writer& out) {
  out.line("// A tile of Q and its shifts, or of dO and its deltas, into the next stage of its ring.");
  out.line("template <int kChunks, int kStages>");
  out.open(
      "ATTUNE_DEVICE void load_queries(const TensorMap* map, uint32_t ring, uint32_t statistics_ring, uint32_t full, "
      "uint32_t empty,\n                                int& stage, int& phase, const float* statistics, const "
      "QueryTile& tile, int batch) {");
  out.line("constexpr int kBytes = kChunks * kBlockM * 128;");
  out.line("mbarrier_wait(empty + 8 * stage, phase);");
  out.line("mbarrier_arrive_expect_tx(full + 8 * stage, kBytes + kBlockM * 4);");
  out.line("#pragma unroll");
  out.line("for (int chunk = 0; chunk < kChunks; chunk++)");
  out.line("  bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockM * 128), map, full + 8 * stage, chunk * 64,");
  out.line("                   tile.m * kBlockM, tile.head, batch, kEvictLast);");
  out.line("bulk_load(statistics_ring + stage * kStatisticsBytes, statistics, kBlockM * 4, full + 8 * stage);");
  out.open("if (++stage == kStages) {");
  out.line("stage = 0;");
  out.line("phase ^= 1;");
  out.close();
  out.close();
  out.line("");
}

void emit_produce(Writer& out) {
  out.line("// Producer: one thread loads, in the order in which the consumers read.");
  out.open(
      "ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, const "
      "TensorMap* map_do,\n                           const BackwardParams& params, uint32_t shared, const KeyBlock& "
      "block) {");
  out.line("int stage_q = 0, phase_q = 1, stage_do = 0, phase_do = 1;");
  out.line("QueryTile tile = first_query_tile(block, params);");
  out.line("load_keys<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, block);");
  out.line("load_keys<kVChunks>(map_v, shared + kSharedV, shared + kVFull, block);");
  out.line("#pragma unroll 1");
  out.open("for (int step = 0; step < block.steps; step++) {");
  out.line("const int64_t row = static_cast<int64_t>(tile.index) * kBlockM;");
  out.line(
      "load_queries<kQkChunks, kQStages>(map_q, shared + kSharedQ, shared + kSharedLse, shared + kQFull, shared + "
      "kQEmpty,");
  out.line("                                  stage_q, phase_q, params.shifts + row, tile, block.batch);");
  out.line(
      "load_queries<kVChunks, kDoStages>(map_do, shared + kSharedDo, shared + kSharedDelta, shared + kDoFull, shared + "
      "kDoEmpty,");
  out.line("                                  stage_do, phase_do, params.deltas + row, tile, block.batch);");
  out.line("advance(tile, block, params);");
  out.close();
  out.close();
  out.line("");
}

void emit_add_dq(Writer& out, const KernelSpec& spec) {
  const Layout l = backward::layout_of(spec);
  const bool deterministic = spec.deterministic;
  out.line("// One warp adds what the consumers stage of dQ to its sums in global memory.");
  out.open("ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block) {");
  out.line("const int lane = threadIdx.x & 31;");
  out.line("QueryTile tile = first_query_tile(block, params);");
  out.line("#pragma unroll 1");
  out.open("for (int step = 0; step < block.steps; step++) {");
  if (deterministic) {
    out.line("// The blocks of a head add in their order. They started in it, too, so whoever is waited for runs.");
    out.open("if (lane == 0) {");
    out.open("while (ld_acquire(params.turns + tile.index) != block.n) {");
    out.close();
    out.line("fence_proxy_async_all();");
    out.close();
  }
  int parts = 0;
  for (int w = 0; w < kConsumers; w++) {
    const DqPart& part = l.dq[static_cast<std::size_t>(w)];
    if (part.width == 0) continue;
    parts++;
    out.line("barrier_sync({}, 160);  // warpgroup {} has staged its part", 2 + w, w);
    out.open("if (lane == 0) {");
    out.line(
        "bulk_reduce_add(params.dq_sums + static_cast<int64_t>(tile.index) * kDqFloats + {}, shared + kSharedDq + {}, "
        "{}, kEvictLast);",
        l.dq_start(w), 4 * l.dq_start(w), 4 * part.floats());
    out.line("bulk_commit_group();");
    out.close();
  }
  if (deterministic) {
    out.open("if (lane == 0) {");
    out.line("bulk_wait_group();");
    out.line("fence_proxy_async_all();");
    out.line("red_release_add(params.turns + tile.index, 1);");
    out.close();
  }
  out.line("const bool more = step + 1 < block.steps;  // staged again");
  int left = parts;
  for (int w = 0; w < kConsumers; w++) {
    if (l.dq[static_cast<std::size_t>(w)].width == 0) continue;
    if (!deterministic) out.line("if (lane == 0) bulk_wait_group_read<{}>();", --left);
    out.line("__syncwarp();");
    out.line("if (more) barrier_arrive({}, 160);", 4 + w);
  }
  out.line("advance(tile, block, params);");
  out.close();
  if (!deterministic) out.line("if (lane == 0) bulk_wait_group();");
  out.close();
  out.line("");
}

}  // namespace

void emit_producer(Writer& out, const KernelSpec& spec) {
  emit_load_keys(out);
  emit_load_queries(out);
  emit_produce(out);
  if (spec.config.backward.dq == DqPath::bulk) emit_add_dq(out, spec);
}

}  // namespace attune::codegen::backward
