// Number formats that C++ lacks: fp16, bf16, e4m3, e5m2, tf32, to and from float and double. Conversions round once,
// from the exact value, and give the NaN patterns that the hardware gives.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace attune::emulator {

enum class Rounding : std::uint8_t {
  nearest_even,
  toward_zero,
  down,
  up,
  nearest_away,  ///< ties away from zero, as cvt.rna.tf32
};

/// What becomes of a value beyond the largest finite one.
enum class Overflow : std::uint8_t {
  ieee,  ///< infinity, or the largest finite value where the rounding mode says so; e4m3, which has no infinity: NaN
  saturate,  ///< .satfinite: the largest finite value, of infinities too; NaN stays NaN
};

/// A binary format with a sign bit, `exponent_bits` and `mantissa_bits`.
struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr int exponent_bits = 5, mantissa_bits = 10;
  static constexpr bool infinity =
      true;  ///< the largest exponent holds infinity and NaNs; else only its last pattern is NaN
  static constexpr Bits nan = 0x7FFF;
};
struct Bf16 {
  using Bits = std::uint16_t;
  static constexpr int exponent_bits = 8, mantissa_bits = 7;
  static constexpr bool infinity = true;
  static constexpr Bits nan = 0x7FFF;
};
struct E4m3 {
  using Bits = std::uint8_t;
  static constexpr int exponent_bits = 4, mantissa_bits = 3;
  static constexpr bool infinity = false;
  static constexpr Bits nan = 0x7F;
};
struct E5m2 {
  using Bits = std::uint8_t;
  static constexpr int exponent_bits = 5, mantissa_bits = 2;
  static constexpr bool infinity = true;
  static constexpr Bits nan = 0x7F;
};
struct Fp32 {
  using Bits = std::uint32_t;
  static constexpr int exponent_bits = 8, mantissa_bits = 23;
  static constexpr bool infinity = true;
  static constexpr Bits nan = 0x7FFFFFFF;
};

/// The exponent of the smallest normal number.
template <typename Format>
constexpr int min_exponent() {
  return 2 - (1 << (Format::exponent_bits - 1));
}

/// The magnitude of the largest finite number.
template <typename Format>
constexpr typename Format::Bits max_finite() {
  using Bits = typename Format::Bits;
  const unsigned exponent_mask = ((1u << Format::exponent_bits) - 1) << Format::mantissa_bits;
  return static_cast<Bits>(Format::infinity ? exponent_mask - 1 : Format::nan - 1u);
}

namespace formats_detail {

/// Rounds `value` / 2^shift to an integer; shift >= 1. `negative` is the sign of the number that value is the magnitude
/// of.
constexpr std::uint64_t shift_and_round(std::uint64_t value, int shift, Rounding rounding, bool negative) {
  const std::uint64_t kept = shift > 63 ? 0 : value >> shift;
  const std::uint64_t rest = shift > 63 ? value : value & ((std::uint64_t{1} << shift) - 1);
  if (rest == 0) return kept;
  // Where the shift exceeds 63 the rest is below half, as value has at most 53 bits.
  const std::uint64_t half = shift > 63 ? ~std::uint64_t{0} : std::uint64_t{1} << (shift - 1);
  bool increment = false;
  switch (rounding) {
    case Rounding::nearest_even: increment = rest > half || (rest == half && (kept & 1)); break;
    case Rounding::nearest_away: increment = rest >= half; break;
    case Rounding::toward_zero: break;
    case Rounding::down: increment = negative; break;
    case Rounding::up: increment = !negative; break;
  }
  return kept + (increment ? 1 : 0);
}

}  // namespace formats_detail

/// To a format no wider than float, from double (and so from float too) with one rounding.
template <typename Format>
constexpr typename Format::Bits encode(double value, Rounding rounding = Rounding::nearest_even,
                                       Overflow overflow = Overflow::ieee) {
  using Bits = typename Format::Bits;
  constexpr int kMantissa = Format::mantissa_bits;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const bool negative = bits >> 63;
  const auto sign = static_cast<Bits>(negative ? Bits{1} << (Format::exponent_bits + kMantissa) : 0);
  const int field = static_cast<int>(bits >> 52 & 0x7FF);
  std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFF;
  if (field == 0x7FF && mantissa != 0) return Format::nan;

  const bool is_infinite = field == 0x7FF;
  constexpr Bits kLargest = max_finite<Format>();
  std::uint64_t magnitude = std::uint64_t{kLargest} + 1;
  if (!is_infinite) {
    const int exponent = field == 0 ? -1022 : field - 1023;
    if (field != 0) mantissa |= std::uint64_t{1} << 52;
    const int minimum = min_exponent<Format>();
    const int dropped = 52 - kMantissa + (exponent < minimum ? minimum - exponent : 0);
    magnitude = formats_detail::shift_and_round(mantissa, dropped, rounding, negative);
    // The implicit bit of a normal number adds one to the exponent field; a carry out of the mantissa adds one more.
    if (exponent > minimum) magnitude += static_cast<std::uint64_t>(exponent - minimum) << kMantissa;
  }
  if (magnitude > kLargest) {
    if (overflow == Overflow::saturate) return static_cast<Bits>(sign | kLargest);
    const bool stays_finite =
        !is_infinite && (rounding == Rounding::toward_zero || (rounding == Rounding::down && !negative) ||
                         (rounding == Rounding::up && negative));
    if (stays_finite) return static_cast<Bits>(sign | kLargest);
    return static_cast<Bits>(sign | (kLargest + 1u));
  }
  return static_cast<Bits>(sign | static_cast<Bits>(magnitude));
}

/// Exact.
template <typename Format>
constexpr float decode(typename Format::Bits bits) {
  constexpr int kMantissa = Format::mantissa_bits;
  constexpr std::uint32_t kFieldMask = (1u << Format::exponent_bits) - 1;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits >> (Format::exponent_bits + kMantissa)) << 31;
  const std::uint32_t field = static_cast<std::uint32_t>(bits >> kMantissa) & kFieldMask;
  const std::uint32_t mantissa = bits & ((1u << kMantissa) - 1);
  const std::uint32_t magnitude = field << kMantissa | mantissa;
  if (magnitude > max_finite<Format>()) {
    const bool is_nan = !Format::infinity || mantissa != 0;
    return std::bit_cast<float>(is_nan ? 0x7FFFFFFFu : sign | 0x7F800000u);
  }
  if (field == 0) {  // zero or subnormal: mantissa times 2^(minimum - kMantissa), a normal float or a bf16 subnormal
    const float unit =
        std::bit_cast<float>(min_exponent<Format>() - kMantissa >= -126
                                 ? static_cast<std::uint32_t>(127 + min_exponent<Format>() - kMantissa) << 23
                                 : 1u << (149 + min_exponent<Format>() - kMantissa));
    const float value = static_cast<float>(mantissa) * unit;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  const std::uint32_t exponent = field + 126 + static_cast<std::uint32_t>(min_exponent<Format>());
  return std::bit_cast<float>(sign | exponent << 23 | mantissa << (23 - kMantissa));
}

inline float fp16_to_float(std::uint16_t bits) { return decode<Fp16>(bits); }
inline float e4m3_to_float(std::uint8_t bits) { return decode<E4m3>(bits); }
inline float e5m2_to_float(std::uint8_t bits) { return decode<E5m2>(bits); }
inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
/// What a matrix instruction sees of a 32-bit word: the lower 13 bits do not count.
inline float tf32_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits & 0xFFFFE000u); }

/// cvt to tf32: a float whose lower 13 mantissa bits are zero. Infinity where it overflows, or with `overflow` saturate
/// the largest finite one.
inline std::uint32_t float_to_tf32(float value, Rounding rounding = Rounding::nearest_away,
                                   Overflow overflow = Overflow::ieee) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  constexpr std::uint32_t kInfinity = 0x7F800000u, kLargest = 0x7F7FE000u;
  // .rna is made of integer instructions, which only clear the end of a NaN.
  if (magnitude > kInfinity) {
    return rounding == Rounding::nearest_away && overflow == Overflow::ieee ? bits & 0xFFFFE000u : Fp32::nan;
  }
  // Exponent and mantissa in one integer: a carry out of the mantissa is a step of the exponent.
  const auto rounded = static_cast<std::uint32_t>(
      magnitude == kInfinity ? kInfinity : formats_detail::shift_and_round(magnitude, 13, rounding, sign != 0) << 13);
  if (rounded >= kInfinity && overflow == Overflow::saturate) return sign | kLargest;
  return sign | rounded;
}

/// Toward zero to a float; beyond the largest one: infinity, as the matrix units do.
inline float truncate_to_float(double value) {
  const auto bits = encode<Fp32>(value, Rounding::toward_zero);
  const bool overflowed = (bits & 0x7FFFFFFFu) == max_finite<Fp32>() && (value >= 0x1p128 || value <= -0x1p128);
  return std::bit_cast<float>(overflowed ? bits + 1 : bits);
}

}  // namespace attune::emulator
