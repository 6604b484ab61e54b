// Addresses: what a kernel may touch, and where it lies in the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/emulator/check/shadow.h"
#include "runtime/emulator/exec/intrinsics.h"

namespace attune::emulator {

struct Block;
struct ThreadContext;

/// A range of the process's memory that kernels may touch: an allocation, a binding, a variable of the module or the
/// parameters.
struct MemoryRange {
  std::uint8_t* base = nullptr;
  std::size_t bytes = 0;
  bool writable = true;
  bool constant = false;           ///< .const of the module
  ShadowRegion* region = nullptr;  ///< null where nothing is checked but bounds
  std::string name;                ///< "allocation of 4096 bytes", "variable kTable"
};

/// All of a launch, by address.
class MemoryRanges {
 public:
  void add(MemoryRange range);
  void sort();
  /// The range that holds all these bytes, or null.
  const MemoryRange* find(std::uint64_t address, std::size_t bytes) const;
  /// "16 bytes past the end of allocation of 4096 bytes", for findings.
  std::string describe(std::uint64_t address, std::size_t bytes) const;

 private:
  std::vector<MemoryRange> ranges_;
  mutable std::size_t last_ = 0;
};

/// Where a range of addresses lies.
struct Location {
  std::uint8_t* host = nullptr;
  ShadowRegion* region = nullptr;  ///< null where checks are off, for local memory and for parameters
  std::size_t offset = 0;          ///< in the region; of shared memory: the shared address
  Block* block = nullptr;          ///< whose shared memory it is; null for everything else
  bool local = false;              ///< the thread's own
};

/// Finds `bytes` bytes at an address in its space; they must be all inside one range, and writable if so asked. False
/// after an out_of_bounds finding, which `what` (a literal, "source of cp.async") begins.
bool locate(ThreadContext* context, AddressSpace space, std::uint64_t address, std::size_t bytes, AccessKind kind,
            const char* what, std::uint32_t site, Location* location);
/// A misaligned finding, unless the address is a multiple of `alignment`.
bool check_alignment(ThreadContext* context, std::uint64_t address, std::size_t alignment, const char* what,
                     std::uint32_t site);
/// The block and offset of a shared or shared::cluster address; null if there is no such block in the cluster.
Block* shared_block(const ThreadContext* context, std::uint64_t address, std::uint32_t* offset);
/// To be called before ordinary or asynchronous writes to shared memory: finds mbarriers that they overwrite.
void check_mbarrier_overwrite(ThreadContext* context, const Location& location, std::size_t bytes, std::uint32_t site);

/// What a thread does to memory by an ordinary or atomic instruction.
struct AccessTraits {
  bool reads = false, writes = false;
  Semantics semantics = Semantics::weak;
  std::uint32_t load = 0;  ///< Access::load
};
/// Tells the checker of a thread's own generic-proxy access, as loads, stores and atomics make it.
void check_access(ThreadContext* context, const Location& location, std::size_t bytes, const AccessTraits& traits,
                  std::uint32_t site);

/// The thread has waited for its loads from shared memory.
void finish_loads(ThreadContext* context);

}  // namespace attune::emulator
