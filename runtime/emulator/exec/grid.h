// One launch: makes blocks, schedules their threads and asynchronous operations, ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/async.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/random.h"
#include "runtime/emulator/exec/resident.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

/// What a launch is made of; machine.cpp has checked it.
struct LaunchPlan {
  const ProgramImage* image = nullptr;
  const KernelCode* kernel = nullptr;
  LaunchOptions options;
  const std::uint8_t* parameters = nullptr;
  std::uint32_t registers_per_thread = 0;
  std::uint32_t shared_bytes = 0;  ///< of a block, with the reserved ones
  MemoryRanges ranges;             ///< sorted
};

class Grid {
 public:
  explicit Grid(LaunchPlan plan);
  ~Grid();
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  /// Throws Error(interrupted) after a request to stop, and what running threads threw.
  Report run();

  const LaunchPlan& plan() const { return plan_; }
  AsyncQueue& async() { return async_; }
  /// Null where checks are off.
  Checker* checker() { return checks_ ? &findings_ : nullptr; }
  /// False: asynchronous operations run when they are issued.
  bool seeded() const { return plan_.options.seed != 0; }
  std::string& output() { return output_; }
  /// Executed until the running thread was resumed.
  std::uint64_t instructions() const { return instructions_; }
  /// Where accesses go that were found to be at fault.
  std::uint8_t* scratch() { return scratch_; }
  /// Whether an mbarrier.try_wait should return false instead of waiting, as it may.
  bool wait_times_out();

  // -- findings; with or without checks ---------------------------------------------------------------
  void add(FindingKind kind, const ThreadContext* thread, std::uint32_t site, std::string message);
  void add(FindingKind kind, const ThreadContext* thread, std::uint32_t site, std::string message,
           const ThreadContext* other, std::uint32_t other_site);

  // -- threads ----------------------------------------------------------------------------------------
  /// Suspends the calling thread until wake(). Its `wait` has been set; returns at once if it was ended already.
  void block_thread(ThreadContext* thread);
  /// Ends its wait. Does nothing for one that does not wait.
  void wake(ThreadContext* thread);
  /// Lets the others run first.
  void yield(ThreadContext* thread);
  /// Something has happened that others may have waited for: those that look in vain have a reason to look again.
  void progress() { ++progress_; }
  /// Ends the launch; what was found says why. Only on a thread's own fibre.
  [[noreturn]] void stop(ThreadContext* thread);
  /// Ends the launch likewise, and run() throws this.
  [[noreturn]] void fail(ThreadContext* thread, std::exception_ptr error);
  /// The thread has ended; on its fibre.
  [[noreturn]] void exit_thread(ThreadContext* thread, std::uint32_t site);

 private:
  /// A place for one cluster.
  struct Place {
    Cluster cluster;
    std::vector<std::unique_ptr<Resident>> blocks;
    bool used = false;
  };

  void start_clusters();
  void start_cluster(Place* place);
  void retire(Cluster* cluster);
  ThreadContext* next_thread();
  void run_thread(ThreadContext* thread);
  std::int32_t new_fuel();
  bool time_out_waits();
  void report_deadlock();
  void enqueue(Warp* warp);
  std::vector<Block*> resident_blocks() const;

  LaunchPlan plan_;
  bool checks_;
  Checker findings_;
  AsyncQueue async_;
  Random random_;
  std::string output_;
  std::vector<std::unique_ptr<Place>> places_;
  std::uint64_t clusters_ = 0;  ///< of the grid
  std::uint64_t started_clusters_ = 0;
  std::uint64_t active_clusters_ = 0;
  std::vector<Cluster*> ended_;  ///< whose last thread has exited
  std::deque<Warp*> queue_;      ///< those with threads that can run
  ThreadContext* running_ = nullptr;
  std::uint64_t instructions_ = 0;
  std::uint64_t progress_ = 0;
  std::uint64_t progress_at_time_out_ = 0;
  std::uint32_t vain_time_outs_ = 0;  ///< since there was progress
  bool stopped_ = false;
  std::exception_ptr error_;  ///< why
  alignas(64) std::uint8_t scratch_[64] = {};
};

}  // namespace attune::emulator
