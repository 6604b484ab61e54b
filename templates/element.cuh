// needs: types.cuh
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
  // Element by element; NaN loses.
  static ATTUNE_DEVICE uint32_t max2(uint32_t x, uint32_t y) {
    uint32_t larger;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
    return larger;
  }
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
  static ATTUNE_DEVICE uint32_t max2(uint32_t x, uint32_t y) {
    uint32_t larger;
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
    return larger;
  }
};
