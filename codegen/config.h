// The tunables of one kernel, with one canonical text form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <attune/problem.h>
#include "codegen/backward/tunables.h"

namespace attune::codegen {

/// Which template a kernel is emitted from.
enum class Family {
  sm90,       ///< TMA, mbarriers, wgmma, warp specialisation
  reference,  ///< plain loops with float64 accumulation: the yardstick of `verify` and of the tuner's numerics gate
  sm90_backward,
  reference_backward,
};
/// The operation that kernels of a family compute.
constexpr Op op_of(Family family) {
  return family == Family::sm90 || family == Family::reference ? Op::forward : Op::backward;
}
constexpr bool is_reference(Family family) {
  return family == Family::reference || family == Family::reference_backward;
}

/// How the exponentials of a row get their reference (the value subtracted from every score).
enum class Softmax {
  exact,      ///< the running row maximum, O rescaled when it grows
  first_max,  ///< speculative: the first block's row maximum; row sums prove that it still serves, else the exact path
  zero,       ///< speculative: 0, also in the first block
};

/// Order of the two products inside a warpgroup's step.
enum class Order {
  qk_pv,   ///< QK(n), PV(n+1), softmax under PV: FlashAttention-3's overlap
  pv_qk,   ///< PV(n+1), QK(n), wait for both: S stays intact, which speculation needs
  serial,  ///< PV(n+1), wait, QK(n), wait: no overlap inside a warpgroup
};

enum class QSource { shared, registers };  ///< A operand of QK
/// Where O is staged for its TMA store, if it is.
enum class OBuffer {
  own,     ///< a buffer of its own
  over_q,  ///< this tile's Q, which then stays occupied until the store has read it
  direct,  ///< nowhere: registers go to global memory, and the shared memory to other uses
};
enum class Boundary { overlapped, drained };  ///< first QK of the next tile beside this tile's last PV, or after it
enum class Grid {
  plain,
  persistent,
  dynamic
};  ///< one tile a block; static, in turn (causal: there and back); longest tile first by a counter
/// What a causal kernel does with the part of the diagonal block that a warpgroup does not need.
enum class Diagonal {
  masked,   ///< compute and mask
  trimmed,  ///< the upper warpgroup computes half the block (block_m = block_n = 128)
  skipped,  ///< a warpgroup skips blocks that lie wholly above its diagonal
};

struct Config {
  Family family = Family::sm90;
  backward::Tunables backward = {};  ///< Family::sm90_backward has these alone, and none of the following
  // -- kernel part: goes into KernelSpec and so into the build key
  int consumers = 2;  ///< consumer warpgroups; block_m = 64 * consumers
  int block_n = 128;  ///< keys a block
  int stages = 2;     ///< K and V buffers each
  Softmax softmax = Softmax::exact;
  Order order = Order::qk_pv;
  bool ping_pong = true;  ///< consumers take turns at issuing their products
  QSource q = QSource::shared;
  int q_columns = 0;  ///< QSource::shared: so many of Q's first columns come from registers all the same
  int q_buffers = 1;
  bool q_ahead =
      false;  ///< Q of the next tile is asked for during this one: loaded, or into L2 while its buffer is in use
  OBuffer o = OBuffer::over_q;
  int o_pieces =
      1;  ///< OBuffer::own: O goes through its buffer in so many pieces of 64-column chunks, one after another
  Boundary boundary = Boundary::drained;
  Grid grid = Grid::persistent;
  Diagonal diagonal = Diagonal::masked;
  bool exact_tail = false;  ///< non-causal: the first block is exactly seqlen_k mod block_n wide, where 16 divides that
  bool remember = true;     ///< Softmax::zero: once reference 0 failed, later tiles start on the exact path
  int cluster =
      1;  ///< thread blocks that take neighbouring tiles of a head and load a share of each K and V block for all
  bool skip_idle = false;         ///< a warpgroup whose rows all lie beyond seqlen_q passes over the tile's blocks
  bool warp_epilogue = false;     ///< each warp stages and stores its own 16 rows of O
  bool dependent_launch = false;  ///< starts while the kernel before it in the stream still ends, and waits by itself
  bool early_copies = false;      ///< the first tile's Q and K are asked for before the thread block's first barrier
  /// Of ping_pong's turns the first block of a stream of blocks has one, too. Without it all warpgroups compute their
  /// first softmax at once.
  bool first_turn = false;
  // -- launch part: run-time arguments, not hashed into the build
  int workers = 0;  ///< blocks of a persistent grid; 0: one per SM
  int section = 0;  ///< Grid::dynamic: heads whose K and V share L2 at a time; 0: by the rule in default_section()

  int block_m() const { return 64 * consumers; }
  /// Query rows of the tiles that a cluster takes together.
  int cluster_m() const { return cluster * block_m(); }
  /// A warpgroup passes over blocks of keys above its diagonal: the tiles of a cluster do not end at the same one.
  bool skips_blocks() const { return diagonal == Diagonal::skipped || (cluster > 1 && diagonal == Diagonal::trimmed); }
  /// Which tile of a cluster's a thread block takes changes from one to the next: a causal mask makes one longer, and
  /// who had the shorter one may be ahead by as much.
  bool swaps_tiles(bool causal) const { return cluster > 1 && causal; }
  /// Tiles are not equally long, and are taken longest first inside sections of heads.
  bool takes_sections(bool causal) const { return causal || (skip_idle && grid == Grid::dynamic); }
  /// The first thread block of a cluster claims tiles for all.
  bool tells_claims() const { return cluster > 1 && grid == Grid::dynamic; }
  /// Q's buffer is given back after the tile's last product with it, not at the tile's end.
  bool releases_q_early() const { return q == QSource::shared && o != OBuffer::over_q && grid != Grid::plain; }
  /// Q goes to registers and leaves its buffer to the next tile's.
  bool moves_q() const { return q == QSource::registers && o != OBuffer::over_q; }
  bool operator==(const Config&) const = default;
};

/// Canonical text: every key of the family, fixed order, "family=sm90,consumers=2,block_n=128,...".
std::string to_string(const Config& config);
/// The kernel part alone (no workers, no section, no parts): equal text means equal kernels.
std::string kernel_part(const Config& config);
/// The config with its launch part cleared.
Config without_launch_part(Config config);
/// Keys may come in any order and be left out (defaults above). Throws on keys that the family lacks and on unknown
/// values.
Config parse_config(std::string_view text);

/// Heads per L2 section. Forward: as many as keep K and V within 32 MB (128 MB above head dim 128), between 1 and 16.
/// Backward: KV heads, as many as keep Q, dO and the sums of dQ within 32 MB, at least 1.
int default_section(const Problem& problem);

}  // namespace attune::codegen
