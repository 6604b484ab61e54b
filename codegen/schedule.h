// The order of a consumer warpgroup's steps, as data. An author writes one step for the flattened stream of key blocks
// (offset 0: the current block, -1: the one before it, which may belong to the previous tile); prologue, tile boundary,
// drain, wait counts, fences and the producer's load order are derived from it by lower().
#pragma once

#include <string>
#include <vector>

#include "codegen/kernel_spec.h"

namespace attune::codegen {

enum class Product { qk, pv };  ///< S = Q K(0)^T, O += P V(-1)
enum class Buffer { k, v };
enum class SoftmaxPart {
  online,       ///< S becomes the exponentials, running maximum as the reference
  speculative,  ///< P written directly from an intact S
  convert,      ///< P from S
  rescale,      ///< O by the correction that `online` left
};

struct Action {
  enum class Kind { await, issue, wait, release, softmax, take_turn, pass_turn };
  Kind kind;
  Buffer buffer = Buffer::k;               ///< await, release
  Product product = Product::qk;           ///< issue, wait
  bool both = false;                       ///< wait: for both products
  SoftmaxPart part = SoftmaxPart::online;  ///< softmax
};

struct Schedule {
  std::string name;
  std::vector<Action> step;

  Schedule& await(Buffer buffer) { return add({.kind = Action::Kind::await, .buffer = buffer}); }
  Schedule& issue(Product product) { return add({.kind = Action::Kind::issue, .product = product}); }
  Schedule& wait(Product product) { return add({.kind = Action::Kind::wait, .product = product}); }
  Schedule& wait_all() { return add({.kind = Action::Kind::wait, .both = true}); }
  Schedule& release(Buffer buffer) { return add({.kind = Action::Kind::release, .buffer = buffer}); }
  Schedule& softmax(SoftmaxPart part) { return add({.kind = Action::Kind::softmax, .part = part}); }
  Schedule& take_turn() { return add({.kind = Action::Kind::take_turn}); }
  Schedule& pass_turn() { return add({.kind = Action::Kind::pass_turn}); }

 private:
  Schedule& add(Action action) {
    step.push_back(action);
    return *this;
  }
};

/// The schedule that a config asks for.
Schedule schedule_for(const Config& config);

/// One line of straight-line code. Widths and flags are resolved; the printer only spells it.
struct Line {
  enum class Kind {
    await_k,  ///< mbarrier wait: K of the current block is there
    await_v,
    take_turn,  ///< named barrier sync
    pass_turn,  ///< named barrier arrive
    fence,      ///< registers settled before the tensor cores read them; `s` and `o` say which accumulators to pin
    issue_qk,   ///< width = columns of S
    issue_pv,   ///< width = rows of V
    wait,       ///< wgmma.wait_group `pending`; `s`, `o` say which accumulators are complete now
    release_k,
    release_q,  ///< after the tile's last QK; where Q is in registers, after the first one
    release_v,
    softmax,   ///< part, width, first, masked
    mask,      ///< -inf above the diagonal or beyond seqlen_k
    save_row,  ///< keep the old tile's row state, since the next softmax starts a new one
    epilogue,  ///< normalise, stage, store (`saved`: from the kept row state)
    skip_k,    ///< pass over K blocks above this warpgroup's diagonal, turns included
    skip_v,
  };
  Kind kind;
  int width = 0;
  int pending = 0;
  bool s = false, o = false;
  SoftmaxPart part = SoftmaxPart::online;
  bool first = false, masked = false, saved = false;
};

/// The consumer program of one warpgroup kind. Tiles are a stream:
///   first, { second?, masked*, block* , then boundary (next tile) or drain (no more) }
/// With Boundary::drained there is no boundary segment: drain, then first again.
struct Program {
  int first_width = 0;      ///< columns of a tile's first block
  bool flattened = false;   ///< Boundary::overlapped on a grid with more than one tile a block
  bool has_second = false;  ///< the block after a narrow first one is printed apart (its PV is narrow)
  bool has_masked = false;  ///< Edge::diagonals: masked steps until below the diagonal
  std::vector<Line> first, second, masked, block, boundary, drain;
};

/// Derives the program. `first_width`: columns of a tile's first block for this warpgroup.
Program lower(const KernelSpec& spec, const Schedule& schedule, int first_width);

/// Columns of a tile's first block for consumer warpgroup `warpgroup`.
int first_width(const KernelSpec& spec, int warpgroup);

/// Order in which the producer loads within one block step: true if V(-1) comes before K(0).
bool loads_v_first(const Schedule& schedule);

/// Plays producer and consumers over one to three tiles of one to three blocks. Returns what is wrong (deadlock with
/// who waits on what, a buffer overwritten before its product was waited for, unequal turns) or an empty string.
std::string simulate(const KernelSpec& spec, const Schedule& schedule);
inline std::string simulate(const KernelSpec& spec) { return simulate(spec, schedule_for(spec.config)); }

}  // namespace attune::codegen
