// needs: types.cuh
// Run-time arguments of a forward kernel; the host's mirror is codegen::ForwardParams.

struct ForwardParams {
  float* lse;          // [batch, heads, seqlen_q]; null: not written
  uint32_t* counter;   // next tile, blocks done
  uint32_t* failures;  // of speculation, in all launches so far; null: nobody counts
  uint64_t* report;    // in memory that the host sees, null: nothing is told; see report_start()
  uint16_t* o;         // with its strides in elements, where a kernel stores O without a tensor map
  int64_t o_batch, o_head, o_row;
  int32_t seqlen_q, seqlen_k;
  int32_t heads, group;          // query heads; query heads per KV head
  int32_t tiles_m, total_tiles;  // tiles of one head; of all
  int32_t head_count, section;   // heads * batch; heads whose K and V share L2 at a time
  float scale, scale_log2;       // softmax scale; the same times log2(e)
  uint32_t launch;               // its number
};
static_assert(sizeof(ForwardParams) == 112, "the host passes 112 bytes");
