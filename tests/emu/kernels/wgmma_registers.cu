// C = A B, A [64][k] bf16 from registers, B [k][32] bf16 with its rows in shared memory as they are (MN-major, 64-byte
// swizzle). One warpgroup; threads write B themselves, so the async proxy needs a fence.
constexpr int kColumns = 32, kDepth = 64;

__device__ void wgmma(float (&d)[16], const unsigned (&a)[4], unsigned long long b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 1;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

extern "C" __global__ void __launch_bounds__(128)
    wgmma_registers(const unsigned short* a, const unsigned short* b, float* c, int k) {
  __shared__ __align__(1024) unsigned char tile[kDepth * kColumns * 2];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  // Rows of 64 bytes; 8 rows of k make one core matrix group of 512 bytes.
  const unsigned long long descriptor = (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(512 >> 4) << 16 |
                                        static_cast<unsigned long long>(512 >> 4) << 32 | 2ull << 62;
  float sum[16];
  for (int start = 0; start < k; start += kDepth) {
    __syncthreads();
    for (int i = threadIdx.x; i < kDepth * kColumns / 8; i += 128) {
      const int line = i / 4, chunk = i % 4;
      const uint4 value = *reinterpret_cast<const uint4*>(b + (start + line) * kColumns + chunk * 8);
      *reinterpret_cast<uint4*>(tile + line * 64 + (chunk ^ line / 2 % 4) * 16) = value;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned fragments[kDepth / 16][4];
    for (int step = 0; step < kDepth / 16; ++step) {
      const unsigned short* from = a + row * k + start + step * 16 + lane % 4 * 2;
      fragments[step][0] = *reinterpret_cast<const unsigned*>(from);
      fragments[step][1] = *reinterpret_cast<const unsigned*>(from + 8 * k);
      fragments[step][2] = *reinterpret_cast<const unsigned*>(from + 8);
      fragments[step][3] = *reinterpret_cast<const unsigned*>(from + 8 * k + 8);
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int step = 0; step < kDepth / 16; ++step) {
      wgmma(sum, fragments[step], descriptor + step * 1024 / 16, start + step > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 16; ++i) asm volatile("" : "+f"(sum[i])::"memory");
  }
  float* out = c + row * kColumns + lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float2*>(out + 8 * i) = make_float2(sum[4 * i], sum[4 * i + 1]);
    *reinterpret_cast<float2*>(out + 8 * kColumns + 8 * i) = make_float2(sum[4 * i + 2], sum[4 * i + 3]);
  }
}
