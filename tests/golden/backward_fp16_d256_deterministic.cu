// attune backward  sm_90a  fp16  d256  |  64x64, column split, 1 Q + 1 dO + 1 dS stages, one barrier a step, dQ by bulk copies in order
// spec: arch=sm_90a,dtype=fp16,head_dim=256,head_dim_v=256,causal=0,edge=length,tail=0,deterministic=1,family=sm90_backward,block_m=64,split=columns,k_stages=1,q_stages=1,do_stages=1,ds_stages=1,lag=0,ping_pong=0,late_fences=0,prefetch=0,v_in_registers=0,skip=0,visits=ascending,dq=bulk,sums=zeroed,dkv=staged,boundary=drained,persistent=0,finish=launch,prepare=launch,registers=240
// reproduce: attune emit --spec arch=sm_90a,dtype=fp16,head_dim=256,head_dim_v=256,causal=0,edge=length,tail=0,deterministic=1,family=sm90_backward,block_m=64,split=columns,k_stages=1,q_stages=1,do_stages=1,ds_stages=1,lag=0,ping_pong=0,late_fences=0,prefetch=0,v_in_registers=0,skip=0,visits=ascending,dq=bulk,sums=zeroed,dkv=staged,boundary=drained,persistent=0,finish=launch,prepare=launch,registers=240

#line 964 "kernel.cu"
constexpr int kBlockM = 64, kBlockN = 64, kQStages = 1, kDoStages = 1, kDsStages = 1;
constexpr int kQkChunks = 4, kVChunks = 4;  // 64 columns each, zero-filled beyond the head dim
constexpr int kQkSteps = 16, kVSteps = 16;  // of 16 columns
constexpr int kScores = 16, kPacked = 8;  // registers a thread
constexpr int kDqFloats = 16384;  // sums of dQ a query tile
constexpr bool kDescending = false;  // a block of keys visits the last query tile of a head first

// Shared memory, bytes from the first 1024-byte boundary.
constexpr uint32_t kQBytes = 32768, kDoBytes = 32768, kStatisticsBytes = 256;
constexpr uint32_t kSharedK = 0, kSharedV = 32768, kSharedQ = 65536, kSharedDo = 98304;
constexpr uint32_t kSharedDs = 131072, kDsBytes = 8192;
constexpr uint32_t kSharedP = 139264, kPBytes = 8192;
constexpr uint32_t kSharedDq = 147456;
constexpr uint32_t kSharedLse = 212992, kSharedDelta = 213248;
constexpr uint32_t kKFull = 213504, kVFull = kKFull + 8;
constexpr uint32_t kQFull = kVFull + 8, kQEmpty = kQFull + 8 * kQStages;
constexpr uint32_t kDoFull = kQEmpty + 8 * kQStages, kDoEmpty = kDoFull + 8 * kDoStages;
constexpr uint32_t kDsFull = kDoEmpty + 8 * kDoStages, kDsEmpty = kDsFull + 8 * kDsStages;
constexpr uint32_t kItems = 213616;  // a block of keys from the producer

template <int kTransposeA, int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n32k16_fp16_ss(float (&d)[kSize], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kSize >= 16);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %18, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
    "%16, %17, scale_d, 1, 1, %19, %20;\n"
    "}}\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
      "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
    : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));

}

template <int kTransposeA, int kTransposeB, int kSize>
ATTUNE_DEVICE void wgmma_m64n128k16_fp16_ss(float (&d)[kSize], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kSize >= 64);
  asm volatile(
    "{{\n"
    ".reg .pred scale_d;\n"
    "setp.ne.b32 scale_d, %66, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
    "%64, %65, scale_d, 1, 1, %67, %68;\n"
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
    : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));

}

// S^T = K Q^T, or dP^T = V dO^T. K-major operands: 32 bytes a k-step inside a 64-column chunk.
template <int kSteps>
ATTUNE_DEVICE void issue_scores(float (&d)[kScores], uint64_t keys, uint64_t queries) {
  #pragma unroll
  for (int step = 0; step < kSteps; step++)
    wgmma_m64n32k16_fp16_ss<0, 0>(d, keys + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4),
        queries + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4), step > 0);
  wgmma_commit_group();
}

// dV += P^T dO, or dK += dS^T Q, 128 columns. MN-major operands: a k-step is 16 rows of 128 bytes.
ATTUNE_DEVICE void issue_gradient_n128(float (&d)[64], uint64_t a, uint64_t queries, int accumulate) {
  #pragma unroll
  for (int step = 0; step < kBlockM / 16; step++)
    wgmma_m64n128k16_fp16_ss<1, 1>(d, a + ((step * 2048) >> 4),
        queries + ((step * 2048) >> 4), step > 0 ? 1 : accumulate);
  wgmma_commit_group();
}

// dQ = dS K, 128 columns. K-major dS, MN-major K.
ATTUNE_DEVICE void issue_dq_n128(float (&d)[64], uint64_t ds, uint64_t keys) {
  #pragma unroll
  for (int step = 0; step < kBlockN / 16; step++) {
    const uint64_t ds_step = ds + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4);
    const uint64_t keys_step = keys + ((step * 2048) >> 4);
    wgmma_m64n128k16_fp16_ss<0, 1>(d, ds_step, keys_step, step > 0);
  }
  wgmma_commit_group();
}

extern "C" __global__ void __launch_bounds__(256)
attune_backward_prepare(const __grid_constant__ BackwardParams params) {
  follow_closely();
  prepare_tile<Fp16, 256, 256, kBlockM, kBlockN, kDqFloats, false, 1, true, false, false, false>(params);
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

// Two warps take turns at adding what the consumers stage of a block's dQ to its sums: while one waits until its
// additions are complete and counts them, the other serves the next step.
ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block, int adder, int first) {
  const int lane = threadIdx.x & 31;
  QueryTile tile = first_query_tile<kDescending>(block, params);
  if (first == 1) advance<kDescending>(tile, block, params);
  #pragma unroll 1
  for (int step = first; step < block.steps; step += 2) {
    // The blocks of a head add in their order. They started in it, too, so whoever is waited for runs.
    if (lane == 0) {
      while (ld_acquire(params.turns + tile.index) != block.n) {
      }
      fence_proxy_async_all();
    }
    __syncwarp();
    barrier_sync(2 + 8 * adder, 160);  // warpgroup 0 has staged its part
    if (lane == 0) {
      bulk_reduce_add(params.dq_sums + static_cast<int64_t>(tile.index) * kDqFloats, shared + kSharedDq, 32768, kEvictLast);
      bulk_commit_group();
    }
    barrier_sync(3 + 8 * adder, 160);  // warpgroup 1 has staged its part
    if (lane == 0) {
      bulk_reduce_add(params.dq_sums + static_cast<int64_t>(tile.index) * kDqFloats + 8192, shared + kSharedDq + 32768, 32768, kEvictLast);
      bulk_commit_group();
    }
    const bool more = step + 1 < block.steps;  // staged again
    if (lane == 0) bulk_wait_group_read<1>();
    __syncwarp();
    if (more) barrier_arrive(4, 160);
    if (lane == 0) bulk_wait_group_read<0>();
    __syncwarp();
    if (more) barrier_arrive(5, 160);
    if (lane == 0) {
      bulk_wait_group();
      red_release_add(params.turns + tile.index, 1);
    }
    advance<kDescending>(tile, block, params);
    advance<kDescending>(tile, block, params);
  }
}

// Consumer warpgroup 0: half of the queries' scores, then its columns of the gradients.
ATTUNE_DEVICE void consume_0(const TensorMap* map_dk, const TensorMap* map_dv, const BackwardParams& params,
                           uint32_t shared, const KeyBlock& block) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  float dk[64];
  float dv[64];
  // Left operands of S and dP, and the right ones: rows of queries.
  const uint64_t k_rows = wgmma_descriptor(shared + kSharedK, 16, 1024);
  const uint64_t v_rows = wgmma_descriptor(shared + kSharedV, 16, 1024);
  const uint64_t q_rows = wgmma_descriptor(shared + kSharedQ, 16, 1024);
  const uint64_t do_rows = wgmma_descriptor(shared + kSharedDo, 16, 1024);
  // Right operands of dK and dV.
  const uint64_t q_columns = wgmma_descriptor(shared + kSharedQ, kBlockM * 128, 1024);
  const uint64_t do_columns = wgmma_descriptor(shared + kSharedDo, kBlockM * 128, 1024);
  // Left operands of dK and dV.
  const uint64_t ds_columns = wgmma_descriptor(shared + kSharedDs, kBlockM * 128, 1024);
  const uint64_t p_columns = wgmma_descriptor(shared + kSharedP, kBlockM * 128, 1024);
  // Operands of dQ.
  const uint64_t ds_rows = wgmma_descriptor(shared + kSharedDs, 16, 1024);
  const uint64_t k_columns = wgmma_descriptor(shared + kSharedK, kBlockN * 128, 1024);
  const uint32_t ds_address = transposed_address(shared + kSharedDs, warp, lane);
  const uint32_t lse_address = shared + kSharedLse + 8 * (lane & 3);
  const uint32_t delta_address = shared + kSharedDelta + 8 * (lane & 3);
  const uint32_t dq_address = shared + kSharedDq + 16 * thread;
  int stage_q = 0, phase_q = 0;  // of dO, too
  const int key = block.n * kBlockN + warp * 16 + (lane >> 2);  // this thread's first row
  int accumulate = 0;  // 0: the next product starts a new dK or dV
  mbarrier_wait(shared + kKFull, 0);
  mbarrier_wait(shared + kVFull, 0);
  // -- one query tile
  #pragma unroll 1
  for (int step = 0; step < block.steps; step++) {
    float s[kScores], dp[kScores];
    uint32_t p[kPacked], ds[kPacked];
    float dq[64];
    mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));
    mbarrier_wait(shared + kDoFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_q * kDoBytes) >> 4));
    wgmma_wait_group<1>();
    pin(s);
    if ((block.n + 1) * kBlockN > params.seqlen_k) mask_keys(s, key, params.seqlen_k);
    probabilities(s, lse_address + stage_q * kStatisticsBytes, params.scale_log2);
    wgmma_wait_group<0>();
    pin(dp);
    score_gradients<Fp16>(s, dp, delta_address + stage_q * kStatisticsBytes, ds);
    pack<Fp16>(s, p);
    barrier_sync(1, 256);
    store_transposed(ds, ds_address + 0 * kDsBytes);
    store_transposed(p, ds_address + (kSharedP - kSharedDs) + 0 * kPBytes);
    fence_proxy_async();
    barrier_sync(1, 256);
    wgmma_fence();
    issue_gradient_n128(dv, p_columns + ((0 * kPBytes) >> 4), do_columns + ((stage_q * kDoBytes) >> 4), accumulate);
    wgmma_fence();
    issue_dq_n128(dq, ds_rows + ((0 * kDsBytes) >> 4), k_columns);
    wgmma_fence();
    issue_gradient_n128(dk, ds_columns + ((0 * kDsBytes) >> 4), q_columns + ((stage_q * kQBytes) >> 4), accumulate);
    wgmma_wait_group<1>();
    pin(dq);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_q);
    if (step >= 1) barrier_sync(4, 160);  // the part before has left
    stage_dq(dq, dq_address);
    fence_proxy_async();
    barrier_arrive(2 + 8 * (step & 1), 160);
    wgmma_wait_group<0>();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
    phase_q ^= 1;
    accumulate = 1;
  }
  // -- dV and dK, over V and K
  pin(dv);
  pin(dk);
  barrier_sync(1, 256);  // nobody reads K and V any more
  stage_gradient<Fp16, 128>(dv, shared + kSharedV, kBlockN * 128, warp, lane, 1.f);
  stage_gradient<Fp16, 128>(dk, shared + kSharedK, kBlockN * 128, warp, lane, params.scale);
  fence_proxy_async();
  barrier_sync(6, 128);
  if (thread == 0) {
    store_gradient<128>(map_dv, shared + kSharedV, kBlockN * 128, 0, block.n * kBlockN, block.head, block.batch);
    store_gradient<128>(map_dk, shared + kSharedK, kBlockN * 128, 0, block.n * kBlockN, block.head, block.batch);
    bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
  }
}

// Consumer warpgroup 1: half of the queries' scores, then its columns of the gradients.
ATTUNE_DEVICE void consume_1(const TensorMap* map_dk, const TensorMap* map_dv, const BackwardParams& params,
                           uint32_t shared, const KeyBlock& block) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  float dk[64];
  float dv[64];
  // Left operands of S and dP, and the right ones: rows of queries.
  const uint64_t k_rows = wgmma_descriptor(shared + kSharedK, 16, 1024);
  const uint64_t v_rows = wgmma_descriptor(shared + kSharedV, 16, 1024);
  const uint64_t q_rows = wgmma_descriptor(shared + kSharedQ + 4096, 16, 1024);
  const uint64_t do_rows = wgmma_descriptor(shared + kSharedDo + 4096, 16, 1024);
  // Right operands of dK and dV.
  const uint64_t q_columns = wgmma_descriptor(shared + kSharedQ + 16384, kBlockM * 128, 1024);
  const uint64_t do_columns = wgmma_descriptor(shared + kSharedDo + 16384, kBlockM * 128, 1024);
  // Left operands of dK and dV.
  const uint64_t ds_columns = wgmma_descriptor(shared + kSharedDs, kBlockM * 128, 1024);
  const uint64_t p_columns = wgmma_descriptor(shared + kSharedP, kBlockM * 128, 1024);
  // Operands of dQ.
  const uint64_t ds_rows = wgmma_descriptor(shared + kSharedDs, 16, 1024);
  const uint64_t k_columns = wgmma_descriptor(shared + kSharedK + 16384, kBlockN * 128, 1024);
  const uint32_t ds_address = transposed_address(shared + kSharedDs + 4096, warp, lane);
  const uint32_t lse_address = shared + kSharedLse + 128 + 8 * (lane & 3);
  const uint32_t delta_address = shared + kSharedDelta + 128 + 8 * (lane & 3);
  const uint32_t dq_address = shared + kSharedDq + 32768 + 16 * thread;
  int stage_q = 0, phase_q = 0;  // of dO, too
  const int key = block.n * kBlockN + warp * 16 + (lane >> 2);  // this thread's first row
  int accumulate = 0;  // 0: the next product starts a new dK or dV
  mbarrier_wait(shared + kKFull, 0);
  mbarrier_wait(shared + kVFull, 0);
  // -- one query tile
  #pragma unroll 1
  for (int step = 0; step < block.steps; step++) {
    float s[kScores], dp[kScores];
    uint32_t p[kPacked], ds[kPacked];
    float dq[64];
    mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));
    mbarrier_wait(shared + kDoFull + 8 * stage_q, phase_q);
    wgmma_fence();
    issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_q * kDoBytes) >> 4));
    wgmma_wait_group<1>();
    pin(s);
    if ((block.n + 1) * kBlockN > params.seqlen_k) mask_keys(s, key, params.seqlen_k);
    probabilities(s, lse_address + stage_q * kStatisticsBytes, params.scale_log2);
    wgmma_wait_group<0>();
    pin(dp);
    score_gradients<Fp16>(s, dp, delta_address + stage_q * kStatisticsBytes, ds);
    pack<Fp16>(s, p);
    barrier_sync(1, 256);
    store_transposed(ds, ds_address + 0 * kDsBytes);
    store_transposed(p, ds_address + (kSharedP - kSharedDs) + 0 * kPBytes);
    fence_proxy_async();
    barrier_sync(1, 256);
    wgmma_fence();
    issue_gradient_n128(dv, p_columns + ((0 * kPBytes) >> 4), do_columns + ((stage_q * kDoBytes) >> 4), accumulate);
    wgmma_fence();
    issue_dq_n128(dq, ds_rows + ((0 * kDsBytes) >> 4), k_columns);
    wgmma_fence();
    issue_gradient_n128(dk, ds_columns + ((0 * kDsBytes) >> 4), q_columns + ((stage_q * kQBytes) >> 4), accumulate);
    wgmma_wait_group<1>();
    pin(dq);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_q);
    if (step >= 1) barrier_sync(5, 160);  // the part before has left
    stage_dq(dq, dq_address);
    fence_proxy_async();
    barrier_arrive(3 + 8 * (step & 1), 160);
    wgmma_wait_group<0>();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
    phase_q ^= 1;
    accumulate = 1;
  }
  // -- dV and dK, over V and K
  pin(dv);
  pin(dk);
  barrier_sync(1, 256);  // nobody reads K and V any more
  stage_gradient<Fp16, 128>(dv, shared + kSharedV + 16384, kBlockN * 128, warp, lane, 1.f);
  stage_gradient<Fp16, 128>(dk, shared + kSharedK + 16384, kBlockN * 128, warp, lane, params.scale);
  fence_proxy_async();
  barrier_sync(7, 128);
  if (thread == 0) {
    store_gradient<128>(map_dv, shared + kSharedV + 16384, kBlockN * 128, 128, block.n * kBlockN, block.head, block.batch);
    store_gradient<128>(map_dk, shared + kSharedK + 16384, kBlockN * 128, 128, block.n * kBlockN, block.head, block.batch);
    bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
  }
}

extern "C" __global__ void __launch_bounds__(256)
attune_backward_finish(const __grid_constant__ BackwardParams params) {
  follow_closely();
  __shared__ __align__(16) uint16_t rows[kBlockM * pitch_of(256)];
  finish_tile<Fp16, 256, kBlockM>(params, rows, DqPart{0, 0, 128, false}, DqPart{0, 128, 128, false});
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
    const KeyBlock block = key_block_at<kBlockM, kBlockN, false>(blockIdx.x, params);
    store_zeros<kQkChunks, kBlockN>(&map_dk, shared, block.n * kBlockN, block.head, block.batch);
    store_zeros<kVChunks, kBlockN>(&map_dv, shared, block.n * kBlockN, block.head, block.batch);
    return;
  }
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be
  if (threadIdx.x == 0) {
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
    fence_mbarrier_init();
    follow_closely();  // the ticket is zeroed by the kernel before
    st_shared(shared + kItems, atomicAdd(params.ticket, 1u));  // blocks are numbered as they start
  }
  __syncthreads();
  follow_closely();
  const KeyBlock block = key_block_at<kBlockM, kBlockN, false>(ld_shared(shared + kItems), params);
  if (warpgroup == 0) {
    setmaxnreg_dec<24>();
    const int warp = __shfl_sync(kFullWarp, threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) produce(&map_q, &map_k, &map_v, &map_do, params, shared, block);
    if (warp == 1 || warp == 3) add_dq_tiles(params, shared, block, warp >> 1, warp >> 1);
  } else {
    setmaxnreg_inc<240>();
    if (warpgroup == 1) {
      consume_0(&map_dk, &map_dv, params, shared, block);
    } else {
      consume_1(&map_dk, &map_dv, params, shared, block);
    }
  }
}
