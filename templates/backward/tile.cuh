// needs: types.cuh ptx/shared.cuh backward/params.cuh
// Blocks of keys and the query tiles that see them.

struct KeyBlock {
  int n, head, batch;  // block of keys, KV head, sequence
  int first_m;         // first query tile that sees one of its keys
  int steps;           // query tiles to visit, over all query heads that read this KV head
};

// Block by block inside sections of KV heads: a causal block costs less further on, so the longest come first, and the
// blocks of one head start in the order in which they add to dQ.
template <int kBlockM, int kBlockN, bool kCausal>
ATTUNE_DEVICE KeyBlock key_block_at(int index, const BackwardParams& params) {
  KeyBlock block;
  const int per_section = params.section * params.tiles_n;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_pair = section * params.section;
  const int pairs = min(params.section, params.pairs - first_pair);
  block.n = rest / pairs;
  const int pair = first_pair + (rest - block.n * pairs);
  block.batch = pair / params.heads_kv;
  block.head = pair - block.batch * params.heads_kv;
  block.first_m = kCausal ? max(0, block.n * kBlockN - params.seqlen_k + params.seqlen_q) / kBlockM : 0;
  block.steps = (params.tiles_m - block.first_m) * params.group;
  return block;
}

// What a producer tells the others of the block that comes next, 32 bytes: finding it takes divisions, which each of
// them would wait for between two blocks. No steps: there is none.
ATTUNE_DEVICE void store_key_block(uint32_t address, const KeyBlock& block) {
  st_shared_v4(address, block.steps, block.n, block.head, block.batch);
  st_shared(address + 16, block.first_m);
}
// Who gives the slot back looks at the steps first: by then all loads have been done, and no arrive overtakes them.
ATTUNE_DEVICE KeyBlock load_key_block(uint32_t address) {
  KeyBlock block;
  block.first_m = ld_shared(address + 16);
  ld_shared_v4(address, block.steps, block.n, block.head, block.batch);
  return block;
}

// Query heads and tiles in the order of the steps.
struct QueryTile {
  int head, m;
  int index;  // among all query tiles
};
template <bool kDescending>
ATTUNE_DEVICE QueryTile first_query_tile(const KeyBlock& block, const BackwardParams& params) {
  const int head = block.head * params.group, m = kDescending ? params.tiles_m - 1 : block.first_m;
  return {head, m, (block.batch * params.heads + head) * params.tiles_m + m};
}
// Blocks of keys that add to a query tile.
template <int kBlockM, int kBlockN, bool kCausal>
ATTUNE_DEVICE int key_blocks_of(int m, const BackwardParams& params) {
  if (!kCausal) return params.tiles_n;
  const int rows_behind = max(params.seqlen_q - m * kBlockM - kBlockM, 0);
  return (max(params.seqlen_k - rows_behind, 0) + kBlockN - 1) / kBlockN;
}

// Query tiles in the order in which blocks of keys visit them: section by section, and in each the tiles of all its
// pairs side by side.
struct OrderedTile {
  int pair, batch, head, m;
  int index;  // among all query tiles
};
template <bool kDescending = false>
ATTUNE_DEVICE OrderedTile ordered_tile_at(int at, const BackwardParams& params) {
  OrderedTile tile;
  const int per_section = params.section * params.tiles_of_pair;
  const int section = at / per_section, first_pair = section * params.section;
  const int pairs = min(params.section, params.pairs - first_pair), rest = at - section * per_section;
  const int step = rest / pairs, in_group = step / params.tiles_m;
  tile.pair = first_pair + (rest - step * pairs);
  tile.m = kDescending ? (in_group + 1) * params.tiles_m - 1 - step : step - in_group * params.tiles_m;
  tile.batch = tile.pair / params.heads_kv;
  tile.head = (tile.pair - tile.batch * params.heads_kv) * params.group + in_group;
  tile.index = tile.pair * params.tiles_of_pair + in_group * params.tiles_m + tile.m;
  return tile;
}
// How many of a pair's tiles, its first ones, are among the first `places` in that order.
ATTUNE_DEVICE int tiles_within(int places, int pair, const BackwardParams& params) {
  const int first_pair = pair / params.section * params.section, pairs = min(params.section, params.pairs - first_pair);
  const int own = places - first_pair * params.tiles_of_pair - (pair - first_pair);
  return own <= 0 ? 0 : min((own + pairs - 1) / pairs, params.tiles_of_pair);
}

template <bool kDescending>
ATTUNE_DEVICE void advance(QueryTile& tile, const KeyBlock& block, const BackwardParams& params) {
  if (kDescending) {
    --tile.index;
    if (--tile.m < block.first_m) {
      tile.m = params.tiles_m - 1;
      tile.index += 2 * params.tiles_m - block.first_m;
      ++tile.head;
    }
  } else {
    ++tile.index;
    if (++tile.m == params.tiles_m) {
      tile.m = block.first_m;
      tile.index += block.first_m;
      ++tile.head;
    }
  }
}
