// needs: types.cuh
// Counters in global memory that order thread blocks.

ATTUNE_DEVICE uint32_t ld_acquire(const uint32_t* pointer) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

// A counter of which only the size matters: nothing else is read by what it says.
ATTUNE_DEVICE uint32_t ld_relaxed(const uint32_t* pointer) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

// Sets bits; says what was there before.
ATTUNE_DEVICE uint32_t atom_acquire_or(uint32_t* pointer, uint32_t bits) {
  uint32_t before;
  asm volatile("atom.acquire.gpu.global.or.b32 %0, [%1], %2;" : "=r"(before) : "l"(pointer), "r"(bits) : "memory");
  return before;
}

ATTUNE_DEVICE void st_release(uint32_t* pointer, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

ATTUNE_DEVICE void red_release_add(uint32_t* pointer, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

// Orders this thread's accesses by either proxy before its later accesses by the other, in all memory.
ATTUNE_DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }
