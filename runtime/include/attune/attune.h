// attune: attention kernels, generated, tuned and cached.
//
//   attune::Runtime runtime;                                   // this thread's device, the default cache
//   attune::Plan plan = runtime.plan({.head_dim = 128, ...});  // may compile, load, read the cache
//   plan.launch({.q = q, .k = k, .v = v, .o = o, .stream = stream});
//
// Stands alone: no CUDA header is needed. Errors are attune::Error with a code and a message that names the
// argument, what it was and what is allowed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/error.h>
#include <attune/export.h>
#include <attune/plan.h>
#include <attune/problem.h>

namespace attune {

namespace runtime {
class RuntimeState;
class Device;
}  // namespace runtime

/// What plan() does for a problem that neither a pack nor the cache knows.
enum class MissPolicy {
  heuristic,   ///< compile and use the best guess
  tune,        ///< tune now, within PlanOptions::tune_seconds
  background,  ///< use the best guess and tune in a thread meanwhile; later calls of plan() get the winner
  fail,        ///< throw Error(not_prepared)
};
ATTUNE_API const char* to_string(MissPolicy policy) noexcept;
ATTUNE_API MissPolicy parse_miss_policy(std::string_view text);

struct RuntimeOptions {
  /// Ordinal of the device whose primary context is used; -1: the calling thread's current context, which must then
  /// outlive the runtime and its plans, or device 0's primary context if there is none.
  int device = -1;
  bool use_cache = true;
  std::string cache_directory = {};     ///< empty: $ATTUNE_CACHE_DIR, $XDG_CACHE_HOME/attune or ~/.cache/attune
  std::vector<std::string> packs = {};  ///< folders, searched in this order before the cache
  bool allow_unsigned_packs = false;
  bool allow_compiler = true;  ///< false: never open NVRTC; what is not in a pack or the cache is a miss
  /// Debugging: every launch asks the driver whose memory its pointers are, and refuses host memory and other
  /// devices'.
  bool check_pointers = false;
  /// Gets one line for each thing that went wrong but was survived (a damaged cache entry, a read-only
  /// folder, a problem that nobody has tuned). May be called from any thread; must not throw. Empty: stderr,
  /// each line once.
  std::function<void(const std::string&)> on_warning = {};
};

struct PlanOptions {
  MissPolicy on_miss = MissPolicy::heuristic;
  double tune_seconds = 30;  ///< budget of MissPolicy::tune and ::background; above 0
  /// Text of a config ("consumers=2,block_n=128,..."): used as it is; packs and cached winners are not asked.
  std::string config = {};
  /// The stream of the launches to come. If it is being captured, only plans that are ready in memory are
  /// returned; otherwise Error(not_prepared) says to plan before the capture.
  std::optional<CUstream_st*> stream = std::nullopt;
  /// Forward: every launch takes the same kernel, and so gives the same bits for the same inputs. Else launches may
  /// take another one while scores are peaked, see Plan. A plan by `config` is always pinned.
  bool pinned = false;
};

/// Plans for one device. Every function is safe from any thread; two calls for the same problem compile once.
///
/// Streams and workspaces. Dynamic grids count tiles in 8 bytes of device memory. Unless the caller passes
/// them as ForwardArgs::workspace, the runtime gives each stream its own, for as long as the runtime lives
/// (up to 4096 streams). A launch that is captured into a graph gets bytes of its own (up to 126,976 of
/// them), so graphs may be replayed on any stream; two executables instantiated from one captured graph share
/// them and must not run at the same time: pass workspaces if they do.
///
/// Contexts. A launch runs in the context that the runtime was created with, also if another is current.
class ATTUNE_API Runtime {
 public:
  /// Throws Error(no_device) without a driver or GPU, Error(pack) for a pack that does not verify,
  /// Error(invalid_argument). A cache that cannot be used costs a warning, no more.
  explicit Runtime(RuntimeOptions options = {});
  ~Runtime();  ///< waits for tuning in the background to stop; plans stay usable
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The kernel for a problem: from memory, the packs, the cache, or by the miss policy. May take long: a guess may
  /// compile, a forward one two kernels (see Plan).
  ///
  /// Throws Error(invalid_argument) for a bad problem or option; Error(not_prepared) under stream capture and
  /// by MissPolicy::fail; Error(unsupported) if this device or a missing NVRTC allows no kernel;
  /// Error(compile_failed); Error(driver); Error(out_of_memory).
  Plan plan(const Problem& problem, const PlanOptions& options = {});

  /// What plans and winners of this device are filed under.
  std::string device_identity() const;

  /// A runtime on a device of the caller's: an emulator, a test's fake.
  Runtime(RuntimeOptions options, std::shared_ptr<runtime::Device> device);

 private:
  std::shared_ptr<runtime::RuntimeState> state_;
};

/// "0.1.0"
ATTUNE_API const char* version() noexcept;

}  // namespace attune
