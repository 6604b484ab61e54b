// needs: types.cuh
// Accumulator fragments: the four lanes of a quad hold 8 neighbouring columns of a row, 2 each.

// 4x4 transpose over the quad: x[g] is this lane's piece of group g, and becomes piece g of group `lane & 3`, so that
// four groups of 8 columns can leave 16 bytes a lane.
ATTUNE_DEVICE void trade_in_quad(uint32_t (&x)[4], int lane) {
  const int quad = lane & 3;
  // Lane l sends x[l ^ r] to lane l ^ r and gets that lane's x[l].
  uint32_t y[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int other = quad ^ r;
    const uint32_t low = other & 1 ? x[1] : x[0], high = other & 1 ? x[3] : x[2];
    const uint32_t sent = other & 2 ? high : low;
    y[r] = r == 0 ? sent : __shfl_xor_sync(kFullWarp, sent, r);
  }
  // y[r] is piece `quad ^ r` of this lane's group.
#pragma unroll
  for (int piece = 0; piece < 4; piece++) {
    const int r = quad ^ piece;
    const uint32_t low = r & 1 ? y[1] : y[0], high = r & 1 ? y[3] : y[2];
    x[piece] = r & 2 ? high : low;
  }
}
