// needs: types.cuh
// Ordinary loads and stores by 32-bit shared address: no generic addressing, which NVRTC would not fold away.

ATTUNE_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

ATTUNE_DEVICE void st_shared(uint32_t address, int x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

ATTUNE_DEVICE int ld_shared(uint32_t address) {
  int x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

ATTUNE_DEVICE void st_shared_v4(uint32_t address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

ATTUNE_DEVICE void ld_shared_v4(uint32_t address, int& x, int& y, int& z, int& w) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(address)
               : "memory");
}
