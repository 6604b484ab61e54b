// Tensor maps as kernels hold them, and the geometry of their boxes: which bytes of global memory correspond to which
// bytes of shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/emulator/include/attune/emulator.h"

namespace attune::emulator {

/// A kernel's map must lie at a multiple of this.
constexpr std::uint64_t kTensorMapAlignment = 64;
/// Global rows and shared boxes of tensor copies: 16 bytes are one unit that swizzles move as a whole.
constexpr std::uint32_t kChunkBytes = 16;

std::uint32_t element_bytes(TensorType type) noexcept;
bool is_floating(TensorType type) noexcept;
const char* tensor_type_name(TensorType type) noexcept;
/// 0, 32, 64 or 128: the span within which chunks are permuted.
std::uint32_t swizzle_bytes(Swizzle swizzle) noexcept;

/// What encode_tensor_map() was given; nothing for bytes that it did not write.
std::optional<TensorMapDescription> decode_tensor_map(const void* map) noexcept;

/// The shared-memory address of a chunk in a swizzled box: bits 4 and up are permuted by bits 7 and up.
constexpr std::uint32_t swizzled(std::uint32_t address, Swizzle swizzle) noexcept {
  switch (swizzle) {
    case Swizzle::none: return address;
    case Swizzle::bytes32: return address ^ (address >> 3 & 0x10);
    case Swizzle::bytes64: return address ^ (address >> 3 & 0x30);
    case Swizzle::bytes128: return address ^ (address >> 3 & 0x70);
  }
  return address;
}

/// One row of a box, along the innermost dimension.
struct BoxRow {
  std::uint32_t shared;   ///< offset of its first byte from the start of the box, before swizzling
  std::uint64_t address;  ///< in global memory, of its first byte that lies in the tensor
  std::uint32_t skipped;  ///< bytes of the row before that: outside the tensor
  std::uint32_t bytes;    ///< inside the tensor; 0: the row is outside altogether
};

/// A box of a map at some coordinates.
class TensorBox {
 public:
  TensorBox(const TensorMapDescription& map, const std::array<std::int32_t, 5>& coordinates);

  const TensorMapDescription& map() const { return map_; }
  std::uint32_t element_bytes() const { return element_bytes_; }
  /// Bytes of the box that hold elements: what an mbarrier is credited with, outside parts included.
  std::uint32_t bytes() const { return row_bytes_ * rows_; }
  /// Bytes of shared memory from the first to behind the last: rows shorter than the swizzle's span are padded to it.
  std::uint32_t span() const { return pitch_ * rows_; }
  std::uint32_t row_bytes() const { return row_bytes_; }
  std::uint32_t pitch() const { return pitch_; }
  std::uint32_t rows() const { return rows_; }
  /// The GPU refuses others: rows begin at a multiple of 16 bytes from the base, also where that is outside the tensor.
  bool starts_on_chunk() const;
  BoxRow row(std::uint32_t index) const;

 private:
  TensorMapDescription map_;
  std::array<std::int32_t, 5> coordinates_;
  std::array<std::uint32_t, 5> counts_{};  ///< elements of the box in each dimension
  std::uint32_t element_bytes_ = 0, row_bytes_ = 0, pitch_ = 0, rows_ = 1;
};

/// Gives the memory of `bytes` global bytes, or null to leave them out: what is checked there is the caller's business.
using GlobalRead = std::function<const std::uint8_t*(std::uint64_t address, std::uint32_t bytes)>;
using GlobalWrite = std::function<std::uint8_t*(std::uint64_t address, std::uint32_t bytes)>;
/// Combines source elements with what stands at the destination.
using Combine = std::function<void(std::uint8_t* destination, const std::uint8_t* source, std::uint32_t bytes)>;

/// Fills the box in shared memory; `shared` is the memory at shared address 0 and `offset` the address where the box
/// starts (swizzles depend on the address).
void load_box(const TensorBox& box, std::uint8_t* shared, std::uint32_t offset, const GlobalRead& read);
/// Writes the part of the box that lies in the tensor.
void store_box(const TensorBox& box, const std::uint8_t* shared, std::uint32_t offset, const GlobalWrite& write,
               const Combine& combine = {});

}  // namespace attune::emulator
