// setmaxnreg: the pool of registers that the warpgroups of a block share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attune::emulator {

struct Block;

/// A warpgroup that waits in setmaxnreg.inc.
struct RegisterRequest {
  std::uint32_t warpgroup = 0;
  std::uint32_t count = 0;  ///< a thread
  std::uint32_t site = 0;
};

struct RegisterPool {
  std::uint32_t free = 0;
  std::vector<RegisterRequest> waiting;  ///< served in this order
};

/// "needs 17408 registers more, 8192 are free": why a request was not granted.
std::string register_shortage(const Block& block, const RegisterRequest& request);

}  // namespace attune::emulator
