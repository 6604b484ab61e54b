// Vector clocks over the agents of a launch: what has happened before what.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace attune::emulator {

/// Identity of an agent: block serial number in the launch, and index in the block (threads first, then asynchronous
/// agents as they are made).
struct Agent {
  std::uint32_t block = 0;
  std::uint32_t index = 0;
  bool operator==(const Agent&) const = default;
};

/// Up to which epoch each agent is known; 0: not at all. Dense for each block that it has heard of. Copies share their
/// epochs until one of them changes, and remember what they came from, because the threads of a block mostly know the
/// same: a barrier of a whole block costs one copy.
class Clock {
 public:
  std::uint32_t at(Agent agent) const {
    if (parts_.empty()) return 0;
    const Part* part = parts_.front().block == agent.block ? &parts_.front() : find(agent.block);
    return part && agent.index < part->epochs->size() ? (*part->epochs)[agent.index] : 0;
  }
  void set(Agent agent, std::uint32_t epoch);  ///< to the maximum of both
  void join(const Clock& other);
  void clear() { parts_.clear(); }
  bool empty() const { return parts_.empty(); }
  /// Whether both hold the very same epochs in memory: a quick test that may miss equality.
  bool shares(const Clock& other) const;

 private:
  using Epochs = std::shared_ptr<std::vector<std::uint32_t>>;  ///< constant while shared
  struct Part {
    std::uint32_t block = 0;
    Epochs epochs;
    Epochs base;  ///< something that `epochs` is known to include, or null
  };
  const Part* find(std::uint32_t block) const;
  std::vector<Part>::iterator place(std::uint32_t block);
  static void join(Part* part, const Part& other);

  std::vector<Part> parts_;  ///< ordered by block
};

/// What fence.proxy.async may name: each form announces the writes to its state space alone.
enum class ProxySpace : std::uint8_t { global, shared, count };
constexpr std::size_t kProxySpaces = static_cast<std::size_t>(ProxySpace::count);

/// What a releasing operation passes on and an acquiring one takes: kept by every barrier, mbarrier phase and atomic
/// location.
struct SyncState {
  Clock happened;                                 ///< complete before
  std::array<Clock, kProxySpaces> async_visible;  ///< of that, generic writes fenced to the async proxy
  void join(const SyncState& other) {
    happened.join(other.happened);
    for (std::size_t i = 0; i < kProxySpaces; ++i) async_visible[i].join(other.async_visible[i]);
  }
  void clear() {
    happened.clear();
    for (Clock& clock : async_visible) clock.clear();
  }
};

}  // namespace attune::emulator
