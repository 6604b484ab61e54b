#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

void emit_load_block(Writer& out, bool cluster) {
  out.line(
      "// K or V block number `loaded` into its ring: wait until the consumers left the stage, announce the bytes, "
      "copy by chunks.");
  out.line("template <int kChunks>");
  out.open(
      "ATTUNE_DEVICE void load_block(const TensorMap* map, uint32_t ring, uint32_t full, uint32_t empty, "
      "int loaded,\n                              int row, int head, int batch) {");
  out.line("constexpr int kBytes = kChunks * kBlockN * 128;");
  out.line("const int stage = loaded % kStages, phase = 1 ^ (loaded / kStages & 1);");
  if (cluster)
    out.line("const int share = cluster_rank() * (kBlockN / kCluster);  // rows of it that this thread block loads");
  out.line("mbarrier_wait(empty + 8 * stage, phase);");
  out.line("mbarrier_arrive_expect_tx(full + 8 * stage, kBytes);");
  out.line("#pragma unroll 1");
  out.line("for (int chunk = 0; chunk < kChunks; chunk++)");
  if (cluster) {
    out.line(
        "  bulk_tensor_load_to((1 << kCluster) - 1, ring + stage * kBytes + chunk * (kBlockN * 128) + share * 128,");
    out.line("                      map, full + 8 * stage, chunk * 64, row + share, head, batch, kEvictLast);");
  } else {
    out.line(
        "  bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockN * 128), map, full + 8 * stage, chunk * 64, row, "
        "head, batch,");
    out.line("                   kEvictLast);");
  }
  out.close();
  out.line("");
}

void emit_load_q(Writer& out, const KernelSpec& spec) {
  const Config& c = spec.config;
  out.line(
      "// Q of tile number `taken`, and with it the tile itself through the ring of slots. m = -1 ends the consumers.");
  out.open("ATTUNE_DEVICE void load_q(const TensorMap* map_q, uint32_t shared, const Tile& tile, int taken) {");
  out.line("const int buffer = taken % kQBuffers, phase = 1 ^ (taken / kQBuffers & 1);");
  out.line("mbarrier_wait(shared + kQEmpty + 8 * buffer, phase);");
  out.line("st_shared_v4(shared + kSlots + 16 * (taken & 3), tile.m, tile.head, tile.batch, tile.blocks);");
  if (c.grid != Grid::plain) {
    out.open("if (tile.m < 0) {");
    out.line("mbarrier_arrive(shared + kQFull + 8 * buffer);");
    out.line("return;");
    out.close();
  }
  out.line("mbarrier_arrive_expect_tx(shared + kQFull + 8 * buffer, kQBytes);");
  out.line("#pragma unroll");
  out.line("for (int part = 0; part < kConsumers; part++)");
  out.line("  for (int chunk = 0; chunk < kQkChunks; chunk++)");
  out.line(
      "    bulk_tensor_load(shared + kSharedQ + buffer * kQBytes + (part * kQkChunks + chunk) * (64 * 128), map_q,");
  out.line(
      "                     shared + kQFull + 8 * buffer, chunk * 64, tile.m * kBlockM + part * 64, tile.head, "
      "tile.batch,");
  out.line("                     kEvictFirst);");
  out.close();
  out.line("");
}

void emit_tile_at(Writer& out, const KernelSpec& spec) {
  const bool swaps = spec.config.swaps_tiles(spec.causal);
  if (swaps) out.line("// Number `taken` of this thread block's.");
  out.open(fmt::format("ATTUNE_DEVICE Tile tile_at(int index, {}const ForwardParams& params) {{",
                       swaps ? "int taken, " : ""));
  if (spec.config.grid != Grid::plain) out.line("if (index >= params.total_tiles) return Tile{-1, 0, 0, 0};");
  if (spec.config.takes_sections(spec.causal))
    out.line("Tile tile = tile_longest_first<{}>(index, params);", spec.causal);
  else
    out.line("Tile tile = tile_in_order(index, params);");
  if (spec.config.cluster > 1) {
    out.line("tile.blocks = blocks_of<kCluster * kBlockM, kBlockN, {}>(tile.m, params);  // as many for all",
             spec.causal);
    out.line("tile.m = tile.m * kCluster + {};", swaps ? "(cluster_rank() + taken) % kCluster" : "cluster_rank()");
  } else {
    out.line("tile.blocks = blocks_of<kBlockM, kBlockN, {}>(tile.m, params);", spec.causal);
  }
  out.line("return tile;");
  out.close();
  out.line("");
}

// `number`: of the block in its ring, by those of K.
void load_line(Writer& out, const char* which, std::string_view number, std::string_view block) {
  const bool k = which[0] == 'k';
  out.line("load_block<{0}Chunks>(map_{1}, shared + kShared{2}, shared + k{2}Full, shared + k{2}Empty, {3},",
           k ? "kQk" : "kV", which, k ? "K" : "V", number);
  out.line("                      {} * kBlockN, kv_head, tile.batch);", block);
}

void emit_begin(Writer& out, const KernelSpec& spec) {
  out.line("// What the first tile's first product waits for, asked for by who has just set up the barriers.");
  out.open(
      "ATTUNE_DEVICE void begin(const TensorMap* map_q, const TensorMap* map_k, const ForwardParams& params,\n"
      "                         uint32_t shared) {");
  out.line("const Tile tile = tile_at(blockIdx.x, params);");
  out.line("load_q(map_q, shared, tile, 0);");
  if (spec.config.grid != Grid::plain) out.line("if (tile.m < 0) return;");
  out.line("const int kv_head = tile.head / params.group;");
  load_line(out, "k", "0", "(tile.blocks - 1)");
  out.close();
  out.line("");
}

void emit_claims(Writer& out) {
  out.line("// The first thread block of a cluster claims a tile for all of it, and tells the others its index.");
  out.open("ATTUNE_DEVICE void tell_claim(uint32_t shared, int index, uint32_t claim) {");
  out.line("const uint32_t place = claim % kClaimPlaces, from = shared + kClaims + 16 * place;");
  out.line("st_shared_v4(from, index, 0, 0, 0);");
  out.line("fence_proxy_async();");
  out.line("for (int rank = 1; rank < kCluster; rank++)");
  out.line("  bulk_copy_at(address_at(from, rank), from, 16, address_at(shared + kToldClaim + 8 * place, rank));");
  out.close();
  out.line("");
  out.line("// The first one finds it where it put it.");
  out.open("ATTUNE_DEVICE int told_claim(uint32_t shared, uint32_t claim) {");
  out.line("const uint32_t place = claim % kClaimPlaces, told = shared + kToldClaim + 8 * place;");
  out.open("if (cluster_rank() != 0) {");
  out.line("mbarrier_arrive_expect_tx(told, 16);");
  out.line("mbarrier_wait(told, claim / kClaimPlaces & 1);");
  out.close();
  out.line("int index, unused[3];");
  out.line("ld_shared_v4(shared + kClaims + 16 * place, index, unused[0], unused[1], unused[2]);");
  out.line("return index;");
  out.close();
  out.line("");
}

}  // namespace

void emit_producer(Writer& out, const KernelSpec& spec, const Schedule& schedule) {
  const Config& c = spec.config;
  const bool many_tiles = c.grid != Grid::plain;
  emit_tile_at(out, spec);
  emit_load_q(out, spec);
  emit_load_block(out, c.cluster > 1);
  if (c.tells_claims()) emit_claims(out);
  if (c.early_copies) emit_begin(out, spec);
  out.line(
      "// Producer: one thread walks the tiles and keeps the rings full, in the order in which the consumers read.");
  out.open(
      "ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v,\n"
      "                           const ForwardParams& params, uint32_t shared) {");
  // Few variables: beside consumers of 240 registers there are 24. Of V as many blocks are loaded as of K, a little
  // later.
  if (c.early_copies) {
    out.line("// Behind begin().");
    out.line("int loaded = 1{};", many_tiles ? ", taken = 1" : "");
    if (many_tiles) out.line("bool begun = true;  // Q and the first block of K of this tile have been asked for");
  } else {
    out.line("int loaded = 0, taken = 0;");
  }
  const char* load_q = "load_q(map_q, shared, {}, taken++);";
  const auto load_k = [&](std::string_view block) { load_line(out, "k", "loaded++", block); };
  const auto load_v = [&](std::string_view number, std::string_view block) { load_line(out, "v", number, block); };
  const std::string worker = c.cluster > 1 ? "blockIdx.x / kCluster" : "blockIdx.x";
  const std::string workers = c.cluster > 1 ? "gridDim.x / kCluster" : "gridDim.x";
  // A causal tile is no longer than the one before. There and back, so that nobody always has the longer ones.
  const bool back = c.grid == Grid::persistent && spec.causal;
  const char* taken = c.swaps_tiles(spec.causal) ? "taken, " : "";
  out.line("Tile tile = tile_at({}, {}params);", worker, taken);
  if (c.q_ahead && !c.early_copies) out.line("{}", fmt::format(fmt::runtime(load_q), "tile"));
  if (many_tiles) {
    if (c.grid == Grid::persistent) out.line("int index = {};", worker);
    if (back) out.line("int stride = 2 * ({} - {}) - 1;", workers, worker);
    out.line("#pragma unroll 1");
    out.open("while (tile.m >= 0) {");
    // Claimed early, so that the answer is there when it is needed.
    if (back) {
      out.line("index += stride;");
      out.line("stride = 2 * {} - stride;", workers);
    } else if (c.grid == Grid::persistent) {
      out.line("index += {};", workers);
    } else if (c.tells_claims()) {
      out.line("int claimed = -1;  // and not told yet");
      out.line("if (cluster_rank() == 0) claimed = atomicAdd(params.counter, 1u) + gridDim.x / kCluster;");
    } else {
      out.line("const int index = atomicAdd(params.counter, 1u) + gridDim.x;");
    }
  }
  out.line("const int kv_head = tile.head / params.group;");
  const auto load_first = [&] {
    load_k("(tile.blocks - 1)");
    if (!c.q_ahead) out.line("{}", fmt::format(fmt::runtime(load_q), "tile"));
  };
  if (!c.early_copies) {
    load_first();
  } else if (many_tiles) {
    out.open("if (!begun) {");
    load_first();
    out.close();
    out.line("begun = false;");
  }
  // Where the next tile is asked for: the only place that a pass through the loop comes to.
  const auto next_tile = [&](const char* into) {
    out.line("{} = tile_at({}, {}params);", into, c.tells_claims() ? "told_claim(shared, taken - 1)" : "index", taken);
  };
  if (c.q_ahead) {
    out.line("Tile next;");
    out.line("bool ahead = false;  // whether Q of the next tile is on its way");
  }
  out.line("#pragma unroll 1");
  out.open("for (int n = tile.blocks - 2; n >= 0; --n) {");
  if (loads_v_first(schedule)) load_v("loaded - 1", "(n + 1)");
  load_k("n");
  if (!loads_v_first(schedule)) load_v("loaded - 2", "(n + 1)");
  // Told once the counter has had time to answer, asked for once the telling has had time to arrive.
  const auto tell = [&] {
    out.open("if (claimed >= 0) {");
    out.line("tell_claim(shared, claimed, taken - 1);");
    out.line("claimed = -1;");
    out.close();
  };
  if (c.tells_claims()) tell();
  if (c.q_ahead) {
    out.open(c.tells_claims() ? "if (!ahead && n + 2 + cluster_rank() <= tile.blocks) {" : "if (!ahead) {");
    next_tile("next");
    out.line("{}", fmt::format(fmt::runtime(load_q), "next"));
    out.line("ahead = true;");
    out.close();
  }
  out.close();
  if (c.tells_claims()) tell();
  load_v("loaded - 1", "0");
  if (c.q_ahead) {
    out.open("if (!ahead) {");
    next_tile("next");
    out.line("{}", fmt::format(fmt::runtime(load_q), "next"));
    out.close();
    out.line("tile = next;");
  } else if (many_tiles) {
    next_tile("tile");
  }
  if (many_tiles) {
    out.close();
    // The consumers of a thread block without a tile have heard of it from begin().
    if (!c.q_ahead) out.line("{}{}", c.early_copies ? "if (!begun) " : "", fmt::format(fmt::runtime(load_q), "tile"));
  }
  if (c.cluster > 1) {
    out.line("// The others arrive at the barriers of this thread block until they have read the last blocks.");
    out.open("for (int i = 0; i < kStages; i++, loaded++) {");
    out.line("const int stage = loaded % kStages, phase = 1 ^ (loaded / kStages & 1);");
    out.line("mbarrier_wait(shared + kKEmpty + 8 * stage, phase);");
    out.line("mbarrier_wait(shared + kVEmpty + 8 * stage, phase);");
    out.close();
  }
  if (c.tells_claims()) {
    out.open("if (cluster_rank() != 0) {");
    out.line("mbarrier_arrive_at(shared + kReadClaims, 0);");
    out.line("return;");
    out.close();
    out.line("mbarrier_wait(shared + kReadClaims, 0);  // the last claim is copied from this shared memory");
  }
  if (c.grid == Grid::dynamic) {
    const char* claimers = c.tells_claims() ? "gridDim.x / kCluster" : "gridDim.x";
    out.line("// The last block to finish leaves the counter at zero for the next launch.");
    out.open(fmt::format("if (atomicInc(params.counter + 1, {0} - 1) == {0} - 1) {{", claimers));
    out.line("__threadfence();");
    out.line("atomicExch(params.counter, 0u);");
    out.close();
  }
  out.close();
  out.line("");
}

}  // namespace attune::codegen
