// What a Checker holds.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/check/findings.h"
#include "runtime/emulator/check/loads.h"
#include "runtime/emulator/check/records.h"

namespace attune::emulator {

struct Checker::State {
  struct UnusedLoad {
    std::uint32_t site = 0, load = 0;
  };
  /// A thread's knowledge. Its own epochs stand beside it, so that the threads of a block can share one clock.
  struct Thread {
    SyncState known;
    std::uint32_t epoch = 1;
    std::array<std::uint32_t, kProxySpaces> visible{};  ///< own epochs that are visible to the async proxy
    SyncState at_fence;                                 ///< known at the last fence: what relaxed atomics release
    SyncState heard;                                    ///< read by relaxed atomics since: what the next fence acquires
    std::vector<UnusedLoad> unused;                     ///< one a site
  };
  struct Block {
    Dim3 index, dim;
    std::uint32_t threads = 0;
    std::vector<Thread> live;       ///< empty when the block has ended
    std::vector<AgentKind> agents;  ///< the asynchronous ones
  };

  State(const ProgramImage& image, int max_findings) : findings(image, max_findings) {}

  Block& block(std::uint32_t serial);
  const Block& block(std::uint32_t serial) const { return const_cast<State*>(this)->block(serial); }
  Thread& thread(Agent agent);
  const Thread& thread(Agent agent) const { return const_cast<State*>(this)->thread(agent); }
  bool is_thread(Agent agent) const { return agent.index < block(agent.block).threads; }
  ThreadPosition position(Agent agent) const;
  /// "thread (1,0,0) of block (0,0,0)", "wgmma group 3 of warpgroup 1 of block (0,0,0)".
  std::string name(const Record& record) const;
  void adopt(ShadowRegion* region, Checker* self);
  void collect_records();

  std::vector<Block> blocks;  ///< by serial number
  Records records;
  Loads loads;
  Findings findings;
  std::vector<ShadowRegion*> regions;  ///< whose cells refer to `records`
  /// The last learn(): the threads of a warpgroup learn the same from the same clock one after another.
  struct {
    Clock before, after;
    Agent async;
    std::uint32_t epoch = 0;
  } learned;
};

}  // namespace attune::emulator
