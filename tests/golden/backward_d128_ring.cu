// attune backward  sm_90a  bf16  d128  causal  |  64x128, row split, 2 Q + 2 dO + 2 dS stages, dQ one step late, ping-pong, late fences, dQ by bulk copies, unseen tiles skipped, persistent, finished from a ring of sums
// spec: arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonals,tail=0,deterministic=0,family=sm90_backward,block_m=64,split=rows,k_stages=1,q_stages=2,do_stages=2,ds_stages=2,lag=1,ping_pong=1,late_fences=1,prefetch=1,v_in_registers=0,skip=1,visits=ascending,dq=bulk,sums=zeroed,dkv=staged,boundary=drained,persistent=1,finish=ring,prepare=launch,registers=224
// reproduce: attune emit --spec arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonals,tail=0,deterministic=0,family=sm90_backward,block_m=64,split=rows,k_stages=1,q_stages=2,do_stages=2,ds_stages=2,lag=1,ping_pong=1,late_fences=1,prefetch=1,v_in_registers=0,skip=1,visits=ascending,dq=bulk,sums=zeroed,dkv=staged,boundary=drained,persistent=1,finish=ring,prepare=launch,registers=224

#line 1188 "kernel.cu"
constexpr int kBlockM = 64, kBlockN = 128, kQStages = 2, kDoStages = 2, kDsStages = 2;
constexpr int kQkChunks = 2, kVChunks = 2;  // 64 columns each, zero-filled beyond the head dim
constexpr int kQkSteps = 8, kVSteps = 8;  // of 16 columns
constexpr int kScores = 32, kPacked = 16;  // registers a thread
constexpr int kDqFloats = 8192;  // sums of dQ a query tile
constexpr bool kDescending = false;  // a block of keys visits the last query tile of a head first

// Shared memory, bytes from the first 1024-byte boundary.
constexpr uint32_t kQBytes = 16384, kDoBytes = 16384, kStatisticsBytes = 256;
constexpr uint32_t kSharedK = 0, kSharedV = 32768, kSharedQ = 65536, kSharedDo = 98304;
constexpr uint32_t kSharedDs = 131072, kDsBytes = 16384;
constexpr uint32_t kSharedDq = 163840;
constexpr uint32_t kSharedRows = 196608, kSharedSums = 204800;  // of dQ to be finished
constexpr uint32_t kSharedLse = 221184, kSharedDelta = 221696;
constexpr uint32_t kKFull = 222208, kVFull = kKFull + 8;
constexpr uint32_t kQFull = kVFull + 8, kQEmpty = kQFull + 8 * kQStages;
constexpr uint32_t kDoFull = kQEmpty + 8 * kQStages, kDoEmpty = kDoFull + 8 * kDoStages;
constexpr uint32_t kDsFull = kDoEmpty + 8 * kDoStages, kDsEmpty = kDsFull + 8 * kDsStages;
constexpr uint32_t kKEmpty = kDsEmpty + 8 * kDsStages, kVEmpty = kKEmpty + 8;
constexpr uint32_t kItemFull = kVEmpty + 8, kItemEmpty = kItemFull + 16;
constexpr uint32_t kSumsFull = kItemEmpty + 16;
constexpr uint32_t kItems = 222384;  // two blocks of keys from the producer

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

// S^T = K Q^T, or dP^T = V dO^T. K-major operands: 32 bytes a k-step inside a 64-column chunk.
template <int kSteps>
ATTUNE_DEVICE void issue_scores(float (&d)[kScores], uint64_t keys, uint64_t queries) {
  #pragma unroll
  for (int step = 0; step < kSteps; step++)
    wgmma_m64n64k16_bf16_ss<0, 0>(d, keys + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4),
        queries + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4), step > 0);
  wgmma_commit_group();
}

// dV += P^T dO, or dK += dS^T Q, 128 columns. MN-major operands: a k-step is 16 rows of 128 bytes.
ATTUNE_DEVICE void issue_gradient_n128(float (&d)[64], const uint32_t (&a)[kPacked], uint64_t queries, int accumulate) {
  #pragma unroll
  for (int step = 0; step < kBlockM / 16; step++)
    wgmma_m64n128k16_bf16_rs<1>(d, a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3],
        queries + ((step * 2048) >> 4), step > 0 ? 1 : accumulate);
  wgmma_commit_group();
}

// dQ = dS K, 64 columns. K-major dS, MN-major K.
ATTUNE_DEVICE void issue_dq_n64(float (&d)[32], uint64_t ds, uint64_t keys) {
  #pragma unroll
  for (int step = 0; step < kBlockN / 16; step++) {
    const uint64_t ds_step = ds + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4);
    const uint64_t keys_step = keys + ((step * 2048) >> 4);
    wgmma_m64n64k16_bf16_ss<0, 1>(d, ds_step, keys_step, step > 0);
  }
  wgmma_commit_group();
}

extern "C" __global__ void __launch_bounds__(256)
attune_backward_prepare(const __grid_constant__ BackwardParams params) {
  follow_closely();
  prepare_tile<Bf16, 128, 128, kBlockM, kBlockN, kDqFloats, true, 1, true, true, false, false>(params);
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

// K and V of a block are loaded once those of the block before have been used, and then it is urgent: in L2 they
// are asked for earlier.
ATTUNE_DEVICE void prefetch_keys(const TensorMap* map_k, const TensorMap* map_v, const KeyBlock& block) {
  for (int chunk = 0; chunk < kVChunks; chunk++)
    bulk_tensor_prefetch(map_v, chunk * 64, block.n * kBlockN, block.head, block.batch);
  for (int chunk = 0; chunk < kQkChunks; chunk++)
    bulk_tensor_prefetch(map_k, chunk * 64, block.n * kBlockN, block.head, block.batch);
}

// Producer: one thread loads, in the order in which the consumers read.
ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, const TensorMap* map_do,
                           const BackwardParams& params, uint32_t shared) {
  int stage_q = 0, phase_q = 1, stage_do = 0, phase_do = 1;
  int slot = 0, phase_slot = 1, phase_keys = 1;
  const int blocks = params.tiles_n * params.pairs;
  int index = atomicAdd(params.ticket, 1u);
  #pragma unroll 1
  while (true) {
    KeyBlock block = key_block_at<kBlockM, kBlockN, true>(min(index, blocks - 1), params);
    if (index >= blocks) block.steps = 0;
    mbarrier_wait(shared + kItemEmpty + 8 * slot, phase_slot);
    store_key_block(shared + kItems + 32 * slot, block);
    mbarrier_arrive(shared + kItemFull + 8 * slot);
    slot ^= 1;
    if (slot == 0) phase_slot ^= 1;
    if (block.steps == 0) return;
    index = atomicAdd(params.ticket, 1u);  // early, so that the answer is there when it is needed
    QueryTile tile = first_query_tile<kDescending>(block, params);
    prefetch_keys(map_k, map_v, block);
    mbarrier_wait(shared + kVEmpty, phase_keys);
    load_keys<kVChunks>(map_v, shared + kSharedV, shared + kVFull, block);
    load_step(map_q, map_do, params, shared, block, tile, stage_q, phase_q, stage_do, phase_do);
    mbarrier_wait(shared + kKEmpty, phase_keys);
    load_keys<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, block);
    phase_keys ^= 1;
    #pragma unroll 1
    for (int step = 1; step < block.steps; step++) {
      load_step(map_q, map_do, params, shared, block, tile, stage_q, phase_q, stage_do, phase_do);
    }
  }
}

// Two warps take turns at adding what the consumers stage of a block's dQ to its sums: while one waits until its
// additions are complete and counts them, the other serves the next step.
ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block, int adder, int first) {
  const int lane = threadIdx.x & 31;
  QueryTile tile = first_query_tile<kDescending>(block, params);
  if (first == 1) advance<kDescending>(tile, block, params);
  const int pair = block.batch * params.heads_kv + block.head, before = tiles_before_ring(pair, params);
  if (lane == 0 && first < block.steps) wait_for_slot(pair, params);
  #pragma unroll 1
  for (int step = first; step < block.steps; step += 2) {
    __syncwarp();
    barrier_sync(2 + 8 * adder, 160);  // warpgroup 0 has staged its part
    if (lane == 0) {
      bulk_reduce_add(params.dq_sums + static_cast<int64_t>(tile.index - before) * kDqFloats, shared + kSharedDq, 16384, kEvictLast);
      bulk_commit_group();
    }
    barrier_sync(3 + 8 * adder, 160);  // warpgroup 1 has staged its part
    if (lane == 0) {
      bulk_reduce_add(params.dq_sums + static_cast<int64_t>(tile.index - before) * kDqFloats + 4096, shared + kSharedDq + 16384, 16384, kEvictLast);
      bulk_commit_group();
    }
    if (lane == 0) bulk_wait_group_read<1>();
    __syncwarp();
    barrier_arrive(4, 160);
    if (lane == 0) bulk_wait_group_read<0>();
    __syncwarp();
    barrier_arrive(5, 160);
    if (lane == 0) {
      bulk_wait_group();
      red_release_add(params.turns + tile.index, 1);
    }
    advance<kDescending>(tile, block, params);
    advance<kDescending>(tile, block, params);
  }
}

// The same for every block that this thread block gets.
ATTUNE_DEVICE void add_dq_blocks(const BackwardParams& params, uint32_t shared, int adder) {
  int slot = 0, phase_slot = 0;
  while (true) {
    mbarrier_wait(shared + kItemFull + 8 * slot, phase_slot);
    const KeyBlock block = load_key_block(shared + kItems + 32 * slot);
    if (block.steps == 0) break;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(shared + kItemEmpty + 8 * slot);
    slot ^= 1;
    if (slot == 0) phase_slot ^= 1;
    add_dq_tiles(params, shared, block, adder, adder);
  }
}

// Consumer warpgroup: 64 keys of the block.
ATTUNE_DEVICE void consume(const TensorMap* map_dk, const TensorMap* map_dv, const BackwardParams& params,
                           uint32_t shared, int warpgroup) {
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  float dk[64];
  float dv[64];
  // Left operands of S and dP, and the right ones: rows of queries.
  const uint64_t k_rows = wgmma_descriptor(shared + kSharedK + warpgroup * 8192, 16, 1024);
  const uint64_t v_rows = wgmma_descriptor(shared + kSharedV + warpgroup * 8192, 16, 1024);
  const uint64_t q_rows = wgmma_descriptor(shared + kSharedQ, 16, 1024);
  const uint64_t do_rows = wgmma_descriptor(shared + kSharedDo, 16, 1024);
  // Right operands of dK and dV.
  const uint64_t q_columns = wgmma_descriptor(shared + kSharedQ, kBlockM * 128, 1024);
  const uint64_t do_columns = wgmma_descriptor(shared + kSharedDo, kBlockM * 128, 1024);
  // Operands of dQ.
  const uint64_t ds_rows = wgmma_descriptor(shared + kSharedDs, 16, 1024);
  const uint64_t k_columns = wgmma_descriptor(shared + kSharedK + warpgroup * 16384, kBlockN * 128, 1024);
  const uint32_t ds_address = transposed_address(shared + kSharedDs + warpgroup * 8192, warp, lane);
  const uint32_t lse_address = shared + kSharedLse + 8 * (lane & 3);
  const uint32_t delta_address = shared + kSharedDelta + 8 * (lane & 3);
  const uint32_t dq_address = shared + kSharedDq + warpgroup * 16384 + 16 * thread;
  const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset
  int stage_q = 0, phase_q = 0;  // of dO, too
  int stage_ds = 0;
  int phase_ds = 1;
  const int turn = 8 + warpgroup, next_turn = 9 - warpgroup;
  if (warpgroup == 1) barrier_arrive(8, 256);  // the first turn is the first warpgroup's
  for (int i = threadIdx.x - 128; i < static_cast<int>(kDsBytes / 16); i += 256)
    st_shared_v4(shared + kSharedDs + 16 * i, 0, 0, 0, 0);
  fence_proxy_async();
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kDsFull);
  stage_ds = 1;
  int slot = 0, phase_slot = 0, phase_keys = 0;
  bool staged = false;  // dK and dV of the block before are leaving
  #pragma unroll 1
  while (true) {
    mbarrier_wait(shared + kItemFull + 8 * slot, phase_slot);
    const KeyBlock block = load_key_block(shared + kItems + 32 * slot);
    if (block.steps == 0) break;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(shared + kItemEmpty + 8 * slot);
    slot ^= 1;
    if (slot == 0) phase_slot ^= 1;
    // Distance of this thread's first key from the last one that its first query of tile 0 sees.
    const int limit = block.n * kBlockN + warpgroup * 64 + warp * 16 + (lane >> 2) - offset - (2 * (lane & 3));
    QueryTile tile = first_query_tile<kDescending>(block, params);
    int accumulate = 0;  // 0: the next product starts a new dK or dV
    mbarrier_wait(shared + kKFull, phase_keys);
    mbarrier_wait(shared + kVFull, phase_keys);
    phase_keys ^= 1;
    // -- one query tile
    #pragma unroll 1
    for (int step = 0; step < block.steps; step++) {
      if (tile.m * kBlockM + kBlockM - 1 + offset >= block.n * kBlockN + warpgroup * 64) {
        float s[kScores], dp[kScores];
        uint32_t p[kPacked], ds[kPacked];
        float2 statistics[kScores / 4];
        float dq[32];
        const int stage_before = stage_ds == 0 ? kDsStages - 1 : stage_ds - 1;
        const int phase_before = stage_ds == 0 ? phase_ds : phase_ds ^ 1;
        mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
        wgmma_fence();
        issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));
        mbarrier_wait(shared + kDoFull + 8 * stage_q, phase_q);
        wgmma_fence();
        issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_q * kDoBytes) >> 4));
        if (step >= 2) {
          fence_proxy_async();
          barrier_arrive(2 + warpgroup + 8 * (step & 1), 160);
        }
        load_statistics(statistics, lse_address + stage_q * kStatisticsBytes);
        wgmma_wait_group<1>();
        pin(s);
        if (step == 0 && staged) {
          if (thread == 0) bulk_wait_group_read<0>();
          barrier_sync(1, 256);
        }
        barrier_sync(turn, 256);
        if (block.n * kBlockN + kBlockN - 1 > tile.m * kBlockM + offset)
          mask_queries(s, limit - tile.m * kBlockM);
        probabilities(s, statistics, params.scale_log2);
        load_statistics(statistics, delta_address + stage_q * kStatisticsBytes);
        wgmma_wait_group<0>();
        pin(dp);
        if (step == block.steps - 1) {  // the last product with V
          __syncwarp();
          if (lane == 0) mbarrier_arrive(shared + kVEmpty);
        }
        score_gradients<Bf16>(s, dp, statistics, ds);
        pack<Bf16>(s, p);
        mbarrier_wait(shared + kDsEmpty + 8 * stage_ds, phase_ds);
        store_transposed(ds, ds_address + stage_ds * kDsBytes);
        barrier_arrive(next_turn, 256);
        wgmma_fence();
        issue_gradient_n128(dv, p, do_columns + ((stage_q * kDoBytes) >> 4), accumulate);
        mbarrier_wait(shared + kDsFull + 8 * stage_before, phase_before);
        wgmma_fence();
        issue_dq_n64(dq, ds_rows + ((stage_before * kDsBytes) >> 4), k_columns);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDsFull + 8 * stage_ds);
        wgmma_fence();
        issue_gradient_n128(dk, ds, q_columns + ((stage_q * kQBytes) >> 4), accumulate);
        wgmma_wait_group<1>();
        pin(dq);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_q);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDsEmpty + 8 * stage_before);
        if (step >= 1) {
          if (step >= 2) barrier_sync(4 + warpgroup, 160);  // the part before has left
          stage_dq(dq, dq_address);
        }
        wgmma_wait_group<0>();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
        if (++stage_q == kQStages) {
          stage_q = 0;
          phase_q ^= 1;
        }
        accumulate = 1;
      } else {  // it sees none of this warpgroup's keys
        const uint32_t ds[kPacked] = {};
        float dq[32];
        const int stage_before = stage_ds == 0 ? kDsStages - 1 : stage_ds - 1;
        const int phase_before = stage_ds == 0 ? phase_ds : phase_ds ^ 1;
        mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);
        mbarrier_wait(shared + kDoFull + 8 * stage_q, phase_q);
        if (step >= 2) {
          fence_proxy_async();
          barrier_arrive(2 + warpgroup + 8 * (step & 1), 160);
        }
        if (step == 0 && staged) {
          if (thread == 0) bulk_wait_group_read<0>();
          barrier_sync(1, 256);
        }
        barrier_sync(turn, 256);
        if (step == block.steps - 1) {  // the last product with V
          __syncwarp();
          if (lane == 0) mbarrier_arrive(shared + kVEmpty);
        }
        mbarrier_wait(shared + kDsEmpty + 8 * stage_ds, phase_ds);
        store_transposed(ds, ds_address + stage_ds * kDsBytes);
        barrier_arrive(next_turn, 256);
        mbarrier_wait(shared + kDsFull + 8 * stage_before, phase_before);
        wgmma_fence();
        issue_dq_n64(dq, ds_rows + ((stage_before * kDsBytes) >> 4), k_columns);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDsFull + 8 * stage_ds);
        wgmma_wait_group<0>();
        pin(dq);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDoEmpty + 8 * stage_q);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kDsEmpty + 8 * stage_before);
        if (step >= 1) {
          if (step >= 2) barrier_sync(4 + warpgroup, 160);  // the part before has left
          stage_dq(dq, dq_address);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * stage_q);
        if (++stage_q == kQStages) {
          stage_q = 0;
          phase_q ^= 1;
        }
      }
      if (++stage_ds == kDsStages) {
        stage_ds = 0;
        phase_ds ^= 1;
      }
      advance<kDescending>(tile, block, params);
    }
    // -- what is left of the last query tile
    {
      float dq[32];
      const int stage_before = stage_ds == 0 ? kDsStages - 1 : stage_ds - 1;
      const int phase_before = stage_ds == 0 ? phase_ds : phase_ds ^ 1;
      if (block.steps >= 2) {
        fence_proxy_async();
        barrier_arrive(2 + warpgroup + 8 * (block.steps & 1), 160);
      }
      mbarrier_wait(shared + kDsFull + 8 * stage_before, phase_before);
      wgmma_fence();
      issue_dq_n64(dq, ds_rows + ((stage_before * kDsBytes) >> 4), k_columns);
      wgmma_wait_group<0>();
      pin(dq);
      if (block.steps >= 2) barrier_sync(4 + warpgroup, 160);  // the part before has left
      stage_dq(dq, dq_address);
      fence_proxy_async();
      barrier_arrive(2 + warpgroup + 8 * ((block.steps + 1) & 1), 160);
    }
    // -- dV and dK, from the buffers of dS and dQ, while K and V of the next block come
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kKEmpty);
    pin(dv);
    pin(dk);
    barrier_sync(1, 256);  // nobody reads dS any more
    stage_gradient<Bf16, 128>(dv, shared + kSharedDs + warpgroup * 16384, 64 * 128, warp, lane, 1.f);
    barrier_sync(4 + warpgroup, 160);  // the last part of dQ has left
    stage_gradient<Bf16, 128>(dk, shared + kSharedDq + warpgroup * 16384, 64 * 128, warp, lane, params.scale);
    fence_proxy_async();
    barrier_sync(6 + warpgroup, 128);
    if (thread == 0) {
      store_gradient<128>(map_dv, shared + kSharedDs + warpgroup * 16384, 64 * 128, 0, block.n * kBlockN + warpgroup * 64, block.head, block.batch);
      store_gradient<128>(map_dk, shared + kSharedDq + warpgroup * 16384, 64 * 128, 0, block.n * kBlockN + warpgroup * 64, block.head, block.batch);
    }
    staged = true;
  }
  if (thread == 0) bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
}

extern "C" __global__ void __launch_bounds__(384, 1)
attune_backward(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_do,
                const __grid_constant__ TensorMap map_dk, const __grid_constant__ TensorMap map_dv,
                const __grid_constant__ TensorMap map_dq, const __grid_constant__ BackwardParams params) {
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
    for (int i = 0; i < kDsStages; i++) {
      mbarrier_init(shared + kDsFull + 8 * i, 8);
      mbarrier_init(shared + kDsEmpty + 8 * i, 8);  // one arrival a warp
    }
    mbarrier_init(shared + kKEmpty, 8);
    mbarrier_init(shared + kVEmpty, 8);
    for (int i = 0; i < 2; i++) {
      mbarrier_init(shared + kItemFull + 8 * i, 1);
      mbarrier_init(shared + kItemEmpty + 8 * i, 10);  // the consumers' warps and those of dQ
    }
    mbarrier_init(shared + kSumsFull, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  follow_closely();
  if (warpgroup == 0) {
    setmaxnreg_dec<56>();
    const int warp = __shfl_sync(kFullWarp, threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) produce(&map_q, &map_k, &map_v, &map_do, params, shared);
    if (warp == 1 || warp == 3) add_dq_blocks(params, shared, warp >> 1);
    if (warp == 2)
      finish_tiles<Bf16, 128, 128, kBlockM, kBlockN, true, kDescending, false, false, 4>(
          &map_dq, params, shared + kSharedSums, shared + kSharedRows, shared + kSumsFull);
  } else {
    setmaxnreg_inc<224>();
    consume(&map_dk, &map_dv, params, shared, warpgroup - 1);
  }
}
