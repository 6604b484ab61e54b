// Shared-memory plan and register split of an sm90 kernel: derived once, used by the rules, the emitter and the host.
#pragma once

#include "codegen/kernel_spec.h"

namespace attune::codegen {

struct SharedLayout {
  int qk_chunks = 0, v_chunks = 0;                         ///< 64-column chunks of Q and K rows, of V and O rows
  int o_chunks = 0;                                        ///< chunks of one piece of O
  int q_bytes = 0, o_bytes = 0, k_bytes = 0, v_bytes = 0;  ///< one buffer
  int q_at = 0, o_at = 0, k_at = 0, v_at = 0, barriers_at = 0, slots_at = 0;
  /// Of the tiles that the first thread block of a cluster claims: places for them, and where these are. A claim is
  /// told while the tile before it is loaded, and a thread block is behind by no more blocks of keys than there are
  /// stages, so by no more tiles.
  int claims = 0, claims_at = 0;
  int bytes = 0;  ///< dynamic shared memory to ask for
};
/// Static shared memory of a speculative kernel, with what alignment may take: its count of failures.
constexpr int kStaticShared = 16;
SharedLayout layout_of(const KernelSpec& spec);

/// Registers a thread after setmaxnreg.
struct RegisterSplit {
  int producer = 0, consumer = 0;
};
RegisterSplit register_split(const KernelSpec& spec);
/// By a consumer thread: an estimate.
int registers_needed(const KernelSpec& spec);
/// k-steps (of 16 columns) of QK whose share of Q is kept in registers.
int q_steps_in_registers(const KernelSpec& spec);

}  // namespace attune::codegen
