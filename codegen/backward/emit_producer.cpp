#include "codegen/backward/emit_parts.h"

namespace attune::codegen::backward {

namespace {

void emit_load_keys(Writer& out) {
  out.line("// Rows of a tensor's head, in 64-column chunks.");
  out.line("template <int kChunks, int kRows>");
  out.open(
      "ATTUNE_DEVICE void load_rows_of(const TensorMap* map, uint32_t buffer, uint32_t full, int row, int head, int "
      "batch, uint64_t policy) {");
  out.line("mbarrier_arrive_expect_tx(full, kChunks * kRows * 128);");
  out.line("#pragma unroll");
  out.line("for (int chunk = 0; chunk < kChunks; chunk++)");
  out.line("  bulk_tensor_load(buffer + chunk * (kRows * 128), map, full, chunk * 64, row, head, batch, policy);");
  out.close();
  out.line("");
  out.line("// K or V of the block: it comes once.");
  out.line("template <int kChunks>");
  out.open(
      "ATTUNE_DEVICE void load_keys(const TensorMap* map, uint32_t buffer, uint32_t full, const KeyBlock& block) {");
  out.line(
      "load_rows_of<kChunks, kBlockN>(map, buffer, full, block.n * kBlockN, block.head, block.batch, kEvictFirst);");
  out.close();
  out.line("");
}

void emit_prefetch_keys(Writer& out) {
  out.line(
      "// K and V of a block are loaded once those of the block before have been used, and then it is urgent: in L2 "
      "they");
  out.line("// are asked for earlier.");
  out.open("ATTUNE_DEVICE void prefetch_keys(const TensorMap* map_k, const TensorMap* map_v, const KeyBlock& block) {");
  for (const auto& [chunks, map] : {std::pair{"kVChunks", "map_v"}, {"kQkChunks", "map_k"}}) {
    out.line("for (int chunk = 0; chunk < {}; chunk++)", chunks);
    out.line("  bulk_tensor_prefetch({}, chunk * 64, block.n * kBlockN, block.head, block.batch);", map);
  }
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

void emit_load_step(Writer& out) {
  out.line("// Q and dO of a step, and on to the next one.");
  out.open(
      "ATTUNE_DEVICE void load_step(const TensorMap* map_q, const TensorMap* map_do, const BackwardParams& params, "
      "uint32_t shared,\n                             const KeyBlock& block, QueryTile& tile, int& stage_q, int& "
      "phase_q, "
      "int& stage_do, int& phase_do) {");
  out.line("const int64_t row = static_cast<int64_t>(tile.index) * kBlockM;");
  out.line(
      "load_queries<kQkChunks, kQStages>(map_q, shared + kSharedQ, shared + kSharedLse, shared + kQFull, shared + "
      "kQEmpty,");
  out.line("                                  stage_q, phase_q, params.shifts + row, tile, block.batch);");
  out.line(
      "load_queries<kVChunks, kDoStages>(map_do, shared + kSharedDo, shared + kSharedDelta, shared + kDoFull, shared + "
      "kDoEmpty,");
  out.line("                                  stage_do, phase_do, params.deltas + row, tile, block.batch);");
  out.line("advance<kDescending>(tile, block, params);");
  out.close();
  out.line("");
}

std::string load_k(const char* keys) {
  return fmt::format("load_keys<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, {});", keys);
}
std::string load_v(const char* keys) {
  return fmt::format("load_keys<kVChunks>(map_v, shared + kSharedV, shared + kVFull, {});", keys);
}
constexpr std::string_view kLoadStep =
    "load_step(map_q, map_do, params, shared, block, tile, stage_q, phase_q, stage_do, phase_do);";

constexpr std::string_view kLookAtPair =
    "const bool all = all_prepared(params, block.batch * params.heads_kv + block.head);";
constexpr std::string_view kAwaitTile = "if (!all) wait_until_prepared(params, tile.index);";

void open_produce(Writer& out, bool persistent) {
  out.line("// Producer: one thread loads, in the order in which the consumers read.");
  out.open(
      fmt::format("ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, "
                  "const TensorMap* map_do,\n                           const BackwardParams& params, uint32_t "
                  "shared{}) {{",
                  persistent ? "" : ", const KeyBlock& block"));
  out.line("int stage_q = 0, phase_q = 1, stage_do = 0, phase_do = 1;");
}

// The block whose K and V are loaded, by name.
const char* emit_keys(Writer& out, bool parts) {
  if (!parts) return "block";
  out.line("const KeyBlock keys = keys_of(block, params);");
  return "keys";
}

// All steps of a block but the `first` ones.
void emit_load_steps(Writer& out, int first, bool inside) {
  out.line("#pragma unroll 1");
  out.open(fmt::format("for (int step = {}; step < block.steps; step++) {{", first));
  if (inside) out.line(kAwaitTile);
  out.line(kLoadStep);
  out.close();
}

void emit_produce(Writer& out, bool inside, bool parts) {
  open_produce(out, false);
  out.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
  const char* const keys = emit_keys(out, parts);
  out.line(load_k(keys));
  out.line(load_v(keys));
  if (inside) out.line(kLookAtPair);
  emit_load_steps(out, 0, inside);
  out.close();
  out.line("");
}

// V is free a step before K, so it and the first queries go ahead; a second buffer of K is free all the time.
void emit_produce_persistent(Writer& out, const KernelSpec& spec) {
  open_produce(out, true);
  out.line("int slot = 0, phase_slot = 1, phase_keys = 1;");
  out.line("const int blocks = params.tiles_n * params.pairs;");
  out.line("int index = atomicAdd(params.ticket, 1u);");
  out.line("#pragma unroll 1");
  out.open("while (true) {");
  out.line("KeyBlock block = key_block_at<kBlockM, kBlockN, {}>(min(index, blocks - 1), params);", spec.causal);
  out.line("if (index >= blocks) block.steps = 0;");
  out.line("mbarrier_wait(shared + kItemEmpty + 8 * slot, phase_slot);");
  out.line("store_key_block(shared + kItems + 32 * slot, block);");
  out.line("mbarrier_arrive(shared + kItemFull + 8 * slot);");
  out.line("slot ^= 1;");
  out.line("if (slot == 0) phase_slot ^= 1;");
  out.line("if (block.steps == 0) return;");
  out.line("index = atomicAdd(params.ticket, 1u);  // early, so that the answer is there when it is needed");
  out.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
  const Tunables& t = spec.config.backward;
  const char* const keys = emit_keys(out, t.dkv == DkvPath::parts);
  out.line("prefetch_keys(map_k, map_v, {});", keys);
  const bool inside = t.prepare == Prepare::inside;
  if (inside) {
    out.line(kLookAtPair);
    out.line(kAwaitTile);
  }
  if (t.k_stages > 1) {
    out.line("const int stage_k = slot ^ 1;  // two blocks, two buffers");
    out.line("mbarrier_wait(shared + kKEmpty + 8 * stage_k, phase_slot ^ stage_k);");
    out.line("load_keys<kQkChunks>(map_k, shared + kSharedK + stage_k * kKBytes, shared + kKFull + 8 * stage_k, {});",
             keys);
    out.line(kLoadStep);
    out.line("mbarrier_wait(shared + kVEmpty, phase_keys);");
    out.line(load_v(keys));
  } else {
    out.line("mbarrier_wait(shared + kVEmpty, phase_keys);");
    out.line(load_v(keys));
    out.line(kLoadStep);
    out.line("mbarrier_wait(shared + kKEmpty, phase_keys);");
    out.line(load_k(keys));
  }
  out.line("phase_keys ^= 1;");
  emit_load_steps(out, 1, inside);
  out.close();
  out.close();
  out.line("");
}

}  // namespace

void emit_key_producer(Writer& out, bool inside, bool parts) {
  emit_load_keys(out);
  emit_load_queries(out);
  emit_load_step(out);
  emit_produce(out, inside, parts);
}

void emit_producer(Writer& out, const KernelSpec& spec) {
  if (!spec.config.backward.persistent) {
    emit_key_producer(out, spec.config.backward.prepare == Prepare::inside, spec.config.backward.dkv == DkvPath::parts);
  } else {
    emit_load_keys(out);
    emit_load_queries(out);
    emit_load_step(out);
    emit_prefetch_keys(out);
    emit_produce_persistent(out, spec);
  }
}

}  // namespace attune::codegen::backward
