// What translated code calls. The translator (translate/) emits calls of these functions; exec/ implements them. Plain
// C types only, so that LLVM sees simple signatures. `context` is the running thread's. A fault that ends
// the launch switches away from the fibre for good. No exception may pass through translated code: it calls these
// functions through Guarded (guard.h).
//
// Every translated instruction that can be at fault passes its `site`: the index of its instruction in
// ProgramImage::sites (code.h), which knows the PTX line and the CUDA line.
//
// Addresses are 64-bit. In Space::generic they are host pointers, or lie in one of the windows below; in Space::shared
// they are 32-bit shared-window addresses, zero-extended; in Space::local offsets in the thread's local frame; in
// Space::param never passed (parameters are plain memory that translated code owns).
#pragma once

#include <cstdint>

namespace attune::emulator {

struct ThreadContext;

/// Generic addresses of windows: kSharedWindow + a 32-bit shared address, kLocalWindow + a local offset. A shared
/// address is an offset in the block's own shared memory where its upper 8 bits are 0; else ((rank in the cluster + 1)
/// << 24 | offset). The first kSharedReserved bytes belong to the system, as on hardware.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 56;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 56;
constexpr std::uint32_t kSharedReserved = 1024;

enum class AddressSpace : std::uint8_t { generic, global, shared, shared_cluster, local, constant };
enum class AccessKind : std::uint8_t { read, write };
enum class Semantics : std::uint8_t { weak, is_volatile, relaxed, acquire, release, acq_rel, seq_cst, mmio };
enum class Scope : std::uint8_t { cta, cluster, gpu, sys };

/// In `access` of att_access: a load which att_loads_used() is called of when its result is used.
constexpr std::uint32_t kMayBeLate = 1u << 15;
/// `access` of att_access: what | space << 4 | semantics << 8 | scope << 12 | bytes << 16 | alignment << 24.
constexpr std::uint32_t access_word(AccessKind kind, AddressSpace space, Semantics semantics, Scope scope,
                                    unsigned bytes, unsigned alignment) {
  return static_cast<std::uint32_t>(kind) | static_cast<std::uint32_t>(space) << 4 |
         static_cast<std::uint32_t>(semantics) << 8 | static_cast<std::uint32_t>(scope) << 12 | bytes << 16 |
         alignment << 24;
}

enum class AtomicOp : std::uint8_t { add, min, max, inc, dec, cas, exch, bit_and, bit_or, bit_xor };
enum class AtomicType : std::uint8_t { u32, s32, u64, s64, b32, b64, b16, b128, f32, f64, f16, f16x2, bf16, bf16x2 };
struct AtomicInfo {
  AtomicOp op;
  AtomicType type;
  AddressSpace space;
  Semantics semantics;
  Scope scope;
  std::uint8_t vector;  ///< elements: 1, or 2, 4, 8 of red/atom .v2/.v4/.v8
  bool no_ftz;
};

enum class ShuffleMode : std::uint8_t { up, down, bfly, idx };
enum class VoteMode : std::uint8_t { all, any, uni, ballot };
enum class ReduxOp : std::uint8_t { add_u32, add_s32, min_u32, min_s32, max_u32, max_s32, bit_and, bit_or, bit_xor };
enum class BarrierMode : std::uint8_t { sync, arrive, red_popc, red_and, red_or };
enum class FenceKind : std::uint8_t {
  cta,
  cluster,
  gpu,
  sys,  ///< membar / fence.acq_rel / fence.sc of that scope
  proxy_async,
  proxy_async_global,
  proxy_async_shared,
  proxy_alias,
  proxy_tensormap,
  mbarrier_init,
};

struct MbarrierArriveInfo {
  AddressSpace space;   ///< shared or shared_cluster
  Semantics semantics;  ///< release or relaxed
  Scope scope;
  bool drop;
  bool no_complete;
  bool expect_tx;  ///< `tx` bytes are expected first
};
struct MbarrierWaitInfo {
  bool try_wait;        ///< may block; false: test_wait
  bool parity;          ///< operand is a parity, else a state
  Semantics semantics;  ///< acquire or relaxed
  Scope scope;
};

/// cp.async.bulk and cp.reduce.async.bulk, contiguous or tensor; one of each instruction, constant.
struct BulkInfo {
  enum class Direction : std::uint8_t {
    global_to_shared,
    shared_to_global,
    shared_to_shared_cluster,
    prefetch
  } direction;
  enum class Reduce : std::uint8_t { none, add, min, max, inc, dec, bit_and, bit_or, bit_xor } reduce;
  AtomicType reduce_type;  ///< of a contiguous reduction; tensor ones take the map's type
  std::uint8_t rank;       ///< of a tensor copy; 0: contiguous
  bool mbarrier;           ///< completes on an mbarrier, else in a bulk group
  bool multicast;
  enum class Mode : std::uint8_t { tile, im2col } mode;
  std::uint8_t offsets;            ///< im2col offsets
  AddressSpace destination_space;  ///< shared or shared_cluster, of the destination and the mbarrier
};
/// Operands of one bulk copy, filled by translated code.
struct BulkOperands {
  std::uint64_t destination;  ///< address in its space
  std::uint64_t source;       ///< address in its space (global: generic)
  std::uint64_t map;          ///< generic address of the tensor map
  std::uint64_t mbarrier;
  std::uint64_t bytes;  ///< contiguous
  std::uint64_t mask;   ///< multicast CTA mask
  std::int32_t coordinates[5];
  std::uint16_t offsets[3];
};

enum class MatrixType : std::uint8_t { f16, bf16, tf32, e4m3, e5m2, s8, u8, s4, u4, b1, f64, f32, s32 };
/// One wgmma.mma_async. Accumulators and register operands are named by slots of the thread's slot file
/// (ThreadContext).
struct WgmmaInfo {
  std::uint16_t m, n, k;
  MatrixType a, b, d;  ///< d: f16, f32 or s32
  bool a_in_registers;
  bool transpose_a, transpose_b;  ///< imm-trans: MN-major
  bool saturate;                  ///< .satfinite
  std::int8_t scale_a, scale_b;   ///< 1 or -1
  const std::uint16_t* d_slots;   ///< n / 2 of them (f16: n / 4), 32 bits each
  const std::uint16_t* a_slots;   ///< 4, or null
};

/// mma.sync: registers as 32-bit words (f64: two words each), in operand order.
struct MmaInfo {
  std::uint16_t m, n, k;
  MatrixType a, b, c, d;
  bool a_row, b_col;  ///< layouts: usually row, col
  bool saturate;
  enum class Bits : std::uint8_t { none, bit_xor, bit_and } bits;
  std::uint8_t a_words, b_words, c_words, d_words;
};

struct MatrixMoveInfo {
  std::uint8_t count;  ///< .x1, .x2, .x4
  bool transpose;
  AddressSpace space;
  bool may_be_late = false;  ///< ldmatrix: as kMayBeLate
};

extern "C" {

// -- memory -------------------------------------------------------------------------------------------

/// Checks one access of up to 32 bytes and returns where it lies in the process. Never null: after a fault that was
/// reported it points to scratch memory. Translated code then loads or stores there.
std::uint8_t* att_access(ThreadContext* context, std::uint64_t address, std::uint32_t access, std::uint32_t site);
/// The first use of what one of the loads at these sites brought, perhaps. Called only where
/// ThreadContext::unused_loads is not 0.
void att_loads_used(ThreadContext* context, const std::uint32_t* sites, std::uint32_t count);
/// The old value (zero-extended); operands likewise. Scalars of up to 64 bits.
std::uint64_t att_atomic(ThreadContext* context, const AtomicInfo* info, std::uint64_t address, std::uint64_t operand,
                         std::uint64_t second, std::uint32_t site);
/// Vectors and 128 bits: `operands` in, `old` out (null for red), elements packed as in memory; cas: operands holds
/// compare then swap.
void att_atomic_wide(ThreadContext* context, const AtomicInfo* info, std::uint64_t address, const void* operands,
                     void* old, std::uint32_t site);
void att_fence(ThreadContext* context, FenceKind kind, std::uint32_t site);
/// Generic to the given space (offset or shared address), and back.
std::uint64_t att_cvta_to(ThreadContext* context, std::uint64_t generic, AddressSpace space, std::uint32_t site);
std::uint64_t att_cvta_from(ThreadContext* context, std::uint64_t address, AddressSpace space);
/// isspacep
std::uint32_t att_is_space(ThreadContext* context, std::uint64_t generic, AddressSpace space);
/// mapa.shared::cluster
std::uint32_t att_mapa(ThreadContext* context, std::uint32_t shared, std::uint32_t rank, std::uint32_t site);
std::uint32_t att_getctarank(ThreadContext* context, std::uint32_t shared_cluster);

// -- warps --------------------------------------------------------------------------------------------

/// Value in the lower 32 bits, predicate in bit 32.
std::uint64_t att_shfl(ThreadContext* context, ShuffleMode mode, std::uint32_t value, std::uint32_t lane,
                       std::uint32_t clamp, std::uint32_t mask, std::uint32_t site);
std::uint32_t att_vote(ThreadContext* context, VoteMode mode, std::uint32_t predicate, std::uint32_t mask,
                       std::uint32_t site);
/// match: `all` gives the predicate in bit 32; bits: 32 or 64 of the value.
std::uint64_t att_match(ThreadContext* context, std::uint32_t all, std::uint32_t bits, std::uint64_t value,
                        std::uint32_t mask, std::uint32_t site);
std::uint32_t att_redux(ThreadContext* context, ReduxOp op, std::uint32_t value, std::uint32_t mask,
                        std::uint32_t site);
std::uint32_t att_activemask(ThreadContext* context, std::uint32_t site);
/// Leader lane in the lower 32 bits, predicate in bit 32.
std::uint64_t att_elect(ThreadContext* context, std::uint32_t mask, std::uint32_t site);
void att_warp_sync(ThreadContext* context, std::uint32_t mask, std::uint32_t site);

// -- barriers -----------------------------------------------------------------------------------------

/// bar/barrier.cta. `threads` 0: all of the block. Result of the reductions; else 0.
std::uint32_t att_barrier(ThreadContext* context, BarrierMode mode, std::uint32_t id, std::uint32_t threads,
                          std::uint32_t predicate, std::uint32_t aligned, std::uint32_t site);
/// barrier.cluster
void att_cluster_arrive(ThreadContext* context, Semantics semantics, std::uint32_t aligned, std::uint32_t site);
void att_cluster_wait(ThreadContext* context, Semantics semantics, std::uint32_t aligned, std::uint32_t site);

// -- mbarriers (addresses are shared or shared_cluster ones) ------------------------------------------

void att_mbarrier_init(ThreadContext* context, std::uint64_t address, std::uint32_t count, std::uint32_t site);
void att_mbarrier_inval(ThreadContext* context, std::uint64_t address, std::uint32_t site);
std::uint64_t att_mbarrier_arrive(ThreadContext* context, const MbarrierArriveInfo* info, std::uint64_t address,
                                  std::uint32_t count, std::uint32_t tx, std::uint32_t site);
/// expect_tx without an arrival (tx > 0), complete_tx by the thread (tx < 0).
void att_mbarrier_tx(ThreadContext* context, AddressSpace space, std::uint64_t address, std::int32_t tx,
                     std::uint32_t site);
/// Whether the phase has completed.
std::uint32_t att_mbarrier_wait(ThreadContext* context, const MbarrierWaitInfo* info, std::uint64_t address,
                                std::uint64_t operand, std::uint32_t site);
std::uint32_t att_mbarrier_pending_count(std::uint64_t state);
/// cp.async.mbarrier.arrive[.noinc]
void att_mbarrier_arrive_on_copies(ThreadContext* context, std::uint64_t address, std::uint32_t no_increment,
                                   std::uint32_t site);

// -- asynchronous copies --------------------------------------------------------------------------------

void att_cp_async(ThreadContext* context, std::uint64_t shared, std::uint64_t global, std::uint32_t bytes,
                  std::uint32_t source_bytes, std::uint32_t site);
void att_cp_async_commit(ThreadContext* context, std::uint32_t site);
/// At most `pending` groups may stay; ~0: wait_all.
void att_cp_async_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t site);
void att_bulk_copy(ThreadContext* context, const BulkInfo* info, const BulkOperands* operands, std::uint32_t site);
void att_bulk_commit(ThreadContext* context, std::uint32_t site);
void att_bulk_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t read_only, std::uint32_t site);
void att_prefetch_tensormap(ThreadContext* context, std::uint64_t map, std::uint32_t site);

// -- matrices -------------------------------------------------------------------------------------------

void att_wgmma(ThreadContext* context, const WgmmaInfo* info, std::uint64_t a_descriptor, std::uint64_t b_descriptor,
               std::uint32_t scale_d, std::uint32_t site);
void att_wgmma_fence(ThreadContext* context, std::uint32_t site);
void att_wgmma_commit(ThreadContext* context, std::uint32_t site);
void att_wgmma_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t site);
void att_mma(ThreadContext* context, const MmaInfo* info, const std::uint32_t* abc, std::uint32_t* d,
             std::uint32_t site);
void att_ldmatrix(ThreadContext* context, const MatrixMoveInfo* info, std::uint64_t address, std::uint32_t* registers,
                  std::uint32_t site);
void att_stmatrix(ThreadContext* context, const MatrixMoveInfo* info, std::uint64_t address,
                  const std::uint32_t* registers, std::uint32_t site);
std::uint32_t att_movmatrix(ThreadContext* context, std::uint32_t value, std::uint32_t site);

// -- the thread ------------------------------------------------------------------------------------------

/// %tid.x and so on: `which` counts through SpecialRegister of code.h.
std::uint64_t att_special(ThreadContext* context, std::uint32_t which);
void att_setmaxnreg(ThreadContext* context, std::uint32_t increase, std::uint32_t count, std::uint32_t site);
void att_griddepcontrol(ThreadContext* context, std::uint32_t wait, std::uint32_t site);
/// A register slot is read while a pending wgmma writes it, or written while one reads or writes it. Called only after
/// translated code has seen it in the slot's state byte.
void att_slot_hazard(ThreadContext* context, std::uint32_t slot, std::uint32_t write, std::uint32_t site);
/// Called at backward branches when ThreadContext::fuel has run out; lets other threads run.
void att_yield(ThreadContext* context, std::uint32_t site);
[[noreturn]] void att_trap(ThreadContext* context, std::uint32_t site);
[[noreturn]] void att_exit(ThreadContext* context, std::uint32_t site);
/// vprintf and __assertfail; format and arguments are generic addresses.
std::uint32_t att_vprintf(ThreadContext* context, std::uint64_t format, std::uint64_t arguments, std::uint32_t site);
[[noreturn]] void att_assert_fail(ThreadContext* context, std::uint64_t message, std::uint64_t file, std::uint32_t line,
                                  std::uint64_t function, std::uint32_t site);

}  // extern "C"

}  // namespace attune::emulator
