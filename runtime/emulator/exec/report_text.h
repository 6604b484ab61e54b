// Pieces of text for findings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attune::emulator {

/// "thread 5", "threads 128-255 (warps 4-7)", "threads 0-3, 7". Ascending; warps are named where they are whole.
std::string thread_ranges(const std::vector<std::uint32_t>& threads);

}  // namespace attune::emulator
