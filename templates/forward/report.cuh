// needs: types.cuh forward/params.cuh
// What a launch tells the host while it runs, in memory that both see. Its own failures are not told there: an atomic
// of each thread block through the bus, one after the other, takes 0.1 ms.

// One thread of the launch: it has begun (the upper half says which), so what was launched before it on its stream has
// ended, with so many failures in all, or a few of its own more (the lower half). In assembly, since ptxas then finds
// registers for the kernels of the built-in table.
ATTUNE_DEVICE void report_start(const ForwardParams& params) {
  if (params.report == nullptr) return;
  uint32_t failures;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(failures) : "l"(params.failures));
  asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(params.report),
               "l"(static_cast<uint64_t>(params.launch) << 32 | failures));
}
