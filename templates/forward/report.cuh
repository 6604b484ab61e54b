// needs: types.cuh forward/params.cuh
// What a launch tells the host while it runs, in memory that both see.

// One thread of the launch: it has begun, so what was launched before it on its stream has ended.
ATTUNE_DEVICE void report_start(const ForwardParams& params) {
  if (params.report != nullptr) *const_cast<volatile uint32_t*>(params.report + 1) = params.launch;
}
