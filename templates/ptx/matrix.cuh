// needs: types.cuh
// ldmatrix and stmatrix: four 8x8 tiles of 16-bit elements.

ATTUNE_DEVICE void ldmatrix_x4(uint32_t address, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}

// 0, known only when ldmatrix has delivered these registers: to be added to the address of an arrive that gives the
// memory back. Without it the arrive can overtake an ldmatrix that stands in line behind stores, and the bulk copy that
// it allows writes over what is still to be read (seen on an H200). These grids are flat, which the compiler does not
// know.
template <int kCount>
ATTUNE_DEVICE uint32_t zero_after(const uint32_t (&loaded)[kCount]) {
  uint32_t all = 0, grid_y;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) all |= loaded[i];
  asm volatile("mov.u32 %0, %%nctaid.y;" : "=r"(grid_y));
  return all & (grid_y - 1);
}

ATTUNE_DEVICE void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
