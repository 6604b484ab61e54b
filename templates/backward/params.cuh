// needs: types.cuh
// Run-time arguments of the backward kernels; the host's mirror is codegen::BackwardParams.

struct BackwardParams {
  const uint16_t* o;  // these five with their strides in elements
  const uint16_t* d_o;
  uint16_t* d_q;
  uint16_t* d_k;
  uint16_t* d_v;
  const float* lse;    // [batch, heads, seqlen_q]
  const float* d_lse;  // [batch, heads, seqlen_q]; null: zeros
  float* shifts;       // [batch, heads, tiles_m * block_m]: -LSE log2(e), -inf for rows without keys
  float* deltas;       // likewise: rowsum(dO * O) - dLSE
  float* dq_sums;      // [slots][group, tiles_m][floats of a tile], in fragment order
  uint32_t* turns;     // [batch, heads, tiles_m]: key blocks that have added to a tile of dQ, or whether its sums, or
                       // those of each warpgroup's part, have been stored
  uint32_t* ticket;    // handed out: blocks of keys; query tiles to be finished; query tiles to be prepared
  uint32_t* finished;  // [pairs]: query tiles of a pair whose dQ is finished
  uint32_t* ready;     // [batch, heads, tiles_m]: 1 where shifts and deltas are there; then how many of a pair
  float* dkv_parts;    // [pairs][tiles_n][2 warpgroups][dV, then dK of 64 keys], in fragment order
  int64_t o_batch, o_head, o_row;
  int64_t do_batch, do_head, do_row;
  int64_t dq_batch, dq_head, dq_row;
  int64_t dk_batch, dk_head, dk_row;
  int64_t dv_batch, dv_head, dv_row;
  int32_t seqlen_q, seqlen_k;
  int32_t heads, heads_kv, group;  // group: query heads of a KV head. Where its query heads are divided among blocks of
                                   // keys, a share of them counts as a KV head here and everywhere below
  int32_t tiles_m, tiles_n;        // query tiles, key blocks of one head
  int32_t pairs, section;          // heads_kv * batch; KV heads whose Q and dO share L2 at a time
  int32_t slots;                   // pairs whose sums exist at a time
  int32_t tiles_of_pair;           // tiles_m * group
  int32_t prepared;                // query tiles that the kernel before the main one prepares
  int32_t ahead;                   // blocks of keys beyond those handed out; their sections' query tiles are prepared
  int32_t parts;                   // shares of a real KV head
  float scale, scale_log2;         // softmax scale; the same times log2(e)
};
static_assert(sizeof(BackwardParams) == 304, "the host passes 304 bytes");
