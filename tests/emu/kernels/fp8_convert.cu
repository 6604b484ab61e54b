// Pairs of floats to both 8-bit formats, and back through fp16.
extern "C" __global__ void fp8_convert(const float2* x, unsigned short* e4m3, unsigned short* e5m2, float2* e4m3_back,
                                       float2* e5m2_back, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned short a, b;
  unsigned a_halves, b_halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(a) : "f"(x[i].y), "f"(x[i].x));
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(b) : "f"(x[i].y), "f"(x[i].x));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(a_halves) : "h"(a));
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(b_halves) : "h"(b));
  e4m3[i] = a;
  e5m2[i] = b;
  const auto floats = [](unsigned halves) {
    float2 result;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(result.x), "=f"(result.y)
        : "r"(halves));
    return result;
  };
  e4m3_back[i] = floats(a_halves);
  e5m2_back[i] = floats(b_halves);
}
