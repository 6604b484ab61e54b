// A plan: one problem's kernel, loaded and ready to launch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <attune/export.h>
#include <attune/problem.h>

struct CUstream_st;  // cudaStream_t and CUstream are pointers to it

namespace attune {

namespace runtime {
class PlanState;
}

/// Distance in elements from one index of a dimension to the next; the head dim is contiguous.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;

  bool operator==(const Strides&) const = default;
};

/// Arguments of one forward launch. All memory is device memory of the plan's device. Q, K, V and O are
/// aligned to 16 bytes and their strides are multiples of 8 elements; LSE is aligned to 4 bytes.
struct ForwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;  ///< ignored if seqlen_k is 0
  const void* v = nullptr;  ///< ignored if seqlen_k is 0
  void* o = nullptr;        ///< overlaps none of the inputs
  float* lse = nullptr;     ///< [batch, heads, seqlen_q], dense; null: not written
  Strides q_strides = {};   ///< all zero: the problem's layout, dense
  Strides k_strides = {};
  Strides v_strides = {};
  Strides o_strides = {};
  float scale = 0;  ///< of the scores; 0: 1 / sqrt(head_dim). Else finite and positive
  /// Plan::workspace_bytes() bytes, aligned to 8, zero before the first launch; every launch leaves them
  /// zero. Launches that may run at the same time must not share it. Null: the runtime uses memory of its
  /// own, one piece for each stream.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  CUstream_st* stream = nullptr;
};

/// Arguments of one backward launch: the gradients of a loss with respect to Q, K and V, from those with respect to O
/// and, if the loss depends on it, LSE. All memory is device memory of the plan's device. Tensors are aligned to 16
/// bytes and their strides are multiples of 8 elements, each tensor's its own; LSE and dLSE are aligned to 4 bytes.
///
/// A tensor without rows is ignored and may be null: K, V, dK and dV if seqlen_k is 0 (dQ is then all zero), Q, O, dO,
/// LSE and dQ if seqlen_q is 0 (dK and dV are then all zero).
struct BackwardArgs {
  const void* q = nullptr;  ///< as in the forward launch: Q, K, V and the scale
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;       ///< the forward launch's result
  const void* d_o = nullptr;     ///< shape of O
  const float* lse = nullptr;    ///< [batch, heads, seqlen_q], dense: the forward launch's result
  const float* d_lse = nullptr;  ///< [batch, heads, seqlen_q], dense; null: zeros
  void* d_q = nullptr;           ///< shape of Q. Outputs overlap neither each other nor anything else
  void* d_k = nullptr;           ///< shape of K: summed over the query heads that read a KV head
  void* d_v = nullptr;           ///< shape of V, likewise
  Strides q_strides = {};        ///< all zero: the problem's layout, dense
  Strides k_strides = {};
  Strides v_strides = {};
  Strides o_strides = {};
  Strides d_o_strides = {};  ///< need not be O's
  Strides d_q_strides = {};
  Strides d_k_strides = {};
  Strides d_v_strides = {};
  float scale = 0;  ///< of the scores; 0: 1 / sqrt(head_dim). Else finite and positive
  /// Plan::workspace_bytes() bytes, aligned to 256, whatever they hold: a launch keeps statistics of the rows and the
  /// float32 sums of dQ there, and needs nothing of it afterwards. Launches that may run at the same time must not
  /// share it. Never null, unless no bytes are needed.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  CUstream_st* stream = nullptr;
};

/// Where a plan's config came from.
enum class Origin {
  pack,       ///< a pack that the caller named
  cache,      ///< a winner in the cache
  tuned,      ///< tuned by the plan() call that returned it
  heuristic,  ///< nobody has tuned this problem here: the best guess
  override,   ///< PlanOptions::config
};
ATTUNE_API const char* to_string(Origin origin) noexcept;

struct PlanInfo {
  std::string problem;    ///< canonical text, as to_string(Problem)
  std::string config;     ///< canonical text of all tunables
  std::string spec;       ///< canonical text of what was compiled
  std::string kernel;     ///< name of the __global__ function
  std::string build_key;  ///< identity of the compiled code; empty if it came from a pack
  Origin origin = Origin::heuristic;
  int registers = 0;                       ///< a thread
  int shared_bytes = 0;                    ///< dynamic, a block
  int threads = 0;                         ///< a block
  std::int64_t blocks = 0;                 ///< of the main kernel, if there are others
  std::optional<double> expected_seconds;  ///< of a launch, as measured when it won
  std::string errors;                      ///< error of the results, as measured when it won: JSON; empty if unknown
  std::string peaked_config;               ///< of the kernel that launches take on peaked scores; empty: the same one
};

/// On what a launch computes with. Forward kernels that fix the reference of the exponentials beforehand are the
/// fastest on ordinary scores, and take twice as long for those of which it serves no warp. A plan of such a kernel
/// has, unless PlanOptions::pinned, a second one that does not: beside a pack's or the cache's the one that packs or
/// the cache have for the same problem with ScoreKind::peaked, if they do, beside a guess another guess. Launches
/// report how often the first one's references failed, and those that follow take the second one while that is more
/// than an eighth, all but one of 64 to 1024, which looks again. Each gives the same bits every time, but they round
/// differently: the low bits of O and LSE may depend on what was launched before. A launch that is captured keeps the
/// kernel that it was captured with.
///
/// An immutable handle; copies share the loaded kernel. Safe from any thread. Keeps what it needs of its
/// Runtime alive. A kernel is unloaded with the last copy: no launch of it may be pending then.
class ATTUNE_API Plan {
 public:
  /// Queues the computation on args.stream and returns; the results are there when the stream gets there.
  ///
  /// Takes no lock, opens no file, reads no environment variable, allocates nothing and asks the driver
  /// nothing: shapes, strides, alignment and null pointers are checked by arithmetic. (With a dynamic grid
  /// and no workspace it asks whether the stream is being captured.) Under stream capture it records a node;
  /// see Runtime about captures and workspaces. A problem with batch 0 or seqlen_q 0 launches nothing (a
  /// backward one with seqlen_q 0 still writes dK and dV).
  ///
  /// Throws Error(invalid_argument) that names the argument, its value and what is allowed, before anything
  /// is launched; Error(driver) if the driver refuses; Error(out_of_memory) if more streams or captured
  /// launches use a dynamic grid than there are workspaces.
  ///
  /// A plan of op = backward takes BackwardArgs, any other plan ForwardArgs; the other kind is refused.
  void launch(const ForwardArgs& args) const;

  /// The same for the backward pass: `plan.launch(BackwardArgs{.q = q, ...})`. Queues up to three kernels, one after
  /// the other. Without a dynamic grid, and so without questions about captures, and with the workspace always the
  /// caller's. The type is a parameter so that launch({.q = q, ...}) stays the forward launch.
  template <std::same_as<BackwardArgs> Args>
  void launch(const Args& args) const {
    launch_backward(args);
  }

  /// Bytes of workspace that one launch needs. Forward: 0 or 8, and the runtime has some of its own. Backward: linear
  /// in seqlen_q (about heads * batch * seqlen_q * (d + 2) floats, where d is head_dim, rounded up to 64 or 128 below
  /// these), and the caller must pass it.
  std::size_t workspace_bytes() const noexcept;

  const Problem& problem() const noexcept;
  const PlanInfo& info() const noexcept;

  explicit Plan(std::shared_ptr<const runtime::PlanState> state) noexcept;                    ///< for Runtime
  const std::shared_ptr<const runtime::PlanState>& state() const noexcept { return state_; }  ///< for Runtime

 private:
  void launch_backward(const BackwardArgs& args) const;

  std::shared_ptr<const runtime::PlanState> state_;
};

}  // namespace attune
