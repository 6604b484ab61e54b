// One warp a row of 256 fp16 numbers, two at a time; the result is stored as fp16 and, halved, as bf16.
extern "C" __global__ void __launch_bounds__(128) softmax(const unsigned* x, unsigned* half_out, unsigned* bfloat_out) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
  unsigned v[4];
  for (int i = 0; i < 4; ++i) v[i] = x[row * 128 + i * 32 + lane];
  unsigned most = v[0];
  for (int i = 1; i < 4; ++i) asm("max.f16x2 %0, %0, %1;" : "+r"(most) : "r"(v[i]));
  asm("{ .reg .b16 low, high; .reg .b32 swapped;\n"
      "mov.b32 {low, high}, %0; mov.b32 swapped, {high, low}; max.f16x2 %0, %0, swapped; }"
      : "+r"(most));
  for (int step = 16; step > 0; step /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffff, most, step);
    asm("max.f16x2 %0, %0, %1;" : "+r"(most) : "r"(other));
  }
  const unsigned log2_e = 0x3dc53dc5;  // 1.4424, twice
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(v[i]) : "r"(most));
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(v[i]) : "r"(log2_e));
    asm("ex2.approx.f16x2 %0, %0;" : "+r"(v[i]));
    float low, high;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(low), "=f"(high)
        : "r"(v[i]));
    sum += low + high;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  unsigned factor;
  asm("{ .reg .f32 r; rcp.approx.ftz.f32 r, %1; cvt.rn.f16x2.f32 %0, r, r; }" : "=r"(factor) : "f"(sum));
  for (int i = 0; i < 4; ++i) {
    unsigned result, half = 0x3f003f00, halved = 0;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(v[i]), "r"(factor));
    half_out[row * 128 + i * 32 + lane] = result;
    unsigned as_bfloat;
    asm("{ .reg .b16 a, b; .reg .f32 x, y; mov.b32 {a, b}, %1; cvt.f32.f16 x, a; cvt.f32.f16 y, b;\n"
        "cvt.rn.bf16x2.f32 %0, y, x; }"
        : "=r"(as_bfloat)
        : "r"(result));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(halved) : "r"(as_bfloat), "r"(half));
    bfloat_out[row * 128 + i * 32 + lane] = halved;
  }
}
