// attune backward  sm_90a  bf16  d256  causal  |  64x64, product split, 2 Q + 2 dO + 2 P stages, dQ in a pass of its own
// spec: arch=sm_90a,dtype=bf16,head_dim=256,head_dim_v=256,causal=1,edge=diagonals,tail=0,deterministic=0,family=sm90_backward,block_m=64,split=products,k_stages=1,q_stages=2,do_stages=2,ds_stages=2,lag=0,ping_pong=0,late_fences=0,prefetch=0,v_in_registers=0,skip=0,visits=ascending,dq=pass,sums=zeroed,dkv=staged,boundary=drained,persistent=0,finish=launch,prepare=launch,registers=240
// reproduce: attune emit --spec arch=sm_90a,dtype=bf16,head_dim=256,head_dim_v=256,causal=1,edge=diagonals,tail=0,deterministic=0,family=sm90_backward,block_m=64,split=products,k_stages=1,q_stages=2,do_stages=2,ds_stages=2,lag=0,ping_pong=0,late_fences=0,prefetch=0,v_in_registers=0,skip=0,visits=ascending,dq=pass,sums=zeroed,dkv=staged,boundary=drained,persistent=0,finish=launch,prepare=launch,registers=240

#line 1018 "kernel.cu"
constexpr int kBlockM = 64, kBlockN = 64, kQStages = 2, kDoStages = 2, kDsStages = 2;
constexpr int kQkChunks = 4, kVChunks = 4;  // 64 columns each, zero-filled beyond the head dim
constexpr int kQkSteps = 16, kVSteps = 16;  // of 16 columns
constexpr int kScores = 32, kPacked = 16;  // registers a thread
constexpr int kDqFloats = 0;  // sums of dQ a query tile
constexpr bool kDescending = false;  // a block of keys visits the last query tile of a head first

// Shared memory, bytes from the first 1024-byte boundary.
constexpr uint32_t kQBytes = 32768, kDoBytes = 32768, kStatisticsBytes = 256;
constexpr uint32_t kSharedK = 0, kSharedV = 32768, kSharedQ = 65536, kSharedDo = 131072;
constexpr uint32_t kSharedP = 196608, kPBytes = 16384;
constexpr uint32_t kSharedLse = 229376, kSharedDelta = 229888;
constexpr uint32_t kKFull = 230400, kVFull = kKFull + 8;
constexpr uint32_t kQFull = kVFull + 8, kQEmpty = kQFull + 8 * kQStages;
constexpr uint32_t kDoFull = kQEmpty + 8 * kQStages, kDoEmpty = kDoFull + 8 * kDoStages;
constexpr uint32_t kDsFull = kDoEmpty + 8 * kDoStages, kDsEmpty = kDsFull + 8 * kDsStages;

template <int kTransposeA, int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n64k16_bf16_ss(float (&d)[kSize], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kSize >= 32);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %34, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
    "%32, %33, scale_d, 1, 1, %35, %36;\n"
    "}}\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
      "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
      "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));

}

template <int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n256k16_bf16_rs(float (&d)[kSize], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {
  static_assert(kSize >= 128);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %133, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
    "{%128, %129, %130, %131}, %132, scale_d, 1, 1, %134;\n"
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
      "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
      "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]),
      "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
      "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
      "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
      "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
      "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
      "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
      "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
      "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
      "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
      "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
      "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
      "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
      "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
      "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
      "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(kTransposeB));

}

// S^T = K Q^T, or dP^T = V dO^T. K-major operands: 32 bytes a k-step inside a 64-column chunk.
template <int kSteps>
ATTUNE_DEVICE void issue_scores(float (&d)[kScores], uint64_t keys, uint64_t queries) {
  #pragma unroll
  for (int step = 0; step < kSteps; step++)
    wgmma_m64n64k16_bf16_ss<0, 0>(d, keys + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4),
        queries + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4), step > 0);
  wgmma_commit_group();
}

// dV += P^T dO, or dK += dS^T Q, or dQ += dS K, 256 columns. MN-major operands: a k-step is 16 rows of 128 bytes.
ATTUNE_DEVICE void issue_gradient_n256(float (&d)[128], const uint32_t (&a)[kPacked], uint64_t queries, int accumulate) {
  #pragma unroll
  for (int step = 0; step < kBlockM / 16; step++)
    wgmma_m64n256k16_bf16_rs<1>(d, a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3],
        queries + ((step * 2048) >> 4), step > 0 ? 1 : accumulate);
  wgmma_commit_group();
}

extern "C" __global__ void __launch_bounds__(256)
attune_backward_prepare(const __grid_constant__ BackwardParams params) {
  follow_closely();
  prepare_tile<Bf16, 256, 256, kBlockM, kBlockN, kDqFloats, true, 0, false, false, false, false>(params);
}

// Rows of a tensor's head, in 64-column chunks.
template <int kChunks, int kRows>
ATTUNE_DEVICE void load_rows_of(const TensorMap* map, uint32_t buffer, uint32_t full, int row, int head, int batch, uint64_t policy) {
  mbarrier_arrive_expect_tx(full, kChunks * kRows * 128);
  #pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk++)
    bulk_tensor_load(buffer + chunk * (kRows * 128), map, full, chunk * 64, row, head, batch, policy);
}

// K or V of the block: it comes once.
template <int kChunks>
ATTUNE_DEVICE void load_keys(const TensorMap* map, uint32_t buffer, uint32_t full, const KeyBlock& block) {
  load_rows_of<kChunks, kBlockN>(map, buffer, full, block.n * kBlockN, block.head, block.batch, kEvictFirst);
}

// A tile of Q and its shifts, or of dO and its deltas, into the next stage of its ring.
template <int kChunks, int kStages>
ATTUNE_DEVICE void load_queries(const TensorMap* map, uint32_t ring, uint32_t statistics_ring, uint32_t full, uint32_t empty,
                                int& stage, int& phase, const float* statistics, const QueryTile& tile, int batch) {
  constexpr int kBytes = kChunks * kBlockM * 128;
  mbarrier_wait(empty + 8 * stage, phase);
  mbarrier_arrive_expect_tx(full + 8 * stage, kBytes + kBlockM * 4);
  #pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk++)
    bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockM * 128), map, full + 8 * stage, chunk * 64,
                     tile.m * kBlockM, tile.head, batch, kEvictLast);
  bulk_load(statistics_ring + stage * kStatisticsBytes, statistics, kBlockM * 4, full + 8 * stage);
  if (++stage == kStages) {
    stage = 0;
    phase ^= 1;
  }
}

// Q and dO of a step, and on to the next one.
ATTUNE_DEVICE void load_step(const TensorMap* map_q, const TensorMap* map_do, const BackwardParams& params, uint32_t shared,
                             const KeyBlock& block, QueryTile& tile, int& stage_q, int& phase_q, int& stage_do, int& phase_do) {
  const int64_t row = static_cast<int64_t>(tile.index) * kBlockM;
  load_queries<kQkChunks, kQStages>(map_q, shared + kSharedQ, shared + kSharedLse, shared + kQFull, shared + kQEmpty,
                                    stage_q, phase_q, params.shifts + row, tile, block.batch);
  load_queries<kVChunks, kDoStages>(map_do, shared + kSharedDo, shared + kSharedDelta, shared + kDoFull, shared + kDoEmpty,
                                    stage_do, phase_do, params.deltas + row, tile, block.batch);
  advance<kDescending>(tile, block, params);
}

// Producer: one thread loads, in the order in which the consumers read.
ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, const TensorMap* map_do,
                           const BackwardParams& params, uint32_t shared, const KeyBlock& block) {
  int stage_q = 0, phase_q = 1, stage_do = 0, phase_do = 1;
  QueryTile tile = first_query_tile<kDescending>(block, params);
  load_keys<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, block);
  load_keys<kVChunks>(map_v, shared + kSharedV, shared + kVFull, block);
  #pragma unroll 1
  for (int step = 0; step < block.steps; step++) {
    load_step(map_q, map_do, params, shared, block, tile, stage_q, phase_q, stage_do, phase_do);
  }
}

// P on its way from one warpgroup to the other: full and empty.
constexpr uint32_t kPFull = kDsFull, kPEmpty = kDsEmpty;
// A thread block of queries: each warpgroup's Q and dO, then rings of K and V.
constexpr int kQueryRows = 128, kKStages = 2, kVStages = 1;
constexpr uint32_t kKBytes = 32768, kVBytes = 32768;
constexpr uint32_t kQueryQ = 0, kQueryDo = 65536, kQueryK = 131072, kQueryV = 196608;
constexpr uint32_t kQueryQFull = 230400, kQueryDoFull = kQueryQFull + 16;
constexpr uint32_t kRingKFull = kQueryDoFull + 16, kRingKEmpty = kRingKFull + 8 * kKStages;
constexpr uint32_t kRingVFull = kRingKEmpty + 8 * kKStages, kRingVEmpty = kRingVFull + 8 * kVStages;

// One warpgroup of a block of keys: S^T = K Q^T, P, dV += P^T dO.
ATTUNE_DEVICE void consume_values(const TensorMap* map_dv, const BackwardParams& params, uint32_t shared, const KeyBlock& block) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  float dv[128], s[kScores];
  uint32_t p[kPacked];
  const uint64_t k_rows = wgmma_descriptor(shared + kSharedK, 16, 1024);
  const uint64_t q_rows = wgmma_descriptor(shared + kSharedQ, 16, 1024);
  const uint64_t do_columns = wgmma_descriptor(shared + kSharedDo, kBlockM * 128, 1024);
  const uint32_t lse_address = shared + kSharedLse + 8 * (lane & 3);
  const uint32_t p_address = shared + kSharedP + 16 * thread;
  const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset
  // Distance of this thread's first key from the last one that its first query of tile 0 sees.
  const int limit = block.n * kBlockN + warp * 16 + (lane >> 2) - offset - 2 * (lane & 3);
  QueryTile tile = first_query_tile<kDescending>(block, params);
  int stage_q = 0, phase_q = 0, stage_do = 0, phase_do = 0, stage_p = 0;
  int phase_p = 1, accumulate = 0;  // 0: the next product starts a new dV
  mbarrier_wait(shared + kKFull, 0);
  mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
  wgmma_fence();
  issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));
  wgmma_wait_group<0>();
  pin(s);
  #pragma unroll 1
  for (int step = 1; step < block.steps; step++) {
    if (block.n * kBlockN + kBlockN - 1 > tile.m * kBlockM + offset)
      mask_queries(s, limit - tile.m * kBlockM);
    probabilities(s, lse_address + stage_q * kStatisticsBytes, params.scale_log2);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
    if (++stage_q == kQStages) {
      stage_q = 0;
      phase_q ^= 1;
    }
    mbarrier_wait(shared + kPEmpty + 8 * stage_p, phase_p);
    store_fragments(s, p_address + stage_p * kPBytes);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kPFull + 8 * stage_p);
    if (++stage_p == kDsStages) {
      stage_p = 0;
      phase_p ^= 1;
    }
    pack<Bf16>(s, p);
    advance<kDescending>(tile, block, params);
    mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);
    wgmma_fence();
    issue_gradient_n256(dv, p, do_columns + ((stage_do * kDoBytes) >> 4), accumulate);
    accumulate = 1;
    mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));
    wgmma_wait_group<0>();
    pin(s);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_do);
    if (++stage_do == kDoStages) {
      stage_do = 0;
      phase_do ^= 1;
    }
  }
  if (block.n * kBlockN + kBlockN - 1 > tile.m * kBlockM + offset)
    mask_queries(s, limit - tile.m * kBlockM);
  probabilities(s, lse_address + stage_q * kStatisticsBytes, params.scale_log2);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
  if (++stage_q == kQStages) {
    stage_q = 0;
    phase_q ^= 1;
  }
  mbarrier_wait(shared + kPEmpty + 8 * stage_p, phase_p);
  store_fragments(s, p_address + stage_p * kPBytes);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kPFull + 8 * stage_p);
  if (++stage_p == kDsStages) {
    stage_p = 0;
    phase_p ^= 1;
  }
  pack<Bf16>(s, p);
  advance<kDescending>(tile, block, params);
  mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);
  wgmma_fence();
  issue_gradient_n256(dv, p, do_columns + ((stage_do * kDoBytes) >> 4), accumulate);
  wgmma_wait_group<0>();
  pin(dv);
  barrier_sync(1, 256);  // nobody reads K and V any more
  stage_gradient<Bf16, 256>(dv, shared + kSharedV, kBlockN * 128, warp, lane, 1.f);
  fence_proxy_async();
  barrier_sync(6, 128);
  if (thread == 0) {
    store_gradient<256>(map_dv, shared + kSharedV, kBlockN * 128, 0, block.n * kBlockN, block.head, block.batch);
    bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
  }
}

// The other one: dP^T = V dO^T, dS with the first one's P, dK += dS^T Q.
ATTUNE_DEVICE void consume_keys(const TensorMap* map_dk, const BackwardParams& params, uint32_t shared, const KeyBlock& block) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  float dk[128], dp[kScores], p[kScores];
  uint32_t ds[kPacked];
  const uint64_t v_rows = wgmma_descriptor(shared + kSharedV, 16, 1024);
  const uint64_t do_rows = wgmma_descriptor(shared + kSharedDo, 16, 1024);
  const uint64_t q_columns = wgmma_descriptor(shared + kSharedQ, kBlockM * 128, 1024);
  const uint32_t delta_address = shared + kSharedDelta + 8 * (lane & 3);
  const uint32_t p_address = shared + kSharedP + 16 * thread;
  int stage_q = 0, phase_q = 0, stage_do = 0, phase_do = 0, stage_p = 0;
  int phase_p = 0, accumulate = 0;  // 0: the next product starts a new dK
  mbarrier_wait(shared + kVFull, 0);
  mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);
  wgmma_fence();
  issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_do * kDoBytes) >> 4));
  wgmma_wait_group<0>();
  pin(dp);
  #pragma unroll 1
  for (int step = 1; step < block.steps; step++) {
    mbarrier_wait(shared + kPFull + 8 * stage_p, phase_p);
    load_fragments(p, p_address + stage_p * kPBytes);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kPEmpty + 8 * stage_p);
    if (++stage_p == kDsStages) {
      stage_p = 0;
      phase_p ^= 1;
    }
    score_gradients<Bf16>(p, dp, delta_address + stage_do * kStatisticsBytes, ds);
    mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_gradient_n256(dk, ds, q_columns + ((stage_q * kQBytes) >> 4), accumulate);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_do);
    if (++stage_do == kDoStages) {
      stage_do = 0;
      phase_do ^= 1;
    }
    accumulate = 1;
    mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);
    wgmma_fence();
    issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_do * kDoBytes) >> 4));
    wgmma_wait_group<0>();
    pin(dp);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
    if (++stage_q == kQStages) {
      stage_q = 0;
      phase_q ^= 1;
    }
  }
  mbarrier_wait(shared + kPFull + 8 * stage_p, phase_p);
  load_fragments(p, p_address + stage_p * kPBytes);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kPEmpty + 8 * stage_p);
  if (++stage_p == kDsStages) {
    stage_p = 0;
    phase_p ^= 1;
  }
  score_gradients<Bf16>(p, dp, delta_address + stage_do * kStatisticsBytes, ds);
  mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
  wgmma_fence();
  issue_gradient_n256(dk, ds, q_columns + ((stage_q * kQBytes) >> 4), accumulate);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_do);
  if (++stage_do == kDoStages) {
    stage_do = 0;
    phase_do ^= 1;
  }
  wgmma_wait_group<0>();
  pin(dk);
  barrier_sync(1, 256);  // nobody reads K and V any more
  stage_gradient<Bf16, 256>(dk, shared + kSharedK, kBlockN * 128, warp, lane, params.scale);
  fence_proxy_async();
  barrier_sync(7, 128);
  if (thread == 0) {
    store_gradient<256>(map_dk, shared + kSharedK, kBlockN * 128, 0, block.n * kBlockN, block.head, block.batch);
    bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
  }
}

// Producer of a block of queries: Q and dO of both warpgroups, K and V block by block.
ATTUNE_DEVICE void produce_queries(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, const TensorMap* map_do,
                                   const BackwardParams& params, uint32_t shared) {
  const QueryBlock block = this_query_block<kQueryRows>(true, params);
  const int steps = (block.keys + kBlockN - 1) / kBlockN;
  const int head = block.head / params.group;
  #pragma unroll 1
  for (int step = 0; step < steps; step++) {
    if (step == 0) {
      for (int w = 0; w < 2; w++) {
        if (keys_seen(block.row + 64 * w + 64, true, params) == 0) continue;
        load_rows_of<kQkChunks, 64>(map_q, shared + kQueryQ + w * kQBytes, shared + kQueryQFull + 8 * w,
                            block.row + 64 * w, block.head, block.batch, kEvictFirst);
      }
    }
    mbarrier_wait(shared + kRingKEmpty + 8 * stage_of<kKStages>(step), phase_of<kKStages>(step) ^ 1);
    load_rows_of<kQkChunks, kBlockN>(map_k, shared + kQueryK + stage_of<kKStages>(step) * kKBytes,
                           shared + kRingKFull + 8 * stage_of<kKStages>(step), step * kBlockN, head, block.batch, kEvictLast);
    if (step == 0) {
      for (int w = 0; w < 2; w++) {
        if (keys_seen(block.row + 64 * w + 64, true, params) == 0) continue;
        load_rows_of<kVChunks, 64>(map_do, shared + kQueryDo + w * kDoBytes, shared + kQueryDoFull + 8 * w,
                            block.row + 64 * w, block.head, block.batch, kEvictFirst);
      }
    }
    mbarrier_wait(shared + kRingVEmpty + 8 * stage_of<kVStages>(step), phase_of<kVStages>(step) ^ 1);
    load_rows_of<kVChunks, kBlockN>(map_v, shared + kQueryV + stage_of<kVStages>(step) * kVBytes,
                           shared + kRingVFull + 8 * stage_of<kVStages>(step), step * kBlockN, head, block.batch, kEvictLast);
  }
}

// Each warpgroup of a block of queries has 64 rows: S = Q K^T, dP = dO V^T, dQ += dS K.
ATTUNE_DEVICE void consume_queries(const BackwardParams& params, uint32_t shared, int warpgroup) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  const QueryBlock block = this_query_block<kQueryRows>(true, params);
  const int first_row = block.row + 64 * warpgroup;
  const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset
  const int keys = keys_seen(first_row + 64, true, params);
  const int steps = (keys + kBlockN - 1) / kBlockN;
  if (steps == 0) {
    store_no_gradient<256>(params, block, first_row, thread);
  } else {
    float dq[128], s[kScores], dp[kScores];
    uint32_t ds[kPacked];
    const uint32_t own_q = shared + kQueryQ + warpgroup * kQBytes;
    uint64_t q_rows = wgmma_descriptor(own_q, 16, 1024);
    uint64_t do_rows = wgmma_descriptor(shared + kQueryDo + warpgroup * kDoBytes, 16, 1024);
    const uint64_t k_rows = wgmma_descriptor(shared + kQueryK, 16, 1024);
    const uint64_t v_rows = wgmma_descriptor(shared + kQueryV, 16, 1024);
    const uint64_t k_columns = wgmma_descriptor(shared + kQueryK, kBlockN * 128, 1024);
    const QueryRows rows =
        load_query_rows<kBlockM>(block, first_row + warp * 16 + (lane >> 2), params);
    mbarrier_wait(shared + kQueryQFull + 8 * warpgroup, 0);
    mbarrier_wait(shared + kRingKFull + 8 * stage_of<kKStages>(0), phase_of<kKStages>(0));
    wgmma_fence();
    issue_scores<kQkSteps>(s, q_rows, k_rows + ((stage_of<kKStages>(0) * kKBytes) >> 4));
    mbarrier_wait(shared + kQueryDoFull + 8 * warpgroup, 0);
    mbarrier_wait(shared + kRingVFull + 8 * stage_of<kVStages>(0), phase_of<kVStages>(0));
    issue_scores<kVSteps>(dp, do_rows, v_rows + ((stage_of<kVStages>(0) * kVBytes) >> 4));
    wgmma_wait_group<1>();
    pin(s);
    if (kBlockN > first_row + 1 + offset) {
      const int upper = 2 * (lane & 3) - (first_row + warp * 16 + (lane >> 2)) - offset;
      mask_unseen(s, upper, upper - 8);
    }
    query_probabilities(s, rows, params.scale_log2);
    wgmma_wait_group<0>();
    pin(dp);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kRingVEmpty + 8 * stage_of<kVStages>(0));
    int step = 0;
    #pragma unroll 1
    for (; step + 1 < steps; step++) {
      query_gradients<Bf16>(s, dp, rows, ds);
      wgmma_fence();
      issue_gradient_n256(dq, ds, k_columns + ((stage_of<kKStages>(step) * kKBytes) >> 4), step > 0);
      const int next = step + 1;
      forget(q_rows);
      forget(do_rows);
      mbarrier_wait(shared + kRingKFull + 8 * stage_of<kKStages>(next), phase_of<kKStages>(next));
      wgmma_fence();
      issue_scores<kQkSteps>(s, q_rows, k_rows + ((stage_of<kKStages>(next) * kKBytes) >> 4));
      mbarrier_wait(shared + kRingVFull + 8 * stage_of<kVStages>(next), phase_of<kVStages>(next));
      issue_scores<kVSteps>(dp, do_rows, v_rows + ((stage_of<kVStages>(next) * kVBytes) >> 4));
      wgmma_wait_group<1>();
      pin(s);
      // dQ of the step before, too, is complete: its K may go.
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared + kRingKEmpty + 8 * stage_of<kKStages>(step));
      if ((next + 1) * kBlockN > first_row + 1 + offset) {
        const int upper = next * kBlockN + 2 * (lane & 3) - (first_row + warp * 16 + (lane >> 2)) - offset;
        mask_unseen(s, upper, upper - 8);
      }
      query_probabilities(s, rows, params.scale_log2);
      wgmma_wait_group<0>();
      pin(dp);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared + kRingVEmpty + 8 * stage_of<kVStages>(next));
    }
    query_gradients<Bf16>(s, dp, rows, ds);
    wgmma_fence();
    issue_gradient_n256(dq, ds, k_columns + ((stage_of<kKStages>(step) * kKBytes) >> 4), step > 0);
    wgmma_wait_group<0>();
    pin(dq);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kRingKEmpty + 8 * stage_of<kKStages>(step));
    const int warp_of_block = thread_index() >> 5, own = warp_of_block / 4 - 1;
    barrier_sync(6 + own, 128);  // Q has been read by all warps, and dQ goes over it
    const uint32_t buffer = shared + kQueryQ + own * kQBytes;
    stage_gradient<Bf16, 256>(dq, buffer, 64 * 128, warp_of_block % 4, lane, params.scale);
    const QueryBlock to = this_query_block<kQueryRows>(true, params);
    store_query_rows<256>(params, to, to.row + 64 * own, buffer, warp_of_block % 4, lane);
  }
  // What only the other warpgroup's rows see.
  const int all_keys = this_query_block<kQueryRows>(true, params).keys;
  for (int step = steps; step * kBlockN < all_keys; step++) {
    mbarrier_wait(shared + kRingKFull + 8 * stage_of<kKStages>(step), phase_of<kKStages>(step));
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kRingKEmpty + 8 * stage_of<kKStages>(step));
    mbarrier_wait(shared + kRingVFull + 8 * stage_of<kVStages>(step), phase_of<kVStages>(step));
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kRingVEmpty + 8 * stage_of<kVStages>(step));
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
attune_backward(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_do,
                const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                const __grid_constant__ BackwardParams params) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t shared = (shared_address(shared_memory) + 1023) & ~1023u;
  if (params.tiles_m == 0) {  // no queries
    follow_closely();
    const KeyBlock block = key_block_at<kBlockM, kBlockN, true>(blockIdx.x, params);
    store_zeros<kQkChunks, kBlockN>(&map_dk, shared, block.n * kBlockN, block.head, block.batch);
    store_zeros<kVChunks, kBlockN>(&map_dv, shared, block.n * kBlockN, block.head, block.batch);
    return;
  }
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be
  const int key_blocks = params.tiles_n * params.pairs;
  const bool of_keys = blockIdx.x < key_blocks;
  if (threadIdx.x == 0) {
    if (of_keys) {
      mbarrier_init(shared + kKFull, 1);
      mbarrier_init(shared + kVFull, 1);
      for (int i = 0; i < kQStages; i++) {
        mbarrier_init(shared + kQFull + 8 * i, 1);
        mbarrier_init(shared + kQEmpty + 8 * i, 8);  // one arrival a warp
      }
      for (int i = 0; i < kDoStages; i++) {
        mbarrier_init(shared + kDoFull + 8 * i, 1);
        mbarrier_init(shared + kDoEmpty + 8 * i, 8);  // one arrival a warp
      }
      for (int i = 0; i < kDsStages; i++) {
        mbarrier_init(shared + kPFull + 8 * i, 4);
        mbarrier_init(shared + kPEmpty + 8 * i, 4);  // one arrival a warp
      }
    } else {
      for (int w = 0; w < 2; w++) {
        mbarrier_init(shared + kQueryQFull + 8 * w, 1);
        mbarrier_init(shared + kQueryDoFull + 8 * w, 1);
      }
      for (int i = 0; i < kKStages; i++) {
        mbarrier_init(shared + kRingKFull + 8 * i, 1);
        mbarrier_init(shared + kRingKEmpty + 8 * i, 8);  // one arrival a warp
      }
      for (int i = 0; i < kVStages; i++) {
        mbarrier_init(shared + kRingVFull + 8 * i, 1);
        mbarrier_init(shared + kRingVEmpty + 8 * i, 8);  // one arrival a warp
      }
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  follow_closely();
  if (of_keys) {
    const KeyBlock block = key_block_at<kBlockM, kBlockN, true>(blockIdx.x, params);
    if (warpgroup == 0) {
      setmaxnreg_dec<24>();
      if (threadIdx.x == 0) produce(&map_q, &map_k, &map_v, &map_do, params, shared, block);
    } else {
      setmaxnreg_inc<240>();
      if (warpgroup == 1) {
        consume_values(&map_dv, params, shared, block);
      } else {
        consume_keys(&map_dk, params, shared, block);
      }
    }
  } else {
    if (warpgroup == 0) {
      setmaxnreg_dec<24>();
      if (threadIdx.x == 0) produce_queries(&map_q, &map_k, &map_v, &map_do, params, shared);
    } else {
      setmaxnreg_inc<240>();
      consume_queries(params, shared, warpgroup - 1);
    }
  }
}
