// C = A B^T, A [m][k] and B [n][k] bf16, C float. Tiles of 64x64x64 that TMA brings in two stages, 128-byte swizzled;
// one warpgroup multiplies them by wgmma, a fifth warp loads. k is a multiple of 64; m and n are multiples of 64 as
// well.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

constexpr int kTile = 64, kTileBytes = kTile * kTile * 2, kStages = 2;

__device__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ void mbarrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void mbarrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void tma_load(unsigned destination, const TensorMap* map, unsigned barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ unsigned long long descriptor(unsigned address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | static_cast<unsigned long long>(1024 >> 4) << 32 | 1ull << 62;
}
__device__ void wgmma(float (&d)[32], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, "
      "%25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(160)
    tma_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, float* c, int n, int k) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned base = (static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + 1023) & ~1023u;
  const auto tile_a = [&](int stage) { return base + stage * 2 * kTileBytes; };
  const auto tile_b = [&](int stage) { return base + stage * 2 * kTileBytes + kTileBytes; };
  const unsigned full = base + kStages * 2 * kTileBytes, empty = full + kStages * 8;
  const int steps = k / kTile;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(full + stage * 8, 1);
      mbarrier_init(empty + stage * 8, 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages, round = step / kStages;
        mbarrier_wait(empty + stage * 8, (round & 1) ^ 1);
        mbarrier_expect(full + stage * 8, 2 * kTileBytes);
        tma_load(tile_a(stage), &map_a, full + stage * 8, step * kTile, blockIdx.y * kTile);
        tma_load(tile_b(stage), &map_b, full + stage * 8, step * kTile, blockIdx.x * kTile);
      }
    }
    return;
  }

  float sum[32] = {};
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, round = step / kStages;
    mbarrier_wait(full + stage * 8, round & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int depth = 0; depth < kTile; depth += 16) {
      wgmma(sum, descriptor(tile_a(stage)) + depth * 2 / 16, descriptor(tile_b(stage)) + depth * 2 / 16);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(sum[i])::"memory");
    mbarrier_arrive(empty + stage * 8);
  }

  const int lane = threadIdx.x % 32, row = blockIdx.y * kTile + threadIdx.x / 32 * 16 + lane / 4;
  float* out = c + static_cast<long long>(row) * n + blockIdx.x * kTile + lane % 4 * 2;
  for (int i = 0; i < 8; ++i) {
    *reinterpret_cast<float2*>(out + 8 * i) = make_float2(sum[4 * i], sum[4 * i + 1]);
    *reinterpret_cast<float2*>(out + 8 * n + 8 * i) = make_float2(sum[4 * i + 2], sum[4 * i + 3]);
  }
}
