// needs: types.cuh
// Stores to global memory that pass by L1.

ATTUNE_DEVICE void st_global(uint16_t* pointer, uint32_t x) {
  asm volatile("st.global.L1::no_allocate.b32 [%0], %1;" ::"l"(pointer), "r"(x) : "memory");
}

ATTUNE_DEVICE void st_global_v4(uint16_t* pointer, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
