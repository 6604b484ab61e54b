// needs: types.cuh
// Vectors of float32: ordinary shared memory by 32-bit address, stores and additions to global memory.

ATTUNE_DEVICE float2 ld_shared_v2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

ATTUNE_DEVICE void ld_shared_v4(uint32_t address, float& x, float& y, float& z, float& w) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"(address)
               : "memory");
}

ATTUNE_DEVICE void st_shared_v4(uint32_t address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

ATTUNE_DEVICE void st_global_v4(float* pointer, float x, float y, float z, float w) {
  asm volatile("st.global.L1::no_allocate.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

ATTUNE_DEVICE void red_global_add_v4(float* pointer, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}
