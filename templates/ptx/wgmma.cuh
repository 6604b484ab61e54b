// needs: types.cuh
// wgmma.*: fences, groups and descriptors. The products themselves are printed per shape beside the kernel.

ATTUNE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTUNE_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
ATTUNE_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler moves plain arithmetic across the asm above; an empty asm that "changes" the registers pins it down.
template <int kCount>
ATTUNE_DEVICE void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
ATTUNE_DEVICE void pin(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

// Matrix descriptor of a 128-byte-swizzled tile: byte offsets between its 64-column chunks (leading) and between its
// groups of 8 rows (stride).
ATTUNE_DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(leading_bytes >> 4) << 16) |
         (static_cast<uint64_t>(stride_bytes >> 4) << 32) | (1ull << 62);
}
