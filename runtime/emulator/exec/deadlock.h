// Who waits for what, when nobody can go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

struct LaunchPlan;

/// Threads of one block that wait for the same thing at the same instruction.
struct WaitGroup {
  Block* block;
  Wait wait;
  std::vector<std::uint32_t> threads;
};
/// In the order of the blocks and of their first threads.
std::vector<WaitGroup> waiting_groups(const std::vector<Block*>& blocks);
/// "no thread can go on: threads 0-127 (warps 0-3) wait at named barrier 1 ..." `not_started`: blocks of the grid.
std::string deadlock_text(const LaunchPlan& plan, const std::vector<Block*>& blocks,
                          const std::vector<WaitGroup>& groups, std::uint64_t not_started);

}  // namespace attune::emulator
