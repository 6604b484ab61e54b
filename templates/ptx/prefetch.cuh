// needs: types.cuh

// Asks for a line in L2.
ATTUNE_DEVICE void prefetch_l2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer) : "memory");
}
