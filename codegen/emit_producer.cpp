#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

void emit_load_block(Writer& out) {
  out.line(
      "// One K or V block into its ring: wait until the consumers left the stage, announce the bytes, copy by "
      "chunks.");
  out.line("template <int kChunks>");
  out.open(
      "ATTUNE_DEVICE void load_block(const TensorMap* map, uint32_t ring, uint32_t full, uint32_t empty, int& stage, "
      "int& phase,\n                              int row, int head, int batch) {");
  out.line("constexpr int kBytes = kChunks * kBlockN * 128;");
  out.line("mbarrier_wait(empty + 8 * stage, phase);");
  out.line("mbarrier_arrive_expect_tx(full + 8 * stage, kBytes);");
  out.line("#pragma unroll");
  out.line("for (int chunk = 0; chunk < kChunks; chunk++)");
  out.line(
      "  bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockN * 128), map, full + 8 * stage, chunk * 64, row, "
      "head, batch,");
  out.line("                   kEvictLast);");
  out.open("if (++stage == kStages) {");
  out.line("stage = 0;");
  out.line("phase ^= 1;");
  out.close();
  out.close();
  out.line("");
}

void emit_load_q(Writer& out, const KernelSpec& spec) {
  const Config& c = spec.config;
  out.line("// Q of a tile, and with it the tile itself through the ring of slots. m = -1 ends the consumers.");
  out.open(
      "ATTUNE_DEVICE void load_q(const TensorMap* map_q, uint32_t shared, const Tile& tile, int& buffer, int& phase, "
      "int& slot) {");
  out.line("mbarrier_wait(shared + kQEmpty + 8 * buffer, phase);");
  out.line("st_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);");
  if (c.grid != Grid::plain) {
    out.open("if (tile.m < 0) {");
    out.line("mbarrier_arrive(shared + kQFull + 8 * buffer);");
    out.line("return;");
    out.close();
  }
  out.line("mbarrier_arrive_expect_tx(shared + kQFull + 8 * buffer, kQBytes);");
  out.line("#pragma unroll 1");
  out.line("for (int part = 0; part < kConsumers; part++)");
  out.line("  for (int chunk = 0; chunk < kQkChunks; chunk++)");
  out.line(
      "    bulk_tensor_load(shared + kSharedQ + buffer * kQBytes + (part * kQkChunks + chunk) * (64 * 128), map_q,");
  out.line(
      "                     shared + kQFull + 8 * buffer, chunk * 64, tile.m * kBlockM + part * 64, tile.head, "
      "tile.batch,");
  out.line("                     kEvictFirst);");
  if (c.q_buffers > 1) {
    out.open("if (++buffer == kQBuffers) {");
    out.line("buffer = 0;");
    out.line("phase ^= 1;");
    out.close();
  } else {
    out.line("phase ^= 1;");
  }
  out.close();
  out.line("");
}

void emit_tile_at(Writer& out, const KernelSpec& spec) {
  out.open("ATTUNE_DEVICE Tile tile_at(int index, const ForwardParams& params) {");
  if (spec.config.grid != Grid::plain) out.line("if (index >= params.total_tiles) return Tile{-1, 0, 0, 0};");
  out.line("Tile tile = {}(index, params);", spec.causal ? "tile_longest_first" : "tile_in_order");
  out.line("tile.blocks = blocks_of<kBlockM, kBlockN, {}>(tile.m, params);", spec.causal);
  out.line("return tile;");
  out.close();
  out.line("");
}

}  // namespace

void emit_producer(Writer& out, const KernelSpec& spec, const Schedule& schedule) {
  const Config& c = spec.config;
  const bool many_tiles = c.grid != Grid::plain;
  emit_tile_at(out, spec);
  emit_load_q(out, spec);
  emit_load_block(out);
  out.line(
      "// Producer: one thread walks the tiles and keeps the rings full, in the order in which the consumers read.");
  out.open(
      "ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v,\n"
      "                           const ForwardParams& params, uint32_t shared) {");
  out.line("int stage_k = 0, phase_k = 1, stage_v = 0, phase_v = 1, buffer_q = 0, phase_q = 1, slot = 0;");
  const char* load_q = "load_q(map_q, shared, {}, buffer_q, phase_q, slot);";
  const auto load = [&](const char* which, const std::string& block) {
    out.line(
        "load_block<{0}Chunks>(map_{1}, shared + kShared{2}, shared + k{2}Full, shared + k{2}Empty, stage_{1}, "
        "phase_{1},",
        which[0] == 'k' ? "kQk" : "kV", which, which[0] == 'k' ? "K" : "V");
    out.line("                      {} * kBlockN, kv_head, tile.batch);", block);
  };
  out.line("Tile tile = tile_at(blockIdx.x, params);");
  if (c.q_ahead) out.line("{}", fmt::format(fmt::runtime(load_q), "tile"));
  if (many_tiles) {
    if (c.grid == Grid::persistent) out.line("int index = blockIdx.x;");
    out.line("#pragma unroll 1");
    out.open("while (tile.m >= 0) {");
    // Claimed early, so that the answer is there when it is needed.
    if (c.grid == Grid::persistent)
      out.line("index += gridDim.x;");
    else
      out.line("const int index = atomicAdd(params.counter, 1u) + gridDim.x;");
  }
  out.line("const int kv_head = tile.head / params.group;");
  load("k", "(tile.blocks - 1)");
  if (!c.q_ahead) out.line("{}", fmt::format(fmt::runtime(load_q), "tile"));
  if (c.q_ahead) {
    out.line("Tile next;");
    out.line("bool ahead = false;  // whether Q of the next tile is on its way");
  }
  out.line("#pragma unroll 1");
  out.open("for (int n = tile.blocks - 2; n >= 0; --n) {");
  if (loads_v_first(schedule)) load("v", "(n + 1)");
  load("k", "n");
  if (!loads_v_first(schedule)) load("v", "(n + 1)");
  if (c.q_ahead) {
    out.open("if (!ahead) {");
    out.line("next = tile_at(index, params);");
    out.line("{}", fmt::format(fmt::runtime(load_q), "next"));
    out.line("ahead = true;");
    out.close();
  }
  out.close();
  load("v", "0");
  if (c.q_ahead) {
    out.open("if (!ahead) {");
    out.line("next = tile_at(index, params);");
    out.line("{}", fmt::format(fmt::runtime(load_q), "next"));
    out.close();
    out.line("tile = next;");
  } else if (many_tiles) {
    out.line("tile = tile_at(index, params);");
  }
  if (many_tiles) {
    out.close();
    if (!c.q_ahead) out.line("{}", fmt::format(fmt::runtime(load_q), "tile"));
  }
  if (c.grid == Grid::dynamic) {
    out.line("// The last block to finish leaves the counter at zero for the next launch.");
    out.open("if (atomicInc(params.counter + 1, gridDim.x - 1) == gridDim.x - 1) {");
    out.line("__threadfence();");
    out.line("atomicExch(params.counter, 0u);");
    out.close();
  }
  out.close();
  out.line("");
}

}  // namespace attune::codegen
