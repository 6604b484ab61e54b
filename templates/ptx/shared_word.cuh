// needs: types.cuh
// Ordinary loads and stores of one word by 32-bit shared address.

ATTUNE_DEVICE void st_shared(uint32_t address, int x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

ATTUNE_DEVICE int ld_shared(uint32_t address) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
