// Compiles kernels on several threads, most wanted first, and keeps what became of each.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/builder.h"
#include "tuner/measurer.h"
#include "tuner/stop_condition.h"

namespace attune::tuner {

class KernelPool {
 public:
  enum class State {
    waiting,
    building,
    ready,
    rejected,  ///< spills, serialised wgmma, compile errors: `reason`
    dropped,   ///< there was no time to compile it
  };

  /// Fields but `spec` may be read once the state is ready or rejected; `gate` belongs to whoever claimed it.
  struct Kernel {
    codegen::KernelSpec spec;
    State state = State::waiting;
    std::string reason;
    std::string build_key;
    std::shared_ptr<const std::string> cubin;
    int registers = 0;
    bool from_cache = false;
    int wanted = 0;  ///< how often it was added and not given up
    bool gate_claimed = false;
    std::optional<Verdict> gate;
  };

  struct Totals {
    int kernels = 0, done = 0, compiled = 0, rejected = 0;
    double last_build = 0;  ///< steady_seconds() when the last build ended
  };

  /// `builder` must outlive the pool.
  KernelPool(runtime::Builder& builder, int threads);
  /// Waits for the compiles that are under way; what waits is dropped.
  ~KernelPool();

  /// The kernel of a spec, queued behind what was added before, or before that if it is urgent. Stays valid as long as
  /// the pool.
  Kernel* add(const codegen::KernelSpec& spec, bool urgent = false);
  /// Takes back one add(): a kernel that still waits and that nobody else wants is not compiled.
  void give_up(Kernel* kernel);
  /// Kernel parts of the specs whose builds were accepted.
  std::set<std::string> ready() const;
  /// What still waits will not be compiled.
  void drop_waiting();
  Totals totals() const;

  /// Calls `look` with the lock held, at once and after every change, until it returns true or `stop` is interrupted or
  /// `seconds` have passed; returns what it returned last. Throws what has stopped the compiling as a whole (no NVRTC).
  bool wait_until(const std::function<bool()>& look, const StopCondition& stop, double seconds);
  /// Runs `change` with the lock held and wakes all who wait.
  void update(const std::function<void()>& change);

 private:
  void work(const std::stop_token& stop);
  void build(Kernel& kernel);

  runtime::Builder& builder_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;  // by text of the spec
  std::deque<Kernel*> queue_;
  Totals totals_;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace attune::tuner
