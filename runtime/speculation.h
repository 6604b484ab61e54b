// Which of two kernels a plan launches next: the one that speculates, or the exact one for scores that defeat it.
#pragma once

#include <atomic>
#include <cstdint>

namespace attune::runtime {

/// What launches tell the host, in memory that both see (codegen::ForwardParams::report): the device writes all of it
/// at once, when a launch is under way, the host reads.
struct alignas(8) LaunchReport {  // in this order, as kernels have it
  /// Blocks of keys for which a warp's speculation failed, of all launches before, and some of that launch.
  std::uint32_t failures = 0;
  std::uint32_t started = 0;  ///< number of the launch that began last
};

/// Follows how often speculation fails. While it does for more than a share of the blocks, launches take the exact
/// kernel, and now and then one speculates, to see whether it still does. Asks the device nothing and never waits: what
/// launches report counts for later ones, as it comes in. Safe from any thread.
///
/// What is known of a launch is complete once a later one has told something, on one stream. On several streams
/// failures may be put down to neighbouring launches. A graph's replays tell the number that was captured, an old one,
/// which counts as nothing new: beside many of them, live launches are heard less often. Failures are counted modulo
/// 2^32; more than 2^31 between two looks count as none.
class Speculation {
 public:
  /// Exact launches between two that try, at first and at most.
  static constexpr std::uint32_t kShortStay = 64, kLongStay = 1024;
  /// Launches that are judged together, unless fewer have failed as often as so many may.
  static constexpr std::uint32_t kWindow = 8;

  struct Choice {
    std::uint32_t launch;  ///< its number
    bool speculate;
    bool trial;  ///< it speculates to see whether that pays again
  };

  /// `limit`: failures a launch beyond which the exact kernel is the faster one. `report` must outlive this.
  Speculation(const LaunchReport* report, double limit) : report_(report), limit_(limit) {}

  /// For the next launch.
  Choice next() noexcept;
  /// A trial that will not run, or who knows when: the next launch is one in its stead.
  void withdraw_trial() noexcept { withdrawn_.store(true, std::memory_order_release); }

 private:
  Choice decide(std::uint32_t launch) noexcept;
  Choice try_again(std::uint32_t launch);
  /// `all`: so far; those beyond known_ are meant.
  bool too_many(std::uint32_t all, std::uint32_t launches) const;
  void go_exact(std::uint32_t launch, std::uint32_t stay);

  const LaunchReport* report_;
  const double limit_;
  std::atomic<std::uint32_t> launches_ = 0;
  std::atomic<bool> exact_ = false, withdrawn_ = false;
  std::atomic_flag busy_;  // whoever finds it set does as was decided last

  // Guarded by busy_.
  LaunchReport known_;  // what has been judged
  std::uint32_t stay_ = kShortStay;
  std::uint32_t next_trial_ = 0, trial_ = 0;  // numbers of launches
  bool trying_ = false;                       // trial_ was chosen, its failures are not all known
};

}  // namespace attune::runtime
