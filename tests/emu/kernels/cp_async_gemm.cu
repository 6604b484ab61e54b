// C = A B^T, A [m][k] and B [n][k] bf16, C float. Tiles of 64x64x32, two buffers filled by cp.async, four warps of
// 32x32 each on mma.sync. All sizes are multiples of the tile.
constexpr int kTile = 64, kDepth = 32, kPitch = kDepth + 8;

__device__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ void load_tile(unsigned short (*tile)[kPitch], const unsigned short* from, int pitch) {
  for (int i = threadIdx.x; i < kTile * kDepth / 8; i += 128) {
    const int row = i / (kDepth / 8), column = i % (kDepth / 8) * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[row][column])),
                 "l"(from + static_cast<long long>(row) * pitch + column)
                 : "memory");
  }
}

__device__ void ldmatrix(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
    cp_async_gemm(const unsigned short* a, const unsigned short* b, float* c, int n, int k) {
  __shared__ __align__(16) unsigned short tile_a[2][kTile][kPitch], tile_b[2][kTile][kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / 2 * 32, column = warp % 2 * 32;
  a += static_cast<long long>(blockIdx.y) * kTile * k;
  b += static_cast<long long>(blockIdx.x) * kTile * k;
  float sum[2][4][4] = {};

  const auto load = [&](int step) {
    load_tile(tile_a[step % 2], a + step * kDepth, k);
    load_tile(tile_b[step % 2], b + step * kDepth, k);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const int steps = k / kDepth;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      load(step + 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __syncthreads();
    for (int depth = 0; depth < kDepth; depth += 16) {
      unsigned fragment_a[2][4], fragment_b[2][4];
      for (int i = 0; i < 2; ++i) {
        ldmatrix(fragment_a[i], &tile_a[step % 2][row + 16 * i + lane % 16][depth + lane / 16 * 8]);
        ldmatrix(fragment_b[i],
                 &tile_b[step % 2][column + 16 * i + lane % 8 + lane / 16 * 8][depth + lane / 8 % 2 * 8]);
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
          mma(sum[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2], fragment_b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
    __syncthreads();
  }

  c += (static_cast<long long>(blockIdx.y) * kTile + row + lane / 4) * n + blockIdx.x * kTile + column + lane % 4 * 2;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      float* out = c + 16 * i * n + 8 * j;
      *reinterpret_cast<float2*>(out) = make_float2(sum[i][j][0], sum[i][j][1]);
      *reinterpret_cast<float2*>(out + 8 * n) = make_float2(sum[i][j][2], sum[i][j][3]);
    }
  }
}
