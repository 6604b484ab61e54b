// Where the elements of matrix operands lie: wgmma's descriptors of shared memory, and the registers of fragments.
//
// In bytes all types have the same layouts. A row of A or column of B that one instruction takes has 32 bytes along K
// (16 for the small mma shapes), and a core matrix is 8 rows of 16 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/exec/tensor_map.h"

namespace attune::emulator {

constexpr std::uint32_t kWgmmaRows = 64;
constexpr std::uint32_t kWgmmaKBytes = 32;

/// A wgmma operand in shared memory.
struct MatrixDescriptor {
  std::uint32_t start = 0;    ///< shared address
  std::uint32_t leading = 0;  ///< byte offset, as the layouts below use it
  std::uint32_t stride = 0;
  std::uint32_t base_offset = 0;  ///< rows that the swizzle's pattern is shifted by
  Swizzle swizzle = Swizzle::none;
  bool reserved_bits = false;  ///< bits are set that must be zero
};
MatrixDescriptor decode_descriptor(std::uint64_t bits);

/// Shared address of 16 bytes of an operand. K-major: row `row` (of M or N), bytes 16 `half` to 16 `half` + 15 along K.
std::uint32_t k_major_chunk(const MatrixDescriptor& descriptor, std::uint32_t row, std::uint32_t half);
/// MN-major, types of 16 bits: the elements 8 `chunk` to 8 `chunk` + 7 along M or N, at place `k` of K.
std::uint32_t mn_major_chunk(const MatrixDescriptor& descriptor, std::uint32_t chunk, std::uint32_t k);

/// Addresses of all chunks of rows `first` to `first` + `rows` - 1 of M or N, in no particular order.
void operand_chunks(const MatrixDescriptor& descriptor, bool mn_major, std::uint32_t first, std::uint32_t rows,
                    std::vector<std::uint32_t>* addresses);

/// The row in a 16-row (or 8-row) fragment and the byte along K that a lane's register of A begins with; registers hold
/// 4 bytes.
struct FragmentPlace {
  std::uint32_t row, byte;
};
constexpr FragmentPlace a_fragment(std::uint32_t lane, std::uint32_t index, std::uint32_t rows) {
  const std::uint32_t group = lane / 4, within = lane % 4 * 4;
  if (rows == 8) return {group, within + 16 * index};
  return {group + 8 * (index & 1), within + 16 * (index >> 1)};
}
/// The same of B: its column and the byte along K.
constexpr FragmentPlace b_fragment(std::uint32_t lane, std::uint32_t index) {
  return {lane / 4, lane % 4 * 4 + 16 * index};
}
/// Row and first column of an accumulator register that holds one 32-bit element, or two fp16 elements of a row.
/// wgmma's accumulators continue this to the right, 8 columns at a time, and each warp has the next 16 rows.
struct AccumulatorPlace {
  std::uint32_t row, column;
};
constexpr AccumulatorPlace accumulator_fragment(std::uint32_t lane, std::uint32_t index, bool half,
                                                std::uint32_t rows) {
  const std::uint32_t row = lane / 4, column = lane % 4 * 2;
  const std::uint32_t per_tile = (rows == 8 ? 2u : 4u) / (half ? 2u : 1u);
  const std::uint32_t tile = index / per_tile, within = index % per_tile;
  if (half) return {row + 8 * within, tile * 8 + column};
  return {row + 8 * (within >> 1), tile * 8 + column + (within & 1)};
}

}  // namespace attune::emulator
