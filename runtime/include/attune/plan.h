// A plan: one problem's kernel, loaded and ready to launch.
#pragma once

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
  int registers = 0;     ///< a thread
  int shared_bytes = 0;  ///< dynamic, a block
  int threads = 0;       ///< a block
  std::int64_t blocks = 0;
  std::optional<double> expected_seconds;  ///< of a launch, as measured when it won
  std::string errors;                      ///< error of O and LSE, as measured when it won: JSON; empty if unknown
};

/// An immutable handle; copies share the loaded kernel. Safe from any thread. Keeps what it needs of its
/// Runtime alive. A kernel is unloaded with the last copy: no launch of it may be pending then.
class ATTUNE_API Plan {
 public:
  /// Queues the computation on args.stream and returns; the results are there when the stream gets there.
  ///
  /// Takes no lock, opens no file, reads no environment variable, allocates nothing and asks the driver
  /// nothing: shapes, strides, alignment and null pointers are checked by arithmetic. (With a dynamic grid
  /// and no workspace it asks whether the stream is being captured.) Under stream capture it records a node;
  /// see Runtime about captures and workspaces. A problem with batch 0 or seqlen_q 0 launches nothing.
  ///
  /// Throws Error(invalid_argument) that names the argument, its value and what is allowed, before anything
  /// is launched; Error(driver) if the driver refuses; Error(out_of_memory) if more streams or captured
  /// launches use a dynamic grid than there are workspaces.
  void launch(const ForwardArgs& args) const;

  /// Bytes of workspace that one launch needs; 0 or 8.
  std::size_t workspace_bytes() const noexcept;

  const Problem& problem() const noexcept;
  const PlanInfo& info() const noexcept;

  explicit Plan(std::shared_ptr<const runtime::PlanState> state) noexcept;  ///< for Runtime

 private:
  std::shared_ptr<const runtime::PlanState> state_;
};

}  // namespace attune
