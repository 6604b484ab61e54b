#include "runtime/emulator/exec/matrix_layout.h"

namespace attune::emulator {
namespace {

constexpr std::uint32_t kAddressMask = 0x3FFFF;  ///< descriptors reach 256 KiB

/// Applies the swizzle as wgmma does: by address bits, from where the pattern begins.
std::uint32_t place(const MatrixDescriptor& d, std::uint32_t offset) {
  const std::uint32_t address = (d.start + offset) & kAddressMask;
  if (d.swizzle == Swizzle::none) return address;
  const std::uint32_t shift = d.base_offset << 7;
  const std::uint32_t pattern = (address - shift) & kAddressMask;
  return address ^ (swizzled(pattern, d.swizzle) ^ pattern);
}

}  // namespace

MatrixDescriptor decode_descriptor(std::uint64_t bits) {
  constexpr std::uint64_t kReserved = 0x3FF1C000C000C000;
  const auto field = [&](int at) { return static_cast<std::uint32_t>(bits >> at & 0x3FFF) << 4; };
  MatrixDescriptor d;
  d.start = field(0);
  d.leading = field(16);
  d.stride = field(32);
  d.base_offset = static_cast<std::uint32_t>(bits >> 49 & 7);
  constexpr Swizzle kModes[] = {Swizzle::none, Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32};
  d.swizzle = kModes[bits >> 62];
  d.reserved_bits = (bits & kReserved) != 0;
  return d;
}

std::uint32_t k_major_chunk(const MatrixDescriptor& d, std::uint32_t row, std::uint32_t half) {
  const std::uint32_t span = swizzle_bytes(d.swizzle);
  if (span == 0) return place(d, row / 8 * d.stride + row % 8 * 16 + half * d.leading);
  return place(d, row / 8 * d.stride + row % 8 * span + half * 16);
}

std::uint32_t mn_major_chunk(const MatrixDescriptor& d, std::uint32_t chunk, std::uint32_t k) {
  const std::uint32_t span = swizzle_bytes(d.swizzle);
  if (span == 0) return place(d, chunk * d.stride + k / 8 * d.leading + k % 8 * 16);
  const std::uint32_t chunks = span / 16;  // of one swizzled row
  return place(d, chunk / chunks * d.leading + chunk % chunks * 16 + k / 8 * d.stride + k % 8 * span);
}

void operand_chunks(const MatrixDescriptor& descriptor, bool mn_major, std::uint32_t first, std::uint32_t rows,
                    std::vector<std::uint32_t>* addresses) {
  addresses->clear();
  if (mn_major) {
    for (std::uint32_t k = 0; k < kWgmmaKBytes / 2; ++k) {
      for (std::uint32_t chunk = first / 8; chunk < (first + rows) / 8; ++chunk) {
        addresses->push_back(mn_major_chunk(descriptor, chunk, k));
      }
    }
    return;
  }
  for (std::uint32_t row = first; row < first + rows; ++row) {
    for (std::uint32_t half = 0; half < 2; ++half) addresses->push_back(k_major_chunk(descriptor, row, half));
  }
}

}  // namespace attune::emulator
