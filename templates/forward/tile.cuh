// needs: types.cuh forward/params.cuh
// Tiles of the output and the order in which they are taken.

struct Tile {
  int m, head, batch;  // query tile, query head, sequence
  int blocks;          // key blocks to visit, last one first; at least 1, so that a tile that sees no key still stores
};

// Head by head, top to bottom.
ATTUNE_DEVICE Tile tile_in_order(int index, const ForwardParams& params) {
  Tile tile;
  const int head = index / params.tiles_m;
  tile.m = index - head * params.tiles_m;
  tile.batch = head / params.heads;
  tile.head = head - tile.batch * params.heads;
  return tile;
}

// Longest first inside sections of heads whose K and V share L2: a causal tile costs more further down, of others a
// head's last one may have fewer rows.
template <bool kCausal>
ATTUNE_DEVICE Tile tile_longest_first(int index, const ForwardParams& params) {
  Tile tile;
  const int per_section = params.section * params.tiles_m;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_head = section * params.section;
  const int heads = min(params.section, params.head_count - first_head);
  const int row = rest / heads;
  tile.m = kCausal ? params.tiles_m - 1 - row : row;
  const int head = first_head + (rest - row * heads);
  tile.batch = head / params.heads;
  tile.head = head - tile.batch * params.heads;
  return tile;
}

template <int kBlockM, int kBlockN, bool kCausal>
ATTUNE_DEVICE int blocks_of(int m, const ForwardParams& params) {
  int blocks = (params.seqlen_k + kBlockN - 1) / kBlockN;
  if (kCausal) {
    const int keys = (m + 1) * kBlockM - params.seqlen_q + params.seqlen_k;  // below 1: no key, clamped below
    blocks = min(blocks, (keys + kBlockN - 1) / kBlockN);
  }
  return max(blocks, 1);
}
