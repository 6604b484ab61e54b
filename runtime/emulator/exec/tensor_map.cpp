#include "runtime/emulator/exec/tensor_map.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "runtime/emulator/exec/formats.h"

namespace attune::emulator {
namespace {

constexpr std::uint64_t kMaximalDim = std::uint64_t{1} << 32;
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
constexpr std::uint32_t kMaximalBox = 256, kMaximalElementStride = 8;
constexpr std::uint64_t kMagic = 0x70616d5f65746c75;

/// What encode_tensor_map() writes. `dims` holds extents less one, which fit in 32 bits.
struct Encoded {
  std::uint64_t magic;
  std::uint64_t base;
  std::uint64_t strides[4];
  std::uint32_t dims[5];
  std::uint16_t box[5];
  std::uint8_t element_strides[5];
  std::uint8_t type, rank, swizzle, fill;
  std::uint8_t unused[33];
  std::uint64_t checksum;  ///< of the others but the base
};
static_assert(sizeof(Encoded) == sizeof(TensorMap));

std::uint64_t checksum(const Encoded& map) {
  Encoded copy = map;
  copy.base = 0;
  copy.checksum = 0;
  const auto words = std::bit_cast<std::array<std::uint64_t, sizeof(Encoded) / 8>>(copy);
  std::uint64_t sum = 0xCBF29CE484222325;
  for (std::uint64_t word : words) sum = (sum ^ word) * 0x100000001B3;
  return sum;
}

void check_base(const void* base) {
  if (reinterpret_cast<std::uintptr_t>(base) % kChunkBytes != 0 || base == nullptr) {
    fail(ErrorCode::invalid_argument, "base: address {} (allowed: non-null, aligned to {} bytes)", base, kChunkBytes);
  }
}

void check(const TensorMapDescription& d) {
  if (d.rank < 1 || d.rank > 5) fail(ErrorCode::invalid_argument, "rank: {} (allowed: 1 to 5)", d.rank);
  if (d.type > TensorType::tf32_ftz) {
    fail(ErrorCode::invalid_argument, "type: {} is no TensorType", static_cast<int>(d.type));
  }
  check_base(d.base);
  if (d.interleave != Interleave::none) {
    fail(ErrorCode::unsupported, "interleave: {}-byte interleaved layouts are not emulated (allowed: none)",
         d.interleave == Interleave::bytes16 ? 16 : 32);
  }
  const auto rank = static_cast<std::size_t>(d.rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (d.dims[i] < 1 || d.dims[i] > kMaximalDim) {
      fail(ErrorCode::invalid_argument, "dims[{}]: {} (allowed: 1 to 2^32)", i, d.dims[i]);
    }
    if (d.box[i] < 1 || d.box[i] > kMaximalBox) {
      fail(ErrorCode::invalid_argument, "box[{}]: {} (allowed: 1 to {})", i, d.box[i], kMaximalBox);
    }
    if (d.element_strides[i] < 1 || d.element_strides[i] > kMaximalElementStride) {
      fail(ErrorCode::invalid_argument, "element_strides[{}]: {} (allowed: 1 to {})", i, d.element_strides[i],
           kMaximalElementStride);
    }
  }
  for (std::size_t i = 0; i + 1 < rank; ++i) {
    if (d.strides[i] % kChunkBytes != 0 || d.strides[i] >= kStrideLimit) {
      fail(ErrorCode::invalid_argument, "strides[{}]: {} bytes (allowed: multiples of {} below 2^40)", i, d.strides[i],
           kChunkBytes);
    }
  }
  const std::uint32_t row = d.box[0] * element_bytes(d.type);
  if (row % kChunkBytes != 0) {
    fail(ErrorCode::invalid_argument, "box[0]: {} elements of {} are {} bytes (allowed: multiples of {})", d.box[0],
         tensor_type_name(d.type), row, kChunkBytes);
  }
  if (d.swizzle > Swizzle::bytes128) {
    fail(ErrorCode::invalid_argument, "swizzle: {} is no Swizzle", static_cast<int>(d.swizzle));
  }
  const std::uint32_t span = swizzle_bytes(d.swizzle);
  if (span != 0 && row > span) {
    fail(ErrorCode::invalid_argument, "box[0]: {} elements of {} are {} bytes (allowed with swizzle {}: at most that)",
         d.box[0], tensor_type_name(d.type), row, span);
  }
  if (d.fill > OutOfBoundsFill::nan) {
    fail(ErrorCode::invalid_argument, "fill: {} is no OutOfBoundsFill", static_cast<int>(d.fill));
  }
  if (d.fill == OutOfBoundsFill::nan && !is_floating(d.type)) {
    fail(ErrorCode::invalid_argument, "fill: nan with elements of {} (allowed: floating-point types)",
         tensor_type_name(d.type));
  }
}

/// Writes NaNs to whole elements of any type.
void fill_nan(std::uint8_t* destination, std::uint32_t bytes) {
  // 0x7FF7 for every 16 bits is a NaN of all floating-point types.
  constexpr std::uint16_t kPattern = 0x7FF7;
  for (std::uint32_t at = 0; at < bytes; at += sizeof kPattern) {
    std::memcpy(destination + at, &kPattern, sizeof kPattern);
  }
}

/// What a load does to elements on their way: tensor maps of tf32 round to nearest even. The _ftz types load as the
/// others do, subnormals among them.
void convert(std::uint8_t* row, std::uint32_t bytes, TensorType type) {
  if (type != TensorType::tf32 && type != TensorType::tf32_ftz) return;
  for (std::uint32_t at = 0; at < bytes; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, row + at, 4);
    word = float_to_tf32(std::bit_cast<float>(word), Rounding::nearest_even);
    std::memcpy(row + at, &word, 4);
  }
}

}  // namespace

std::uint32_t element_bytes(TensorType type) noexcept {
  switch (type) {
    case TensorType::u8: return 1;
    case TensorType::u16:
    case TensorType::f16:
    case TensorType::bf16: return 2;
    case TensorType::u32:
    case TensorType::s32:
    case TensorType::f32:
    case TensorType::f32_ftz:
    case TensorType::tf32:
    case TensorType::tf32_ftz: return 4;
    case TensorType::u64:
    case TensorType::s64:
    case TensorType::f64: return 8;
  }
  return 1;
}

bool is_floating(TensorType type) noexcept {
  switch (type) {
    case TensorType::f16:
    case TensorType::f32:
    case TensorType::f64:
    case TensorType::bf16:
    case TensorType::f32_ftz:
    case TensorType::tf32:
    case TensorType::tf32_ftz: return true;
    default: return false;
  }
}

const char* tensor_type_name(TensorType type) noexcept {
  constexpr const char* kNames[] = {"u8",  "u16", "u32",  "s32",     "u64",  "s64",     "f16",
                                    "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz"};
  return type <= TensorType::tf32_ftz ? kNames[static_cast<int>(type)] : "?";
}

std::uint32_t swizzle_bytes(Swizzle swizzle) noexcept {
  return swizzle == Swizzle::none ? 0 : 16u << static_cast<unsigned>(swizzle);
}

TensorMap encode_tensor_map(const TensorMapDescription& d) {
  check(d);
  Encoded e{};
  e.magic = kMagic;
  e.base = reinterpret_cast<std::uintptr_t>(d.base);
  e.type = static_cast<std::uint8_t>(d.type);
  e.rank = static_cast<std::uint8_t>(d.rank);
  e.swizzle = static_cast<std::uint8_t>(d.swizzle);
  e.fill = static_cast<std::uint8_t>(d.fill);
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.rank); ++i) {
    e.dims[i] = static_cast<std::uint32_t>(d.dims[i] - 1);
    e.box[i] = static_cast<std::uint16_t>(d.box[i]);
    e.element_strides[i] = static_cast<std::uint8_t>(d.element_strides[i]);
    if (i > 0) e.strides[i - 1] = d.strides[i - 1];
  }
  e.checksum = checksum(e);
  TensorMap map;
  std::memcpy(map.opaque.data(), &e, sizeof e);
  return map;
}

void replace_tensor_map_base(TensorMap* map, const void* base) {
  if (map == nullptr || !decode_tensor_map(map)) {
    fail(ErrorCode::invalid_argument, "map: not the result of encode_tensor_map()");
  }
  check_base(base);
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(base));
  std::memcpy(reinterpret_cast<std::uint8_t*>(map->opaque.data()) + offsetof(Encoded, base), &address, sizeof address);
}

std::optional<TensorMapDescription> decode_tensor_map(const void* map) noexcept {
  Encoded e;
  std::memcpy(&e, map, sizeof e);
  if (e.magic != kMagic || e.checksum != checksum(e)) return std::nullopt;
  TensorMapDescription d;
  d.type = static_cast<TensorType>(e.type);
  d.rank = e.rank;
  d.base = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(e.base));
  d.swizzle = static_cast<Swizzle>(e.swizzle);
  d.fill = static_cast<OutOfBoundsFill>(e.fill);
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.rank); ++i) {
    d.dims[i] = std::uint64_t{e.dims[i]} + 1;
    d.box[i] = e.box[i];
    d.element_strides[i] = e.element_strides[i];
    if (i > 0) d.strides[i - 1] = e.strides[i - 1];
  }
  return d;
}

TensorBox::TensorBox(const TensorMapDescription& map, const std::array<std::int32_t, 5>& coordinates)
    : map_(map), coordinates_(coordinates), element_bytes_(emulator::element_bytes(map.type)) {
  counts_.fill(1);
  counts_[0] = map.box[0];  // without interleaving the innermost element stride does not count
  std::uint64_t rows = 1;   // up to 2^32
  for (std::size_t i = 1; i < static_cast<std::size_t>(map.rank); ++i) {
    counts_[i] = (map.box[i] + map.element_strides[i] - 1) / map.element_strides[i];
    rows *= counts_[i];
  }
  row_bytes_ = counts_[0] * element_bytes_;
  pitch_ = std::max(row_bytes_, swizzle_bytes(map.swizzle));
  // A box that no shared memory holds is cut to one that none holds either, so that no size of it wraps.
  rows_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(rows, (std::uint64_t{1} << 30) / pitch_));
}

bool TensorBox::starts_on_chunk() const { return std::int64_t{coordinates_[0]} * element_bytes_ % kChunkBytes == 0; }

BoxRow TensorBox::row(std::uint32_t index) const {
  BoxRow row{.shared = index * pitch_, .address = 0, .skipped = 0, .bytes = 0};
  auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(map_.base));
  for (std::size_t i = 1; i < static_cast<std::size_t>(map_.rank); ++i) {
    const std::uint32_t step = index % counts_[i];
    index /= counts_[i];
    const std::int64_t at = std::int64_t{coordinates_[i]} + std::int64_t{step} * map_.element_strides[i];
    if (at < 0 || static_cast<std::uint64_t>(at) >= map_.dims[i]) return row;
    address += static_cast<std::uint64_t>(at) * map_.strides[i - 1];
  }
  const std::int64_t first = std::max<std::int64_t>(coordinates_[0], 0);
  const std::int64_t end =
      std::min<std::int64_t>(std::int64_t{coordinates_[0]} + counts_[0], static_cast<std::int64_t>(map_.dims[0]));
  if (first >= end) return row;
  row.address = address + static_cast<std::uint64_t>(first) * element_bytes_;
  row.skipped = static_cast<std::uint32_t>(first - coordinates_[0]) * element_bytes_;
  row.bytes = static_cast<std::uint32_t>(end - first) * element_bytes_;
  return row;
}

void load_box(const TensorBox& box, std::uint8_t* shared, std::uint32_t offset, const GlobalRead& read) {
  const Swizzle swizzle = box.map().swizzle;
  std::array<std::uint8_t, kMaximalBox * 8> line;
  for (std::uint32_t index = 0; index < box.rows(); ++index) {
    const BoxRow row = box.row(index);
    const bool whole = row.bytes == box.row_bytes();
    const std::uint8_t* source = row.bytes == 0 ? nullptr : read(row.address, row.bytes);
    if (!whole) {
      if (box.map().fill == OutOfBoundsFill::nan) {
        fill_nan(line.data(), box.row_bytes());
      } else {
        std::memset(line.data(), 0, box.row_bytes());
      }
    }
    if (source != nullptr) {
      std::memcpy(line.data() + row.skipped, source, row.bytes);
      convert(line.data() + row.skipped, row.bytes, box.map().type);
    } else if (row.bytes != 0) {
      continue;
    }
    const std::uint32_t start = offset + row.shared;
    for (std::uint32_t at = 0; at < box.row_bytes(); at += kChunkBytes) {
      std::memcpy(shared + swizzled(start + at, swizzle), line.data() + at, kChunkBytes);
    }
  }
}

void store_box(const TensorBox& box, const std::uint8_t* shared, std::uint32_t offset, const GlobalWrite& write,
               const Combine& combine) {
  const Swizzle swizzle = box.map().swizzle;
  std::array<std::uint8_t, kMaximalBox * 8> line;
  for (std::uint32_t index = 0; index < box.rows(); ++index) {
    const BoxRow row = box.row(index);
    if (row.bytes == 0) continue;
    std::uint8_t* destination = write(row.address, row.bytes);
    if (destination == nullptr) continue;
    const std::uint32_t start = offset + row.shared;
    const std::uint32_t end = row.skipped + row.bytes;
    for (std::uint32_t at = row.skipped / kChunkBytes * kChunkBytes; at < end; at += kChunkBytes) {
      std::memcpy(line.data() + at, shared + swizzled(start + at, swizzle), kChunkBytes);
    }
    if (combine) {
      combine(destination, line.data() + row.skipped, row.bytes);
    } else {
      std::memcpy(destination, line.data() + row.skipped, row.bytes);
    }
  }
}

}  // namespace attune::emulator
