// The check of register slots. Between two wgmma instructions or calls the states of a thread's slots change only by
// its own writes, so translated code tests all that it touches until there at once, and comes here only if one is at
// fault.
#pragma once

#include <cstdint>
#include <vector>

namespace attune::emulator {

struct ThreadContext;

struct SlotAccess {
  std::uint16_t slot;
  bool write;
  std::uint32_t site;
};
using SlotAccesses = std::vector<SlotAccess>;  ///< in program order, one for each slot and kind

extern "C" void att_slot_hazards(ThreadContext* context, const SlotAccesses* accesses);

}  // namespace attune::emulator
