// One wgmma of a warpgroup, registers and all in PTX so that they are what they say. 128 threads, one block.
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;

__device__ __forceinline__ uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

extern "C" __global__ void kernel(const float* in, float* out, unsigned* flags) {
  // B: 8 columns of 16 elements, without swizzle: two core matrices of 8 rows of 16 bytes.
  __shared__ __align__(128) uint32_t b[64];
  const unsigned thread = threadIdx.x;
  if (thread < 64) b[thread] = 0x3f803f80u;  // 1, 1
#if FAULT != 1
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();

#if FAULT == 2
  const uint32_t address = address_of(b) + 200000;
#else
  const uint32_t address = address_of(b);
#endif
  // Core matrices along K are 128 bytes apart; there is only one along N.
  const uint64_t descriptor =
      (uint64_t{(address & 0x3ffff) >> 4}) | (uint64_t{128 >> 4} << 16) | (uint64_t{256 >> 4} << 32);
  float d0, d1, d2, d3;
  asm volatile(
      "{\n"
      ".reg .b32 a<4>;\n"
      ".reg .f32 d<4>;\n"
      ".reg .pred p;\n"
      "mov.b32 a0, 0x3f803f80;\n"
      "mov.b32 a1, 0x3f803f80;\n"
      "mov.b32 a2, 0x3f803f80;\n"
      "mov.b32 a3, 0x3f803f80;\n"
      "mov.f32 d0, 0f3f800000;\n"
      "mov.f32 d1, 0f3f800000;\n"
      "mov.f32 d2, 0f3f800000;\n"
      "mov.f32 d3, 0f3f800000;\n"
      "setp.eq.u32 p, 0, 0;\n"
#if FAULT != 3
      "wgmma.fence.sync.aligned;\n"
#endif
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {d0, d1, d2, d3}, {a0, a1, a2, a3}, %4, p, 1, 1, 0;\n"
#if FAULT != 4
      "wgmma.commit_group.sync.aligned;\n"
#endif
#if FAULT == 5
      "mov.b32 a2, 0;\n"
#elif FAULT == 6
      "mov.f32 d1, 0f00000000;\n"
#elif FAULT == 7
      "mov.f32 %0, d0;\n"
#endif
      "wgmma.wait_group.sync.aligned 0;\n"
      "mov.f32 %0, d0;\n"
      "mov.f32 %1, d1;\n"
      "mov.f32 %2, d2;\n"
      "mov.f32 %3, d3;\n"
      "}\n"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "l"(descriptor)
      : "memory");
  out[thread] = d0 + d1 + d2 + d3;
#if FAULT == 8
  if (thread < 32) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
}
