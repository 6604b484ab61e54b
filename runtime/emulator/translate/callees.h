// The C functions that translated code calls: exec/intrinsics.h, math_helpers.h and slots.h, with the signatures that
// LLVM must declare. The JIT resolves their names to these addresses, never by a search of the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attune::emulator {

// clang-format off
#define ATTUNE_EMULATOR_CALLEES(X) \
  X(att_access) X(att_loads_used) X(att_atomic) X(att_atomic_wide) X(att_fence) X(att_cvta_to) X(att_cvta_from) \
  X(att_is_space) X(att_mapa) X(att_getctarank) X(att_shfl) X(att_vote) X(att_match) X(att_redux) X(att_activemask) X(att_elect) \
  X(att_warp_sync) X(att_barrier) X(att_cluster_arrive) X(att_cluster_wait) X(att_mbarrier_init) \
  X(att_mbarrier_inval) X(att_mbarrier_arrive) X(att_mbarrier_tx) X(att_mbarrier_wait) \
  X(att_mbarrier_pending_count) X(att_mbarrier_arrive_on_copies) X(att_cp_async) X(att_cp_async_commit) \
  X(att_cp_async_wait) X(att_bulk_copy) X(att_bulk_commit) X(att_bulk_wait) X(att_prefetch_tensormap) X(att_wgmma) \
  X(att_wgmma_fence) X(att_wgmma_commit) X(att_wgmma_wait) X(att_mma) X(att_ldmatrix) X(att_stmatrix) \
  X(att_movmatrix) X(att_special) X(att_setmaxnreg) X(att_griddepcontrol) X(att_slot_hazard) X(att_yield) \
  X(att_trap) X(att_exit) X(att_vprintf) X(att_assert_fail) X(att_slot_hazards) X(att_f32_rounded) \
  X(att_f64_rounded) X(att_f32_fma) X(att_f64_fma) X(att_f32_min) X(att_f32_max) X(att_f32_min_max) \
  X(att_f64_min_max) X(att_f32_saturate) X(att_f64_saturate) X(att_f32_ex2) X(att_f32_lg2) X(att_f32_sin) \
  X(att_f32_cos) X(att_f32_tanh) X(att_f32_rsqrt) X(att_f64_rsqrt) X(att_f64_coarse) X(att_f32_test) \
  X(att_f64_test) X(att_half) X(att_convert) X(att_pack_f16x2) X(att_pack_bf16x2) X(att_convert_pair) \
  X(att_convert_packed) X(att_udiv) X(att_urem) X(att_sdiv) X(att_srem) X(att_umulhi) X(att_smulhi) X(att_popc) \
  X(att_clz) X(att_bfind) X(att_fns) X(att_brev) X(att_bfe) X(att_bfi) X(att_szext) X(att_bmsk) X(att_lop3) \
  X(att_prmt) X(att_dot) X(att_pack_saturated) X(att_saturate_integer)
// clang-format on

enum class CalleeId : std::uint16_t {
#define ATTUNE_EMULATOR_CALLEE(name) name,
  ATTUNE_EMULATOR_CALLEES(ATTUNE_EMULATOR_CALLEE)
#undef ATTUNE_EMULATOR_CALLEE
      count,
};

struct Callee {
  enum class Kind : std::uint8_t { none, i32, i64, f32, f64, pointer };
  const char* name;
  void* address;
  Kind result;
  std::array<Kind, 8> arguments;
  std::uint8_t argument_count;
};

const std::array<Callee, static_cast<std::size_t>(CalleeId::count)>& callees();
inline const Callee& callee(CalleeId id) { return callees()[static_cast<std::size_t>(id)]; }

}  // namespace attune::emulator
