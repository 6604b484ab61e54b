// A place for one resident block: its threads with their stacks, its shared and local memory. Reused from block to
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/emulator/check/shadow.h"
#include "runtime/emulator/exec/fibre.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

struct LaunchPlan;

/// Memory of a fixed alignment, freed with its owner.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Throws Error(out_of_memory).
  AlignedBytes(std::size_t bytes, std::size_t alignment);

  std::uint8_t* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const;
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
};

class Resident {
 public:
  Resident(const LaunchPlan& plan, bool checks);

  Block& block() { return block_; }
  /// Prepares all threads to start with `body`, which gets the ThreadContext.
  void start(Grid* grid, Cluster* cluster, std::uint32_t serial, Dim3 index, std::uint32_t rank, Fibre::Body body);
  /// The block has ended.
  void clear();

 private:
  const LaunchPlan& plan_;
  bool checks_;
  std::uint32_t thread_count_;
  std::size_t slots_;        ///< of a thread
  std::size_t local_bytes_;  ///< of a thread, rounded up
  StackSlab stacks_;
  std::unique_ptr<ThreadContext[]> threads_;
  AlignedBytes shared_, local_, local_written_, slot_memory_, slot_states_;
  std::unique_ptr<ShadowRegion> shared_region_;
  Block block_;
};

}  // namespace attune::emulator
