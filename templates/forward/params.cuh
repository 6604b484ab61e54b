// needs: types.cuh
// Run-time arguments of a forward kernel; the host's mirror is codegen::ForwardParams.

// Divides without a division, of which the uniform datapath takes some 200 clocks: three of them, one after the other,
// stood before a kernel's first copy.
struct Divisor {
  uint32_t multiplier, shift;
};

// n / d for 0 <= n < 2^31, `by` being what the host's codegen::divisor() gives for d. Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994, figure 4.1; the sum stays below 2^32.
ATTUNE_DEVICE int divided(int n, const Divisor& by) {
  const uint32_t dividend = static_cast<uint32_t>(n);
  return static_cast<int>((dividend + __umulhi(dividend, by.multiplier)) >> by.shift);
}

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
  Divisor by_heads, by_group, by_tiles_m;
};
static_assert(sizeof(ForwardParams) == 136, "the host passes 136 bytes");
