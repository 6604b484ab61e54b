// What atomic operations compute; bulk reductions compute the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/emulator/exec/intrinsics.h"

namespace attune::emulator {

std::size_t atomic_element_bytes(AtomicType type);

/// The new value of one element of up to 64 bits. `flush`: subnormal floats count as zero. `swap` is for cas.
std::uint64_t atomic_result(AtomicOp op, AtomicType type, bool flush, std::uint64_t old, std::uint64_t value,
                            std::uint64_t swap = 0);

}  // namespace attune::emulator
