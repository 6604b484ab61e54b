// attune forward  sm_90a  bf16  d128  causal  |  128x128, 2 stages, 2 consumers, ping-pong, speculative (first block's maximum) softmax, longest tile first
// spec: arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonal,tail=0,family=sm90,consumers=2,block_n=128,stages=2,softmax=first_max,order=pv_qk,ping_pong=1,q=registers,q_columns=0,q_buffers=1,q_ahead=0,o=own,o_pieces=1,boundary=overlapped,grid=dynamic,cluster=1,diagonal=trimmed,exact_tail=0,remember=1,skip_idle=0,warp_epilogue=0,dependent_launch=0,early_copies=0,first_turn=0
// reproduce: attune emit --spec arch=sm_90a,dtype=bf16,head_dim=128,head_dim_v=128,causal=1,edge=diagonal,tail=0,family=sm90,consumers=2,block_n=128,stages=2,softmax=first_max,order=pv_qk,ping_pong=1,q=registers,q_columns=0,q_buffers=1,q_ahead=0,o=own,o_pieces=1,boundary=overlapped,grid=dynamic,cluster=1,diagonal=trimmed,exact_tail=0,remember=1,skip_idle=0,warp_epilogue=0,dependent_launch=0,early_copies=0,first_turn=0

#line 749 "kernel.cu"
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
  Tile tile = tile_longest_first<true>(index, params);
  tile.blocks = blocks_of<kBlockM, kBlockN, true>(tile.m, params);
  return tile;
}

// Q of tile number `taken`, and with it the tile itself through the ring of slots. m = -1 ends the consumers.
ATTUNE_DEVICE void load_q(const TensorMap* map_q, uint32_t shared, const Tile& tile, int taken) {
  const int buffer = taken % kQBuffers, phase = 1 ^ (taken / kQBuffers & 1);
  mbarrier_wait(shared + kQEmpty + 8 * buffer, phase);
  st_shared_v4(shared + kSlots + 16 * (taken & 3), tile.m, tile.head, tile.batch, tile.blocks);
  if (tile.m < 0) {
    mbarrier_arrive(shared + kQFull + 8 * buffer);
    return;
  }
  mbarrier_arrive_expect_tx(shared + kQFull + 8 * buffer, kQBytes);
  #pragma unroll
  for (int part = 0; part < kConsumers; part++)
    for (int chunk = 0; chunk < kQkChunks; chunk++)
      bulk_tensor_load(shared + kSharedQ + buffer * kQBytes + (part * kQkChunks + chunk) * (64 * 128), map_q,
                       shared + kQFull + 8 * buffer, chunk * 64, tile.m * kBlockM + part * 64, tile.head, tile.batch,
                       kEvictFirst);
}

// K or V block number `loaded` into its ring: wait until the consumers left the stage, announce the bytes, copy by chunks.
template <int kChunks>
ATTUNE_DEVICE void load_block(const TensorMap* map, uint32_t ring, uint32_t full, uint32_t empty, int loaded,
                              int row, int head, int batch) {
  constexpr int kBytes = kChunks * kBlockN * 128;
  const int stage = loaded % kStages, phase = 1 ^ (loaded / kStages & 1);
  mbarrier_wait(empty + 8 * stage, phase);
  mbarrier_arrive_expect_tx(full + 8 * stage, kBytes);
  #pragma unroll 1
  for (int chunk = 0; chunk < kChunks; chunk++)
    bulk_tensor_load(ring + stage * kBytes + chunk * (kBlockN * 128), map, full + 8 * stage, chunk * 64, row, head, batch,
                     kEvictLast);
}

// Producer: one thread walks the tiles and keeps the rings full, in the order in which the consumers read.
ATTUNE_DEVICE void produce(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v,
                           const ForwardParams& params, uint32_t shared) {
  int loaded = 0, taken = 0;
  Tile tile = tile_at(blockIdx.x, params);
  #pragma unroll 1
  while (tile.m >= 0) {
    const int index = atomicAdd(params.counter, 1u) + gridDim.x;
    const int kv_head = tile.head / params.group;
    load_block<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, shared + kKEmpty, loaded++,
                          (tile.blocks - 1) * kBlockN, kv_head, tile.batch);
    load_q(map_q, shared, tile, taken++);
    #pragma unroll 1
    for (int n = tile.blocks - 2; n >= 0; --n) {
      load_block<kVChunks>(map_v, shared + kSharedV, shared + kVFull, shared + kVEmpty, loaded - 1,
                            (n + 1) * kBlockN, kv_head, tile.batch);
      load_block<kQkChunks>(map_k, shared + kSharedK, shared + kKFull, shared + kKEmpty, loaded++,
                            n * kBlockN, kv_head, tile.batch);
    }
    load_block<kVChunks>(map_v, shared + kSharedV, shared + kVFull, shared + kVEmpty, loaded - 1,
                          0 * kBlockN, kv_head, tile.batch);
    tile = tile_at(index, params);
  }
  load_q(map_q, shared, tile, taken++);
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
  for (int step = 0; step < kQRegisters / 4; step++)
    ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                    swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
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
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);
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
        const uint32_t buffer = shared + kSharedO + warpgroup * (2 * 64 * 128);
        if (leader) bulk_wait_group_read();  // the previous tile's store
        barrier_sync(8 + warpgroup, 128);
        stage_output<Bf16, kHeadDimV, 64, 0, 2>(o, buffer, matrix_row, lane, sum0, sum1);
        fence_proxy_async();
        barrier_sync(8 + warpgroup, 128);
        if (leader) store_output<kHeadDimV, 64, 0, 2>(map_o, buffer, top, done.head, done.batch);
        if (params.lse != nullptr && (lane & 3) == 0)
          store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                    top + warp * 16 + (lane >> 2), params.seqlen_q, scale_log2, row.reference, sum0, sum1);
      }
      if (leader) bulk_wait_group_read();  // shared memory must outlive the store's reads
      return;
    }
    first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
    #pragma unroll
    for (int step = 0; step < kQRegisters / 4; step++)
      ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                      swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                  q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
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
      const uint32_t buffer = shared + kSharedO + warpgroup * (2 * 64 * 128);
      if (leader) bulk_wait_group_read();  // the previous tile's store
      barrier_sync(8 + warpgroup, 128);
      stage_output<Bf16, kHeadDimV, 64, 0, 2>(o, buffer, matrix_row, lane, sum0, sum1);
      fence_proxy_async();
      barrier_sync(8 + warpgroup, 128);
      if (leader) store_output<kHeadDimV, 64, 0, 2>(map_o, buffer, top, done.head, done.batch);
      if (params.lse != nullptr && (lane & 3) == 0)
        store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                  top + warp * 16 + (lane >> 2), params.seqlen_q, scale_log2, row.reference, sum0, sum1);
    }
    wgmma_wait_group<0>();
    pin(s);
    if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
    if (++stage_k == kStages) {
      stage_k = 0;
      phase_k ^= 1;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);
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
  for (int step = 0; step < kQRegisters / 4; step++)
    ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                    swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
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
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);
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
        const uint32_t buffer = shared + kSharedO + warpgroup * (2 * 64 * 128);
        if (leader) bulk_wait_group_read();  // the previous tile's store
        barrier_sync(8 + warpgroup, 128);
        stage_output<Bf16, kHeadDimV, 64, 0, 2>(o, buffer, matrix_row, lane, sum0, sum1);
        fence_proxy_async();
        barrier_sync(8 + warpgroup, 128);
        if (leader) store_output<kHeadDimV, 64, 0, 2>(map_o, buffer, top, done.head, done.batch);
        if (params.lse != nullptr && (lane & 3) == 0)
          store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                    top + warp * 16 + (lane >> 2), params.seqlen_q, scale_log2, row.reference, sum0, sum1);
      }
      if (leader) bulk_wait_group_read();  // shared memory must outlive the store's reads
      return;
    }
    first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);
    #pragma unroll
    for (int step = 0; step < kQRegisters / 4; step++)
      ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +
                      swizzled(64, matrix_row, 2 * step + (lane >> 4)),
                  q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);
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
      const uint32_t buffer = shared + kSharedO + warpgroup * (2 * 64 * 128);
      if (leader) bulk_wait_group_read();  // the previous tile's store
      barrier_sync(8 + warpgroup, 128);
      stage_output<Bf16, kHeadDimV, 64, 0, 2>(o, buffer, matrix_row, lane, sum0, sum1);
      fence_proxy_async();
      barrier_sync(8 + warpgroup, 128);
      if (leader) store_output<kHeadDimV, 64, 0, 2>(map_o, buffer, top, done.head, done.batch);
      if (params.lse != nullptr && (lane & 3) == 0)
        store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,
                  top + warp * 16 + (lane >> 2), params.seqlen_q, scale_log2, row.reference, sum0, sum1);
    }
    wgmma_wait_group<0>();
    pin(s);
    if (leader) mbarrier_arrive(shared + kKEmpty + 8 * stage_k);
    if (++stage_k == kStages) {
      stage_k = 0;
      phase_k ^= 1;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);
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
    tally = 0;
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      produce(&map_q, &map_k, &map_v, params, shared);
      if (blockIdx.x == 0) report_start(params);  // here nobody waits for it
    }
  } else {
    setmaxnreg_inc<232>();
    if (warpgroup == 1) {
      consume_upper(&map_o, params, shared, 0);
    } else {
      consume(&map_o, params, shared, warpgroup - 1);
    }
    add_failures<4 * kConsumers>(params);
  }
}
