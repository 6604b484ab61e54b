// The tunables of a backward kernel (Family::sm90_backward).
#pragma once

#include <string>
#include <string_view>

#include "base/fields.h"

namespace attune::codegen::backward {

/// How the two consumer warpgroups share a block of keys.
enum class Split {
  rows,     ///< 64 of 128 keys each: P and dS stay in registers for dV and dK; dK and dV fit up to head dim 128
  columns,  ///< the same 64 keys: half of the query rows each for the scores, half of the columns of dK, dV and dQ each
  products,  ///< the same 64 keys: one computes P and dV, the other, which gets P, dP and dK; dQ in a pass of its own
};

/// How a block's contribution reaches the float32 sums of dQ.
enum class DqPath {
  bulk,    ///< staged in shared memory, added by bulk copies of a warp of their own
  direct,  ///< added from registers
  pass,    ///< no sums: other thread blocks of the launch compute dQ, for which they compute S and dP again
};

/// How the sums of dQ begin.
enum class Sums {
  zeroed,  ///< as zeros, by the kernel before, or by the warp that finished the slot's last pair
  stored,  ///< who comes to a tile first, or, where the order matters, the first block of keys, stores its part; the
           ///< others wait until it has, and add
};

/// In which order a block of keys visits the query tiles of a head.
enum class Visits {
  ascending,
  descending,  ///< with a causal mask all blocks of a head begin with the same tile, instead of each with its diagonal
};

/// How dK and dV leave when a block of keys is done.
enum class DkvPath {
  staged,  ///< through shared memory, by bulk tensor copies
  direct,  ///< from registers: nothing to wait for, more instructions
  parts,   ///< a block of keys takes a share of the query heads that read its KV head, and its dK and dV leave as
           ///< float32 fragments, which the kernel after the main one adds up in a fixed order
};

/// Where one block of keys ends and a persistent thread block's next one begins.
enum class Boundary {
  drained,     ///< the last dQ is computed, dK and dV leave, and then the next block's first step begins
  overlapped,  ///< the last dQ is computed, and dK and dV leave, beside the first products of the next block
};

/// Who makes dQ of its sums.
enum class Finish {
  launch,  ///< a kernel after the main one, from sums of all queries
  ring,    ///< a warp of the main kernel, as tiles become complete, from a ring of sums that stays in L2
};

/// Who computes what is needed of each query row.
enum class Prepare {
  launch,  ///< a kernel before the main one
  inside,  ///< that one for the first tiles, then warps of the main one's producers, ahead of the blocks of keys
};

struct Tunables {
  // -- kernel part
  int block_m = 64;  ///< query rows a step
  Split split = Split::rows;
  int k_stages = 1;        ///< buffers of K: with 2 a persistent block's next K comes while this one is used
  int q_stages = 2;        ///< buffers of Q and LSE
  int do_stages = 2;       ///< buffers of dO and delta
  int ds_stages = 2;       ///< buffers of dS, and of P where it goes through shared memory (products: of P alone)
  bool lag = false;        ///< dQ of a block is computed one step late: no barrier between the warpgroups in a step
  bool ping_pong = false;  ///< consumers take turns at the elementwise part of a step
  bool late_fences =
      false;              ///< proxy fences behind dQ's and dS's stores wait until these have drained under other work
  bool prefetch = false;  ///< LSE and delta come into registers before the wait for the product that they belong to
  bool v_in_registers = false;  ///< V is the left operand of dP from registers: one read of shared memory less a step
  bool skip = false;  ///< causal: a warpgroup leaves out the products of a query tile that sees none of its keys
  Visits visits = Visits::ascending;
  DqPath dq = DqPath::bulk;
  Sums sums = Sums::zeroed;
  DkvPath dkv = DkvPath::staged;
  Boundary boundary = Boundary::drained;
  bool persistent = false;  ///< a thread block computes block of keys after block of keys, as a counter hands them out
  Finish finish = Finish::launch;
  Prepare prepare = Prepare::launch;
  int registers = 240;  ///< a consumer thread's; a producer thread has producer_registers()
  // -- launch part
  int workers = 0;  ///< thread blocks of a persistent grid; 0: one an SM
  int section = 0;  ///< KV heads whose Q and dO share L2 at a time; 0: by the rule in backward_grid()
  int parts = 0;    ///< DkvPath::parts: shares of a KV head's query heads, a divisor of their number; 0: likewise

  /// Keys a block.
  int block_n() const { return split == Split::rows ? 128 : 64; }
  /// Three warpgroups share 504 a thread.
  int producer_registers() const { return 504 - 2 * registers; }
  bool operator==(const Tunables&) const = default;
};

/// The kernel part, every key, fixed order.
Fields kernel_fields(const Tunables& tunables);
/// Sets the tunable `key`; false if there is none of that name. Throws on unknown values.
bool set_field(Tunables& tunables, std::string_view key, std::string_view value);
/// Names of all keys, for errors: "block_m, split, ...".
std::string keys();

}  // namespace attune::codegen::backward
