// attune forward  sm_90a  bf16  d128  causal  |  128x128, 2 stages, 2 consumers, ping-pong, speculative (first block's maximum) softmax, longest tile first
// spec: arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonal,tail=0,family=sm90,consumers=2,block_n=128,stages=2,softmax=first_max,order=pv_qk,ping_pong=1,q=registers,q_buffers=1,q_ahead=0,o=own,boundary=overlapped,grid=dynamic,diagonal=trimmed,exact_tail=0,remember=1,warp_epilogue=0
// reproduce: attune emit --spec arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonal,tail=0,family=sm90,consumers=2,block_n=128,stages=2,softmax=first_max,order=pv_qk,ping_pong=1,q=registers,q_buffers=1,q_ahead=0,o=own,boundary=overlapped,grid=dynamic,diagonal=trimmed,exact_tail=0,remember=1,warp_epilogue=0

#line 1 "templates/types.cuh"
// Fixed-width types and the tensor map, spelled out so that the source needs no header.
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Opaque image of a CUtensorMap; passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  uint8_t bytes[128];
};

#define ATTUNE_DEVICE __device__ __forceinline__

ATTUNE_DEVICE float infinity() { return __int_as_float(0x7f800000); }
constexpr uint32_t kFullWarp = 0xffffffffu;

#line 2 "templates/ptx/mbarrier.cuh"
// mbarrier.*: transaction barriers in shared memory. Addresses are 32-bit shared-window addresses.

ATTUNE_DEVICE void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes the inits visible to the async proxy and to other blocks of the cluster.
ATTUNE_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Waits until the phase of this parity has completed.
ATTUNE_DEVICE void mbarrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

ATTUNE_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival that also announces `bytes` of bulk-copy traffic for the current phase.
ATTUNE_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

#line 2 "templates/ptx/registers.cuh"
// setmaxnreg: moves registers from the producer warpgroup to the consumers.

template <int kRegisters>
ATTUNE_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
ATTUNE_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#line 2 "templates/ptx/shared.cuh"
// Ordinary loads and stores by 32-bit shared address: no generic addressing, which NVRTC would not fold away.

ATTUNE_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

ATTUNE_DEVICE void st_shared_v4(uint32_t address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

ATTUNE_DEVICE void ld_shared_v4(uint32_t address, int& x, int& y, int& z, int& w) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(address)
               : "memory");
}

#line 2 "templates/ptx/wgmma.cuh"
// wgmma.*: fences, groups and descriptors. The products themselves are printed per shape beside the kernel.

ATTUNE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTUNE_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
ATTUNE_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler moves plain arithmetic across the asm above; an empty asm that "changes" the registers pins it down.
template <int kCount>
ATTUNE_DEVICE void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
ATTUNE_DEVICE void pin(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

// Matrix descriptor of a 128-byte-swizzled tile: byte offsets between its 64-column chunks (leading) and between its
// groups of 8 rows (stride).
ATTUNE_DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(leading_bytes >> 4) << 16) |
         (static_cast<uint64_t>(stride_bytes >> 4) << 32) | (1ull << 62);
}

#line 2 "templates/forward/params.cuh"
// Run-time arguments of a forward kernel; the host's mirror is codegen::ForwardParams.

struct ForwardParams {
  float* lse;         // [batch, heads, seqlen_q]; null: not written
  uint32_t* counter;  // next tile, blocks done
  uint16_t* o;        // with its strides in elements, where a kernel stores O without a tensor map
  int64_t o_batch, o_head, o_row;
  int32_t seqlen_q, seqlen_k;
  int32_t heads, group;          // query heads; query heads per KV head
  int32_t tiles_m, total_tiles;  // tiles of one head; of all
  int32_t head_count, section;   // heads * batch; heads whose K and V share L2 at a time
  float scale, scale_log2;       // softmax scale; the same times log2(e)
};
static_assert(sizeof(ForwardParams) == 88, "the host passes 88 bytes");

#line 2 "templates/forward/tile.cuh"
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

// Longest first (a causal tile costs more further down) inside sections of heads whose K and V share L2.
ATTUNE_DEVICE Tile tile_longest_first(int index, const ForwardParams& params) {
  Tile tile;
  const int per_section = params.section * params.tiles_m;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_head = section * params.section;
  const int heads = min(params.section, params.head_count - first_head);
  const int row = rest / heads;
  tile.m = params.tiles_m - 1 - row;
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

#line 2 "templates/element.cuh"
// The 16-bit input types. The window bounds the row sums of a speculative softmax: inside it, P neither overflows nor
// loses bits that the output would keep. bf16 has float32's exponents, so its window is wide; fp16 ends at 65504 and
// is subnormal below 2^-14.

struct Bf16 {
  static constexpr float kWindowHigh = 0x1p40f;
  static constexpr float kWindowLow = 0x1p-40f;
  static ATTUNE_DEVICE uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  static ATTUNE_DEVICE float to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
};

struct Fp16 {
  static constexpr float kWindowHigh = 0x1p15f;
  static constexpr float kWindowLow = 0x1p-4f;
  static ATTUNE_DEVICE uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  static ATTUNE_DEVICE float to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

#line 2 "templates/ptx/math.cuh"
// Approximations and conversions.

ATTUNE_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ATTUNE_DEVICE float lg2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ATTUNE_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#line 2 "templates/forward/softmax.cuh"
// Softmax pieces over the accumulator fragment of m64nNk16: a thread holds two rows (r and r + 8), and of each group of
// 8 columns the pair 2 * (lane % 4), + 1: s[4 i], s[4 i + 1] of row r and s[4 i + 2], s[4 i + 3] of row r + 8.

// Columns above the limits become -inf. Limits are relative to this thread's first column.
template <int kWidth, int kSize>
ATTUNE_DEVICE void mask_columns(float (&s)[kSize], int limit0, int limit1) {
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (8 * i + e > limit0) s[4 * i + e] = -infinity();
      if (8 * i + e > limit1) s[4 * i + 2 + e] = -infinity();
    }
  }
}

ATTUNE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}

ATTUNE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// Maximum of this thread's columns; two chains a row, since the dependent chain is what costs.
template <int kWidth, int kSize>
ATTUNE_DEVICE void thread_max(const float (&s)[kSize], float& max0, float& max1) {
  float a0 = fmaxf(s[0], s[1]), a1 = fmaxf(s[2], s[3]);
  float b0 = fmaxf(s[4], s[5]), b1 = fmaxf(s[6], s[7]);
#pragma unroll
  for (int i = 2; i + 1 < kWidth / 8; i += 2) {
    a0 = fmaxf(a0, fmaxf(s[4 * i], s[4 * i + 1]));
    a1 = fmaxf(a1, fmaxf(s[4 * i + 2], s[4 * i + 3]));
    b0 = fmaxf(b0, fmaxf(s[4 * i + 4], s[4 * i + 5]));
    b1 = fmaxf(b1, fmaxf(s[4 * i + 6], s[4 * i + 7]));
  }
  max0 = fmaxf(a0, b0);
  max1 = fmaxf(a1, b1);
}

// Row state: reference (raw score units), partial sum of this thread's columns, correction of the last step.
struct RowState {
  float reference[2];
  float sum[2];
  float correction[2];
};

// s <- 2^(scale s - reference), sums kept; the running maximum is the reference. kGuard: a row may hold no key yet.
template <int kWidth, bool kFirst, bool kGuard, int kSize>
ATTUNE_DEVICE void online_softmax(float (&s)[kSize], RowState& row, float scale_log2) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  if (!kFirst) {
    max0 = fmaxf(max0, row.reference[0]);
    max1 = fmaxf(max1, row.reference[1]);
  }
  max0 = quad_max(max0);
  max1 = quad_max(max1);
  if (kFirst) {
    row.correction[0] = row.correction[1] = 1.f;
  } else {
    row.correction[0] = ex2_approx((row.reference[0] - max0) * scale_log2);
    row.correction[1] = ex2_approx((row.reference[1] - max1) * scale_log2);
  }
  row.reference[0] = max0;
  row.reference[1] = max1;
  float shift0 = max0 * scale_log2, shift1 = max1 * scale_log2;
  if (kGuard) {  // -inf minus -inf is NaN: such a row keeps sum 0
    if (max0 == -infinity()) {
      shift0 = 0.f;
      row.correction[0] = 1.f;
    }
    if (max1 == -infinity()) {
      shift1 = 0.f;
      row.correction[1] = 1.f;
    }
  }
  float sum0 = 0.f, sum1 = 0.f, odd0 = 0.f, odd1 = 0.f;
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
#pragma unroll
    for (int e = 0; e < 4; e++) s[4 * i + e] = ex2_approx(fmaf(s[4 * i + e], scale_log2, e < 2 ? -shift0 : -shift1));
    sum0 += s[4 * i];
    odd0 += s[4 * i + 1];
    sum1 += s[4 * i + 2];
    odd1 += s[4 * i + 3];
  }
  sum0 += odd0;
  sum1 += odd1;
  row.sum[0] = kFirst ? sum0 : fmaf(row.sum[0], row.correction[0], sum0);
  row.sum[1] = kFirst ? sum1 : fmaf(row.sum[1], row.correction[1], sum1);
}

// P in the A-operand fragment; registers beyond kWidth become 0, so that a product of full width adds nothing there.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void convert_p(const float (&s)[kSize], uint32_t (&p)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kWidth / 4; i++) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
#pragma unroll
  for (int i = kWidth / 4; i < kPacked; i++) p[i] = 0u;
}

template <int kSize>
ATTUNE_DEVICE void rescale(float (&o)[kSize], float factor0, float factor1) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    o[4 * i] *= factor0;
    o[4 * i + 1] *= factor0;
    o[4 * i + 2] *= factor1;
    o[4 * i + 3] *= factor1;
  }
}

#line 2 "templates/ptx/matrix.cuh"
// ldmatrix and stmatrix: four 8x8 tiles of 16-bit elements.

ATTUNE_DEVICE void ldmatrix_x4(uint32_t address, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}

ATTUNE_DEVICE void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

#line 2 "templates/ptx/bulk_tensor.cuh"
// cp.async.bulk.tensor.*: TMA copies of 4-D boxes (column, row, head, batch).

// L2 cache policies as createpolicy encodes them (fractional, all of the accesses).
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

ATTUNE_DEVICE void bulk_tensor_load(uint32_t destination, const TensorMap* map, uint32_t barrier, int column, int row,
                                    int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "l"(policy)
      : "memory");
}

// Rows and columns outside the tensor are not written.
ATTUNE_DEVICE void bulk_tensor_store(const TensorMap* map, uint32_t source, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

ATTUNE_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their source (the buffer may be written again).
ATTUNE_DEVICE void bulk_wait_group_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

ATTUNE_DEVICE void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#line 2 "templates/ptx/barrier.cuh"
// bar.*: named barriers, and the proxy fence that goes with them.

ATTUNE_DEVICE void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

ATTUNE_DEVICE void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary writes to shared memory before later accesses by the async proxy (TMA, wgmma).
ATTUNE_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#line 2 "templates/ptx/global.cuh"
// Stores to global memory that pass by L1.

ATTUNE_DEVICE void st_global(uint16_t* pointer, uint32_t x) {
  asm volatile("st.global.L1::no_allocate.b32 [%0], %1;" ::"l"(pointer), "r"(x) : "memory");
}

ATTUNE_DEVICE void st_global_v4(uint16_t* pointer, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

#line 2 "templates/forward/epilogue.cuh"
// Output of one tile: O normalised, rounded and staged through shared memory for a TMA store; LSE written directly.

// 128-byte swizzle: the 16-byte unit `unit` of row `row`, within a chunk of `rows` rows of 128 bytes.
ATTUNE_DEVICE uint32_t swizzled(int rows, int row, int unit) {
  return (unit / 8) * (rows * 128) + row * 128 + (((unit % 8) ^ (row & 7)) << 4);
}

// Stages the accumulator fragment (64 rows of a warpgroup, or 16 of a warp) as 64-column chunks of kRows rows.
// `row` is the row this lane addresses. A row without keys (sum 0) gives exact zeros, whatever V held.
template <typename Element, int kHeadDim, int kRows, int kSize>
ATTUNE_DEVICE void stage_output(const float (&o)[kSize], uint32_t buffer, int row, int lane, float sum0, float sum1) {
  const float inverse0 = sum0 > 0.f ? rcp_approx(sum0) : 0.f, inverse1 = sum1 > 0.f ? rcp_approx(sum1) : 0.f;
#pragma unroll
  for (int k = 0; k < (kHeadDim + 15) / 16; k++) {
    constexpr bool kOdd = kHeadDim % 16 != 0;
    const bool half = kOdd && k == kHeadDim / 16;  // the last 8 columns have no right neighbour
    stmatrix_x4(buffer + swizzled(kRows, row, 2 * k + (lane >> 4)),
                Element::pack(o[8 * k] * inverse0, o[8 * k + 1] * inverse0),
                Element::pack(o[8 * k + 2] * inverse1, o[8 * k + 3] * inverse1),
                half ? 0u : Element::pack(o[(8 * k + 4) % kSize] * inverse0, o[(8 * k + 5) % kSize] * inverse0),
                half ? 0u : Element::pack(o[(8 * k + 6) % kSize] * inverse1, o[(8 * k + 7) % kSize] * inverse1));
  }
}

template <int kHeadDim, int kRows>
ATTUNE_DEVICE void store_output(const TensorMap* map, uint32_t buffer, int row, int head, int batch) {
#pragma unroll
  for (int chunk = 0; chunk < (kHeadDim + 63) / 64; chunk++)
    bulk_tensor_store(map, buffer + chunk * (kRows * 128), chunk * 64, row, head, batch);
  bulk_commit_group();
}

// O straight from the accumulator fragment to global memory. Four lanes hold 8 neighbouring columns in pieces of 4
// bytes; where the head dim allows they trade pieces, so that each lane writes 16 bytes of its own group of 8 columns.
template <typename Element, int kHeadDim, int kSize>
ATTUNE_DEVICE void write_output(const float (&o)[kSize], uint16_t* head, int64_t row_stride, int row, int seqlen_q,
                                int lane, float sum0, float sum1) {
  const float inverse0 = sum0 > 0.f ? rcp_approx(sum0) : 0.f, inverse1 = sum1 > 0.f ? rcp_approx(sum1) : 0.f;
  const int quad = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint16_t* const out = head + (row + 8 * half) * row_stride;
    const bool inside = row + 8 * half < seqlen_q;
    const float inverse = half ? inverse1 : inverse0;
    constexpr int kTraded = kHeadDim / 32 * 4;  // groups of 8 columns that trade, four at a time
#pragma unroll
    for (int i = 0; i < kTraded; i += 4) {
      uint32_t x[4];
#pragma unroll
      for (int g = 0; g < 4; g++)
        x[g] = Element::pack(o[4 * (i + g) + 2 * half] * inverse, o[4 * (i + g) + 2 * half + 1] * inverse);
      // 4x4 transpose over the quad: lane l sends x[l ^ r] to lane l ^ r and gets that lane's x[l].
      uint32_t y[4];
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int other = quad ^ r;
        const uint32_t low = other & 1 ? x[1] : x[0], high = other & 1 ? x[3] : x[2];
        const uint32_t sent = other & 2 ? high : low;
        y[r] = r == 0 ? sent : __shfl_xor_sync(kFullWarp, sent, r);
      }
      // y[r] is piece `quad ^ r` of this lane's group.
      uint32_t z[4];
#pragma unroll
      for (int piece = 0; piece < 4; piece++) {
        const int r = quad ^ piece;
        const uint32_t low = r & 1 ? y[1] : y[0], high = r & 1 ? y[3] : y[2];
        z[piece] = r & 2 ? high : low;
      }
      if (inside) st_global_v4(out + 8 * (i + quad), z[0], z[1], z[2], z[3]);
    }
#pragma unroll
    for (int i = kTraded; i < kHeadDim / 8; i++)
      if (inside)
        st_global(out + 8 * i + 2 * quad,
                  Element::pack(o[4 * i + 2 * half] * inverse, o[4 * i + 2 * half + 1] * inverse));
  }
}

// LSE = scale * reference + ln(sum), -inf for a row without keys. `row` is this thread's first row.
ATTUNE_DEVICE void store_lse(float* lse, int row, int seqlen_q, float scale, const float (&reference)[2], float sum0,
                             float sum1) {
  constexpr float kLn2 = 0.693147180559945f;
  if (row < seqlen_q) lse[row] = sum0 > 0.f ? reference[0] * scale + lg2_approx(sum0) * kLn2 : -infinity();
  if (row + 8 < seqlen_q) lse[row + 8] = sum1 > 0.f ? reference[1] * scale + lg2_approx(sum1) * kLn2 : -infinity();
}

#line 2 "templates/forward/speculative.cuh"
// Speculative softmax: the exponentials use a reference fixed beforehand, so there is no row maximum, no shuffle and no
// rescale of O in the common case. The row sums, which are needed anyway, prove afterwards that the reference served:
// a sum outside the element type's window (or NaN) sends the warp down the exact path, from S, which is still intact.

// p <- 2^(scale s - shift) packed, and this thread's sums.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void exponentials(const float (&s)[kSize], uint32_t (&p)[kPacked], float scale_log2, float shift0,
                                float shift1, float& sum0, float& sum1) {
  float odd0 = 0.f, odd1 = 0.f;
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
    float e[4];
#pragma unroll
    for (int k = 0; k < 4; k++) e[k] = ex2_approx(fmaf(s[4 * i + k], scale_log2, k < 2 ? -shift0 : -shift1));
    p[2 * i] = Element::pack(e[0], e[1]);
    p[2 * i + 1] = Element::pack(e[2], e[3]);
    if (i == 0) {
      sum0 = e[0];
      odd0 = e[1];
      sum1 = e[2];
      odd1 = e[3];
    } else {
      sum0 += e[0];
      odd0 += e[1];
      sum1 += e[2];
      odd1 += e[3];
    }
  }
  sum0 += odd0;
  sum1 += odd1;
}

template <int kWidth, int kPacked>
ATTUNE_DEVICE void clear_beyond(uint32_t (&p)[kPacked]) {
#pragma unroll
  for (int i = kWidth / 4; i < kPacked; i++) p[i] = 0u;
}

// First block of a tile on the exact path: the reference is this block's row maximum.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void first_block_by_max(const float (&s)[kSize], uint32_t (&p)[kPacked], RowState& row,
                                      float scale_log2) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  max0 = quad_max(max0);
  max1 = quad_max(max1);
  row.reference[0] = max0;
  row.reference[1] = max1;
  const float shift0 = max0 == -infinity() ? 0.f : max0 * scale_log2;
  const float shift1 = max1 == -infinity() ? 0.f : max1 * scale_log2;
  exponentials<Element, kWidth>(s, p, scale_log2, shift0, shift1, row.sum[0], row.sum[1]);
}

// First block with reference 0; true if it served every row of this warp.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE bool first_block_by_zero(const float (&s)[kSize], uint32_t (&p)[kPacked], RowState& row,
                                       float scale_log2) {
  exponentials<Element, kWidth>(s, p, scale_log2, 0.f, 0.f, row.sum[0], row.sum[1]);
  row.reference[0] = row.reference[1] = 0.f;
  const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
  return !__any_sync(kFullWarp, !(sum0 <= Element::kWindowHigh && sum1 <= Element::kWindowHigh &&
                                  sum0 >= Element::kWindowLow && sum1 >= Element::kWindowLow));
}

// A later block on the exact path: new running maximum as the reference, sums and O rescaled.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block_by_max(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput],
                                     RowState& row, float scale_log2, float& sum0, float& sum1) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  max0 = quad_max(fmaxf(max0, row.reference[0]));
  max1 = quad_max(fmaxf(max1, row.reference[1]));
  const float shift0 = max0 == -infinity() ? 0.f : max0 * scale_log2;
  const float shift1 = max1 == -infinity() ? 0.f : max1 * scale_log2;
  const float factor0 = max0 == -infinity() ? 1.f : ex2_approx(row.reference[0] * scale_log2 - shift0);
  const float factor1 = max1 == -infinity() ? 1.f : ex2_approx(row.reference[1] * scale_log2 - shift1);
  exponentials<Element, kWidth>(s, p, scale_log2, shift0, shift1, sum0, sum1);
  row.sum[0] *= factor0;
  row.sum[1] *= factor1;
  row.reference[0] = max0;
  row.reference[1] = max1;
  rescale(o, factor0, factor1);
}

// A later block: speculate on the running reference.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput], RowState& row,
                              float scale_log2) {
  float sum0, sum1;
  exponentials<Element, kWidth>(s, p, scale_log2, row.reference[0] * scale_log2, row.reference[1] * scale_log2, sum0,
                                sum1);
  if (__builtin_expect(__any_sync(kFullWarp, !(sum0 + sum1 <= Element::kWindowHigh)), 0))
    next_block_by_max<Element, kWidth>(s, p, o, row, scale_log2, sum0, sum1);
  row.sum[0] += sum0;
  row.sum[1] += sum1;
}

// A later block that is masked: always the exact path, since a row may not have seen a key yet.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block_masked(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput],
                                     RowState& row, float scale_log2) {
  float sum0, sum1;
  next_block_by_max<Element, kWidth>(s, p, o, row, scale_log2, sum0, sum1);
  row.sum[0] += sum0;
  row.sum[1] += sum1;
}

#line 615 "kernel.cu"
constexpr int kConsumers = 2, kBlockM = 128, kBlockN = 128, kStages = 2, kQBuffers = 1;
constexpr int kHeadDimV = 128;
constexpr int kQkChunks = 2, kVChunks = 2;  // 64 columns each, zero-filled beyond the head dim
constexpr int kQkSteps = 8;  // of 16 columns
constexpr int kScores = 64, kOutputs = 64, kPacked = 32, kQRegisters = 32;  // registers a thread

// Shared memory, bytes from the first 1024-byte boundary.
constexpr uint32_t kQBytes = 32768, kKBytes = 32768, kVBytes = 32768;
constexpr uint32_t kSharedQ = 0, kSharedO = 32768, kSharedK = 65536, kSharedV = 131072;
constexpr uint32_t kKFull = 196608, kKEmpty = kKFull + 8 * kStages;
constexpr uint32_t kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages;
constexpr uint32_t kQFull = kVEmpty + 8 * kStages, kQEmpty = kQFull + 8 * kQBuffers;
constexpr uint32_t kSlots = 196688;  // ring of four tiles, producer to consumers

template <int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n64k16_bf16_rs(float (&d)[kSize], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {
  static_assert(kSize >= 32);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %37, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
    "{%32, %33, %34, %35}, %36, scale_d, 1, 1, %38;\n"
    "}}\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(kTransposeB));

}

template <int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n128k16_bf16_rs(float (&d)[kSize], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {
  static_assert(kSize >= 64);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %69, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
    "{%64, %65, %66, %67}, %68, scale_d, 1, 1, %70;\n"
    "}}\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
      "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
      "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
      "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
      "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
      "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
      "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
      "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
      "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(kTransposeB));

}

// S = Q K^T for one block of 64 keys. K-major operands: 32 bytes a k-step inside a 64-column chunk.
ATTUNE_DEVICE void issue_qk_n64(float (&s)[kScores], const uint32_t (&q)[kQRegisters], uint64_t k) {
  #pragma unroll
  for (int step = 0; step < kQkSteps; step++) {
    const uint64_t k_step = k + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4);
    wgmma_m64n64k16_bf16_rs<0>(s, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3], k_step, step > 0);
  }
  wgmma_commit_group();
}

// S = Q K^T for one block of 128 keys. K-major operands: 32 bytes a k-step inside a 64-column chunk.
ATTUNE_DEVICE void issue_qk(float (&s)[kScores], const uint32_t (&q)[kQRegisters], uint64_t k) {
  #pragma unroll
  for (int step = 0; step < kQkSteps; step++) {
    const uint64_t k_step = k + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4);
    wgmma_m64n128k16_bf16_rs<0>(s, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3], k_step, step > 0);
  }
  wgmma_commit_group();
}

// O (+)= P V for one block of 64 keys. V is MN-major: a k-step is 16 rows of 128 bytes.
ATTUNE_DEVICE void issue_pv_n64(float (&o)[kOutputs], const uint32_t (&p)[kPacked], uint64_t v, int accumulate) {
  #pragma unroll
  for (int step = 0; step < 4; step++)
    wgmma_m64n128k16_bf16_rs<1>(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3], v + ((step * 2048) >> 4),
        step > 0 ? 1 : accumulate);
  wgmma_commit_group();
}

// O (+)= P V for one block of 128 keys. V is MN-major: a k-step is 16 rows of 128 bytes.
ATTUNE_DEVICE void issue_pv(float (&o)[kOutputs], const uint32_t (&p)[kPacked], uint64_t v, int accumulate) {
  #pragma unroll
  for (int step = 0; step < 8; step++)
    wgmma_m64n128k16_bf16_rs<1>(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3], v + ((step * 2048) >> 4),
        step > 0 ? 1 : accumulate);
  wgmma_commit_group();
}

ATTUNE_DEVICE Tile tile_at(int index, const ForwardParams& params) {
  if (index >= params.total_tiles) return Tile{-1, 0, 0, 0};
  Tile tile = tile_longest_first(index, params);
  tile.blocks = blocks_of<kBlockM, kBlockN, true>(tile.m, params);
  return tile;
}

// Q of a tile, and with it the tile itself through the ring of slots. m = -1 ends the consumers.
ATTUNE_DEVICE void load_q(const TensorMap* map_q, uint32_t shared, const Tile& tile, int& buffer, int& phase, int& slot) {
  mbarrier_wait(shared + kQEmpty + 8 * buffer, phase);
  st_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);
  if (tile.m < 0) {
    mbarrier_arrive(shared + kQFull + 8 * buffer);
    return;
  }
  mbarrier_arrive_expect_tx(shared + kQFull + 8 * buffer, kQBytes);
  #pragma unroll 1
  for (int part = 0; part < kConsumers; part++)
    for (int chunk = 0; chunk < kQkChunks; chunk++)
      bulk_tensor_load(shared + kSharedQ + buffer * kQBytes + (part * kQkChunks + chunk) * (64 * 128), map_q,
                       shared + kQFull + 8 * buffer, chunk * 64, tile.m * kBlockM + part * 64, tile.head, tile.batch,
                       kEvictFirst);
  phase ^= 1;
}

// One K or V block into its ring: wait until the consumers left the stage, announce the bytes, copy by chunks.
template <int kChunks>
ATTUNE_DEVICE void load_block(const TensorMap* map, uint32_t ring, uint32_t full, uint32_t empty, int& stage, int& phase,
                              int row, int head, int batch) {
  constexpr int kBytes = kChunks * kBlockN * 128;
  mbarrier_wait(empty + 8 * stage, phase);
  mbarrier_arrive_expect_tx(full + 8 * stage, kBytes);
  #pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk++)
    bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockN * 128), map, full + 8 * stage, chunk * 64, row, head, batch,
                     kEvictLast);
  if (++stage == kStages) {
    stage = 0;
    phase ^= 1;
  }
}

// Producer: one thread walks the tiles and keeps the rings full, in the order in which the consumers read.
ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v,
                           const ForwardParams& params, uint32_t shared) {
  int stage_k = 0, phase_k = 1, stage_v = 0, phase_v = 1, buffer_q = 0, phase_q = 1, slot = 0;
  Tile tile = tile_at(blockIdx.x, params);
  #pragma unroll 1
  while (tile.m >= 0) {
    const int index = atomicAdd(params.counter, 1u) + gridDim.x;
    const int kv_head = tile.head / params.group;
    load_block<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, shared + kKEmpty, stage_k, phase_k,
                          (tile.blocks - 1) * kBlockN, kv_head, tile.batch);
    load_q(map_q, shared, tile, buffer_q, phase_q, slot);
    #pragma unroll 1
    for (int n = tile.blocks - 2; n >= 0; --n) {
      load_block<kVChunks>(map_v, shared + kSharedV, shared + kVFull, shared + kVEmpty, stage_v, phase_v,
                            (n + 1) * kBlockN, kv_head, tile.batch);
      load_block<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, shared + kKEmpty, stage_k, phase_k,
                            n * kBlockN, kv_head, tile.batch);
    }
    load_block<kVChunks>(map_v, shared + kSharedV, shared + kVFull, shared + kVEmpty, stage_v, phase_v,
                          0 * kBlockN, kv_head, tile.batch);
    tile = tile_at(index, params);
  }
  load_q(map_q, shared, tile, buffer_q, phase_q, slot);
  // The last block to finish leaves the counter at zero for the next launch.
  if (atomicInc(params.counter + 1, gridDim.x - 1) == gridDim.x - 1) {
    __threadfence();
    atomicExch(params.counter, 0u);
  }
}

// Consumer warpgroup: 64 query rows of every tile of this block.
ATTUNE_DEVICE void consume_upper(const TensorMap* map_o, const ForwardParams& params, uint32_t shared, int warpgroup) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const bool leader = thread == 0;
  float s[kScores], o[kOutputs];
  uint32_t p[kPacked];
  RowState row;
  uint32_t q[kQRegisters];
  const uint64_t k_base = wgmma_descriptor(shared + kSharedK, 16, 1024);
  const uint64_t v_base = wgmma_descriptor(shared + kSharedV, kBlockN * 128, 1024);
  int stage_k = 0, phase_k = 0, stage_v = 0, phase_v = 0, buffer_q = 0, phase_q = 0, slot = 0;
  const float scale_log2 = params.scale_log2;
  const int matrix_row = warp * 16 + (lane & 15);  // row that this lane addresses in ldmatrix and stmatrix
  Tile tile;
  int first_row = 0;  // this thread's first query row
  const int turn = 1 + warpgroup, next_turn = 1 + (warpgroup + 1) % kConsumers;
  // The last warpgroup grants the first one its first turn.
  if (warpgroup == kConsumers - 1) barrier_arrive(1, 256);

  mbarrier_wait(shared + kQFull + 8 * buffer_q, phase_q);
  ld_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);
  if (tile.m < 0) return;
  first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
  #pragma unroll
  for (int step = 0; step < kQkSteps; step++)
    ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                    swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);  // one arrival a warp
  // -- first block of the first tile
  mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
  pin(s);
  wgmma_fence();
  issue_qk_n64(s, q, k_base + ((stage_k * kKBytes) >> 4));
  wgmma_wait_group<0>();
  pin(s);
  if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
  if (++stage_k == kStages) {
    stage_k = 0;
    phase_k ^= 1;
  }
  {
    const int column = (tile.blocks - 1) * kBlockN + 2 * (lane & 3);
    const int limit = first_row - params.seqlen_q + params.seqlen_k - column;
    mask_columns<64>(s, limit, limit + 8);
  }
  first_block_by_max<Bf16, 64>(s, p, row, scale_log2);
  clear_beyond<64>(p);
  int accumulate = 0;  // 0: the next P V starts a new O
  #pragma unroll 1
  while (true) {
    int n = tile.blocks - 2;
    // -- the block after the narrow first one
    if (n >= 0) {
      mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
      barrier_sync(turn, 256);
      pin(s);
      pin(o);
      wgmma_fence();
      issue_pv_n64(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
      mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
      issue_qk(s, q, k_base + ((stage_k * kKBytes) >> 4));
      barrier_arrive(next_turn, 256);
      wgmma_wait_group<0>();
      pin(s);
      pin(o);
      pin(p);
      if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
      if (++stage_v == kStages) {
        stage_v = 0;
        phase_v ^= 1;
      }
      if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
      if (++stage_k == kStages) {
        stage_k = 0;
        phase_k ^= 1;
      }
      next_block<Bf16, 128>(s, p, o, row, scale_log2);
      accumulate = 1;
      --n;
    }
    // -- one key block
    #pragma unroll 1
    for (; n >= 0; --n) {
      mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
      barrier_sync(turn, 256);
      pin(s);
      pin(o);
      wgmma_fence();
      issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
      mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
      issue_qk(s, q, k_base + ((stage_k * kKBytes) >> 4));
      barrier_arrive(next_turn, 256);
      wgmma_wait_group<0>();
      pin(s);
      pin(o);
      pin(p);
      if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
      if (++stage_v == kStages) {
        stage_v = 0;
        phase_v ^= 1;
      }
      if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
      if (++stage_k == kStages) {
        stage_k = 0;
        phase_k ^= 1;
      }
      next_block<Bf16, 128>(s, p, o, row, scale_log2);
      accumulate = 1;
    }
    // -- tile boundary: this tile's last product runs beside the next tile's first
    const Tile done = tile;
    phase_q ^= 1;
    mbarrier_wait(shared + kQFull + 8 * buffer_q, phase_q);
    ld_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);
    const bool more = tile.m >= 0;
    if (!more) {
      mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
      pin(o);
      wgmma_fence();
      issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
      wgmma_wait_group<0>();
      pin(o);
      pin(p);
      if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
      if (++stage_v == kStages) {
        stage_v = 0;
        phase_v ^= 1;
      }
      {
        const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
        const int top = done.m * kBlockM + warpgroup * 64;
        const uint32_t buffer = shared + kSharedO + warpgroup * (kVChunks * 64 * 128);
        if (leader) bulk_wait_group_read();  // the previous tile's store
        barrier_sync(8 + warpgroup, 128);
        stage_output<Bf16, kHeadDimV, 64>(o, buffer, matrix_row, lane, sum0, sum1);
        fence_proxy_async();
        barrier_sync(8 + warpgroup, 128);
        if (leader) store_output<kHeadDimV, 64>(map_o, buffer, top, done.head, done.batch);
        if (params.lse != nullptr && (lane & 3) == 0)
          store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                    top + warp * 16 + (lane >> 2), params.seqlen_q, params.scale, row.reference, sum0, sum1);
      }
      if (leader) bulk_wait_group_read();  // shared memory must outlive the store's reads
      return;
    }
    first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
    #pragma unroll
    for (int step = 0; step < kQkSteps; step++)
      ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                      swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                  q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);  // one arrival a warp
    mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
    barrier_sync(turn, 256);
    pin(s);
    pin(o);
    wgmma_fence();
    issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
    mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
    issue_qk_n64(s, q, k_base + ((stage_k * kKBytes) >> 4));
    barrier_arrive(next_turn, 256);
    wgmma_wait_group<1>();
    pin(o);
    pin(p);
    if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
    if (++stage_v == kStages) {
      stage_v = 0;
      phase_v ^= 1;
    }
    {
      const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
      const int top = done.m * kBlockM + warpgroup * 64;
      const uint32_t buffer = shared + kSharedO + warpgroup * (kVChunks * 64 * 128);
      if (leader) bulk_wait_group_read();  // the previous tile's store
      barrier_sync(8 + warpgroup, 128);
      stage_output<Bf16, kHeadDimV, 64>(o, buffer, matrix_row, lane, sum0, sum1);
      fence_proxy_async();
      barrier_sync(8 + warpgroup, 128);
      if (leader) store_output<kHeadDimV, 64>(map_o, buffer, top, done.head, done.batch);
      if (params.lse != nullptr && (lane & 3) == 0)
        store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                  top + warp * 16 + (lane >> 2), params.seqlen_q, params.scale, row.reference, sum0, sum1);
    }
    wgmma_wait_group<0>();
    pin(s);
    if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
    if (++stage_k == kStages) {
      stage_k = 0;
      phase_k ^= 1;
    }
    {
      const int column = (tile.blocks - 1) * kBlockN + 2 * (lane & 3);
      const int limit = first_row - params.seqlen_q + params.seqlen_k - column;
      mask_columns<64>(s, limit, limit + 8);
    }
    first_block_by_max<Bf16, 64>(s, p, row, scale_log2);
    clear_beyond<64>(p);
    accumulate = 0;
  }
}

// Consumer warpgroup: 64 query rows of every tile of this block.
ATTUNE_DEVICE void consume(const TensorMap* map_o, const ForwardParams& params, uint32_t shared, int warpgroup) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const bool leader = thread == 0;
  float s[kScores], o[kOutputs];
  uint32_t p[kPacked];
  RowState row;
  uint32_t q[kQRegisters];
  const uint64_t k_base = wgmma_descriptor(shared + kSharedK, 16, 1024);
  const uint64_t v_base = wgmma_descriptor(shared + kSharedV, kBlockN * 128, 1024);
  int stage_k = 0, phase_k = 0, stage_v = 0, phase_v = 0, buffer_q = 0, phase_q = 0, slot = 0;
  const float scale_log2 = params.scale_log2;
  const int matrix_row = warp * 16 + (lane & 15);  // row that this lane addresses in ldmatrix and stmatrix
  Tile tile;
  int first_row = 0;  // this thread's first query row
  const int turn = 1 + warpgroup, next_turn = 1 + (warpgroup + 1) % kConsumers;
  // The last warpgroup grants the first one its first turn.
  if (warpgroup == kConsumers - 1) barrier_arrive(1, 256);

  mbarrier_wait(shared + kQFull + 8 * buffer_q, phase_q);
  ld_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);
  if (tile.m < 0) return;
  first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
  #pragma unroll
  for (int step = 0; step < kQkSteps; step++)
    ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                    swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);  // one arrival a warp
  // -- first block of the first tile
  mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
  pin(s);
  wgmma_fence();
  issue_qk(s, q, k_base + ((stage_k * kKBytes) >> 4));
  wgmma_wait_group<0>();
  pin(s);
  if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
  if (++stage_k == kStages) {
    stage_k = 0;
    phase_k ^= 1;
  }
  {
    const int column = (tile.blocks - 1) * kBlockN + 2 * (lane & 3);
    const int limit = first_row - params.seqlen_q + params.seqlen_k - column;
    mask_columns<128>(s, limit, limit + 8);
  }
  first_block_by_max<Bf16, 128>(s, p, row, scale_log2);
  int accumulate = 0;  // 0: the next P V starts a new O
  #pragma unroll 1
  while (true) {
    int n = tile.blocks - 2;
    // -- one key block
    #pragma unroll 1
    for (; n >= 0; --n) {
      mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
      barrier_sync(turn, 256);
      pin(s);
      pin(o);
      wgmma_fence();
      issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
      mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
      issue_qk(s, q, k_base + ((stage_k * kKBytes) >> 4));
      barrier_arrive(next_turn, 256);
      wgmma_wait_group<0>();
      pin(s);
      pin(o);
      pin(p);
      if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
      if (++stage_v == kStages) {
        stage_v = 0;
        phase_v ^= 1;
      }
      if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
      if (++stage_k == kStages) {
        stage_k = 0;
        phase_k ^= 1;
      }
      next_block<Bf16, 128>(s, p, o, row, scale_log2);
      accumulate = 1;
    }
    // -- tile boundary: this tile's last product runs beside the next tile's first
    const Tile done = tile;
    phase_q ^= 1;
    mbarrier_wait(shared + kQFull + 8 * buffer_q, phase_q);
    ld_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);
    const bool more = tile.m >= 0;
    if (!more) {
      mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
      pin(o);
      wgmma_fence();
      issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
      wgmma_wait_group<0>();
      pin(o);
      pin(p);
      if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
      if (++stage_v == kStages) {
        stage_v = 0;
        phase_v ^= 1;
      }
      {
        const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
        const int top = done.m * kBlockM + warpgroup * 64;
        const uint32_t buffer = shared + kSharedO + warpgroup * (kVChunks * 64 * 128);
        if (leader) bulk_wait_group_read();  // the previous tile's store
        barrier_sync(8 + warpgroup, 128);
        stage_output<Bf16, kHeadDimV, 64>(o, buffer, matrix_row, lane, sum0, sum1);
        fence_proxy_async();
        barrier_sync(8 + warpgroup, 128);
        if (leader) store_output<kHeadDimV, 64>(map_o, buffer, top, done.head, done.batch);
        if (params.lse != nullptr && (lane & 3) == 0)
          store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                    top + warp * 16 + (lane >> 2), params.seqlen_q, params.scale, row.reference, sum0, sum1);
      }
      if (leader) bulk_wait_group_read();  // shared memory must outlive the store's reads
      return;
    }
    first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
    #pragma unroll
    for (int step = 0; step < kQkSteps; step++)
      ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                      swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                  q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);  // one arrival a warp
    mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);
    barrier_sync(turn, 256);
    pin(s);
    pin(o);
    wgmma_fence();
    issue_pv(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);
    mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);
    issue_qk(s, q, k_base + ((stage_k * kKBytes) >> 4));
    barrier_arrive(next_turn, 256);
    wgmma_wait_group<1>();
    pin(o);
    pin(p);
    if (leader) mbarrier_arrive(shared + kVEmpty + 8 * stage_v);
    if (++stage_v == kStages) {
      stage_v = 0;
      phase_v ^= 1;
    }
    {
      const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
      const int top = done.m * kBlockM + warpgroup * 64;
      const uint32_t buffer = shared + kSharedO + warpgroup * (kVChunks * 64 * 128);
      if (leader) bulk_wait_group_read();  // the previous tile's store
      barrier_sync(8 + warpgroup, 128);
      stage_output<Bf16, kHeadDimV, 64>(o, buffer, matrix_row, lane, sum0, sum1);
      fence_proxy_async();
      barrier_sync(8 + warpgroup, 128);
      if (leader) store_output<kHeadDimV, 64>(map_o, buffer, top, done.head, done.batch);
      if (params.lse != nullptr && (lane & 3) == 0)
        store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                  top + warp * 16 + (lane >> 2), params.seqlen_q, params.scale, row.reference, sum0, sum1);
    }
    wgmma_wait_group<0>();
    pin(s);
    if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
    if (++stage_k == kStages) {
      stage_k = 0;
      phase_k ^= 1;
    }
    {
      const int column = (tile.blocks - 1) * kBlockN + 2 * (lane & 3);
      const int limit = first_row - params.seqlen_q + params.seqlen_k - column;
      mask_columns<128>(s, limit, limit + 8);
    }
    first_block_by_max<Bf16, 128>(s, p, row, scale_log2);
    accumulate = 0;
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
attune_forward(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
               const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_o,
               const __grid_constant__ ForwardParams params) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t shared = (shared_address(shared_memory) + 1023) & ~1023u;
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) {
      mbarrier_init(shared + kKFull + 8 * i, 1);
      mbarrier_init(shared + kKEmpty + 8 * i, kConsumers);
      mbarrier_init(shared + kVFull + 8 * i, 1);
      mbarrier_init(shared + kVEmpty + 8 * i, kConsumers);
    }
    for (int i = 0; i < kQBuffers; i++) {
      mbarrier_init(shared + kQFull + 8 * i, 1);
      mbarrier_init(shared + kQEmpty + 8 * i, 4 * kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) produce(&map_q, &map_k, &map_v, params, shared);
  } else {
    setmaxnreg_inc<232>();
    if (warpgroup == 1) {
      consume_upper(&map_o, params, shared, 0);
    } else {
      consume(&map_o, params, shared, warpgroup - 1);
    }
  }
}
