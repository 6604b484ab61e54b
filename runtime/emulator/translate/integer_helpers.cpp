// math_helpers.h: integers.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

constexpr std::uint64_t low_mask(std::uint32_t bits) {
  return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
}

/// The four byte numbers, lowest first, that a selector 0..3 of each special prmt mode takes.
constexpr std::array<std::array<std::array<std::uint8_t, 4>, 4>, 6> kPermutations = {{
    {{{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}}},  // f4e
    {{{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}}},  // b4e
    {{{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}},  // rc8
    {{{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}}},  // ecl
    {{{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}}},  // ecr
    {{{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}},  // rc16
}};

}  // namespace

extern "C" {

std::uint64_t att_udiv(std::uint64_t a, std::uint64_t b) { return b == 0 ? ~std::uint64_t{0} : a / b; }
std::uint64_t att_urem(std::uint64_t a, std::uint64_t b) { return b == 0 ? ~std::uint64_t{0} : a % b; }
// -1 is apart because the least integer overflows there.
std::int64_t att_sdiv(std::int64_t a, std::int64_t b) {
  if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));
  return b == 0 ? -1 : a / b;
}
std::int64_t att_srem(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;
  return b == 0 ? -1 : a % b;
}
std::uint64_t att_umulhi(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<UInt128>(a) * b >> 64);
}
std::int64_t att_smulhi(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<Int128>(a) * b >> 64);
}

std::uint32_t att_popc(std::uint64_t a) { return static_cast<std::uint32_t>(std::popcount(a)); }
std::uint32_t att_clz(std::uint64_t a, std::uint32_t bits) {
  return static_cast<std::uint32_t>(std::countl_zero(a)) - (64 - bits);
}

std::uint32_t att_bfind(std::int64_t a, std::uint32_t bits, std::uint32_t is_signed, std::uint32_t shift_amount) {
  const auto value = static_cast<std::uint64_t>(is_signed && a < 0 ? ~a : a);
  if (value == 0) return ~0u;
  const auto position = static_cast<std::uint32_t>(std::bit_width(value)) - 1;
  return shift_amount ? bits - 1 - position : position;
}

std::uint32_t att_fns(std::uint32_t mask, std::uint32_t base, std::int32_t offset) {
  if (base > 31) return ~0u;
  if (offset == 0) return mask >> base & 1 ? base : ~0u;
  std::int64_t left = offset > 0 ? std::int64_t{offset} : -std::int64_t{offset};
  const int step = offset > 0 ? 1 : -1;
  for (int position = static_cast<int>(base); position >= 0 && position < 32; position += step) {
    if ((mask >> position & 1) && --left == 0) return static_cast<std::uint32_t>(position);
  }
  return ~0u;
}

std::uint64_t att_brev(std::uint64_t a, std::uint32_t bits) {
  std::uint64_t result = 0;
  for (std::uint32_t i = 0; i < bits; ++i) result |= (a >> i & 1) << (bits - 1 - i);
  return result;
}

std::uint64_t att_bfe(std::uint64_t a, std::uint32_t position, std::uint32_t length, std::uint32_t bits,
                      std::uint32_t is_signed) {
  position &= 0xFF;
  length &= 0xFF;
  if (length == 0) return 0;
  const std::uint64_t field = position < bits ? a >> position : 0;
  const bool sign = is_signed && (a >> std::min(position + length - 1, bits - 1) & 1);
  const std::uint32_t taken = position < bits ? std::min(length, bits - position) : 0;
  return ((field & low_mask(taken)) | (sign ? ~low_mask(taken) : 0)) & low_mask(bits);
}

std::uint64_t att_bfi(std::uint64_t from, std::uint64_t into, std::uint32_t position, std::uint32_t length,
                      std::uint32_t bits) {
  position &= 0xFF;
  length &= 0xFF;
  if (position >= bits) return into;
  const std::uint64_t mask = low_mask(std::min(length, bits - position)) << position;
  return (into & ~mask) | (from << position & mask);
}

std::uint32_t att_szext(std::uint32_t a, std::uint32_t bits, std::uint32_t is_signed, std::uint32_t wrap) {
  const std::uint32_t width = bits & 31;
  if (bits >= 32 && !wrap) return a;
  const auto mask = static_cast<std::uint32_t>(low_mask(width));
  const bool sign = is_signed && width != 0 && (a >> (width - 1) & 1);
  return (a & mask) | (sign ? ~mask : 0);
}

std::uint32_t att_bmsk(std::uint32_t position, std::uint32_t length, std::uint32_t wrap) {
  if (!wrap && position >= 32) return 0;
  const std::uint32_t start = position & 31;
  const std::uint32_t count = !wrap && length >= 32 ? 32 : length & 31;
  return static_cast<std::uint32_t>(low_mask(count) << start);
}

std::uint32_t att_lop3(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t table) {
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

std::uint32_t att_prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector, std::uint32_t mode) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::uint32_t byte = 0;
    if (mode == static_cast<std::uint32_t>(PermuteMode::by_selector)) {
      const std::uint32_t choice = selector >> (4 * i) & 15;
      byte = static_cast<std::uint32_t>(bytes >> (8 * (choice & 7)) & 0xFF);
      if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
    } else {
      byte = static_cast<std::uint32_t>(bytes >> (8 * kPermutations[mode - 1][selector & 3][i]) & 0xFF);
    }
    result |= byte << (8 * i);
  }
  return result;
}

std::uint32_t att_dot(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t a_signed, std::uint32_t b_signed,
                      std::uint32_t halves) {
  const auto element = [](std::uint32_t word, std::uint32_t index, int width, bool is_signed) {
    const int shift = 32 - width;
    const std::uint32_t raised = word >> (static_cast<std::uint32_t>(width) * index) << shift;
    return is_signed ? static_cast<std::uint32_t>(static_cast<std::int32_t>(raised) >> shift) : raised >> shift;
  };
  const std::uint32_t first_byte = halves == 2 ? 2 : 0;
  std::uint32_t sum = c;
  for (std::uint32_t i = 0; i < (halves ? 2u : 4u); ++i) {
    sum += element(a, i, halves ? 16 : 8, a_signed) * element(b, first_byte + i, 8, b_signed);
  }
  return sum;
}

std::int64_t att_saturate_integer(std::int64_t a, std::uint32_t bits) {
  const std::int64_t high = static_cast<std::int64_t>(low_mask(bits - 1));
  return std::clamp(a, -high - 1, high);
}

std::uint32_t att_pack_saturated(std::int32_t a, std::int32_t b, std::uint32_t c, std::uint32_t bits,
                                 std::uint32_t is_signed) {
  const auto mask = static_cast<std::uint32_t>(low_mask(bits));
  const auto clamp = [&](std::int32_t value) {
    const std::int64_t high = is_signed ? mask >> 1 : mask;
    const std::int64_t low = is_signed ? -high - 1 : 0;
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, low, high)) & mask;
  };
  const std::uint32_t pair = clamp(a) << bits | clamp(b);
  return bits == 16 ? pair : c << (2 * bits) | pair;
}

}  // extern "C"

}  // namespace attune::emulator
