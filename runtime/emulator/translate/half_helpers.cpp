// math_helpers.h: f16 and bf16 arithmetic, and conversions. Both formats compute in double: sums are rounded to odd
// there (when inexact, to the neighbour whose last bit is 1), so that the final rounding sees the exact value.
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {
namespace {

__extension__ typedef __int128 Int128;

double sum_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double b_part = sum - a;
  const double error = (a - (sum - b_part)) + (b - b_part);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (error == 0 || (bits & 1)) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

template <typename Format>
constexpr typename Format::Bits kSign =
    static_cast<typename Format::Bits>(1u << (Format::exponent_bits + Format::mantissa_bits));

template <typename Format>
bool is_subnormal(typename Format::Bits bits) {
  return (bits >> Format::mantissa_bits & ((1u << Format::exponent_bits) - 1)) == 0;
}

template <typename Format>
typename Format::Bits flush(typename Format::Bits bits, bool ftz) {
  return ftz && is_subnormal<Format>(bits) ? static_cast<typename Format::Bits>(bits & kSign<Format>) : bits;
}

double minimum_or_maximum(double a, double b, std::uint32_t word, bool maximum) {
  return att_f64_min_max(
      a, b,
      min_max_word({.maximum = maximum, .propagate_nan = (word >> 13 & 1) != 0, .xorsign_abs = (word >> 14 & 1) != 0}));
}

template <typename Format>
std::uint16_t half_scalar(std::uint16_t a_bits, std::uint16_t b_bits, std::uint16_t c_bits, std::uint32_t word) {
  const bool ftz = word >> 10 & 1, saturate = word >> 11 & 1, relu = word >> 12 & 1;
  const auto op = static_cast<HalfOp>(word & 0xFF);
  a_bits = flush<Format>(a_bits, ftz);
  const double a = decode<Format>(a_bits);
  const double b = decode<Format>(flush<Format>(b_bits, ftz));
  const double c = decode<Format>(flush<Format>(c_bits, ftz));
  double result = 0;
  switch (op) {
    case HalfOp::add: result = a + b == 0 ? a + b : sum_to_odd(a, b); break;
    case HalfOp::sub: result = a - b == 0 ? a - b : sum_to_odd(a, -b); break;
    case HalfOp::mul: result = a * b; break;
    case HalfOp::fma: result = sum_to_odd(a * b, c); break;
    case HalfOp::min: result = minimum_or_maximum(a, b, word, false); break;
    case HalfOp::max: result = minimum_or_maximum(a, b, word, true); break;
    case HalfOp::neg: return static_cast<std::uint16_t>(a_bits ^ kSign<Format>);
    case HalfOp::abs: return static_cast<std::uint16_t>(a_bits & ~kSign<Format>);
    case HalfOp::ex2: result = std::exp2(a); break;
    case HalfOp::tanh: result = std::tanh(a); break;
  }
  if (saturate) result = att_f64_saturate(result);
  if (relu && result <= 0) result = 0;
  return flush<Format>(encode<Format>(result), ftz);
}

double to_odd(bool negative, std::uint64_t magnitude) {
  const int excess = 11 - std::countl_zero(magnitude);
  if (excess > 0) {
    const std::uint64_t rest = magnitude & ((std::uint64_t{1} << excess) - 1);
    magnitude = (magnitude - rest) | (rest != 0 ? std::uint64_t{1} << excess : 0);
  }
  const auto value = static_cast<double>(magnitude);
  return negative ? -value : value;
}

struct IntegerRange {
  int bits;
  bool is_signed;
};
IntegerRange range_of(Number number) {
  const auto index = static_cast<int>(number);
  return {8 << (index & 3), index >= static_cast<int>(Number::s8)};
}
bool is_integer(Number number) { return number <= Number::s64; }

/// `bits` to the low end of 64, extended as the type says.
std::uint64_t extend(std::uint64_t bits, IntegerRange range) {
  if (range.bits == 64) return bits;
  const int unused = 64 - range.bits;
  return range.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused)
                         : bits << unused >> unused;
}

std::uint64_t clamp(Int128 value, IntegerRange range) {
  const Int128 low = range.is_signed ? -(static_cast<Int128>(1) << (range.bits - 1)) : 0;
  const Int128 high = (static_cast<Int128>(1) << (range.is_signed ? range.bits - 1 : range.bits)) - 1;
  return static_cast<std::uint64_t>(value < low ? low : value > high ? high : value);
}

double to_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::toward_zero: return std::trunc(value);
    case Rounding::down: return std::floor(value);
    case Rounding::up: return std::ceil(value);
    case Rounding::nearest_away: return std::round(value);
    case Rounding::nearest_even: break;
  }
  return std::nearbyint(value);
}

std::uint64_t to_integer(double value, const ConvertMode& mode) {
  const IntegerRange range = range_of(mode.to);
  if (std::isnan(value)) {
    if (mode.from != Number::f64 && range.bits != 64) return 0;
    return extend(std::uint64_t{1} << (range.bits - 1), range);
  }
  value = to_integral(value, mode.rounding);
  // Beyond 2^65 either way every range is exceeded, and the conversion to 128 bits is defined.
  const double bounded = std::fmin(std::fmax(value, -0x1p65), 0x1p65);
  return clamp(static_cast<Int128>(bounded), range);
}

double flush_f32(double value, bool ftz) {
  return ftz && std::fabs(value) < 0x1p-126 ? std::copysign(0.0, value) : value;
}

double float_value(std::uint64_t bits, Number from) {
  switch (from) {
    case Number::f16: return decode<Fp16>(static_cast<std::uint16_t>(bits));
    case Number::bf16: return decode<Bf16>(static_cast<std::uint16_t>(bits));
    case Number::e4m3: return decode<E4m3>(static_cast<std::uint8_t>(bits));
    case Number::e5m2: return decode<E5m2>(static_cast<std::uint8_t>(bits));
    case Number::f64: return std::bit_cast<double>(bits);
    default: return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  }
}

std::uint64_t integer_to_f64(bool negative, std::uint64_t magnitude, Rounding rounding) {
  // Exact up to 53 bits; above, the lower bits are rounded by hand, in the same way that narrower formats are.
  const int excess = 11 - std::countl_zero(magnitude);
  if (excess > 0) magnitude = formats_detail::shift_and_round(magnitude, excess, rounding, negative);
  const double value = excess > 0 ? std::ldexp(static_cast<double>(magnitude), excess) : static_cast<double>(magnitude);
  return std::bit_cast<std::uint64_t>(negative ? -value : value);
}

std::uint64_t to_float(double value, const ConvertMode& mode) {
  if (mode.to_integral) value = to_integral(value, mode.rounding);
  if (mode.saturate) value = att_f64_saturate(value);
  if (mode.relu && value <= 0) value = 0;
  const Overflow overflow = mode.satfinite ? Overflow::saturate : Overflow::ieee;
  switch (mode.to) {
    case Number::f16: return encode<Fp16>(value, mode.rounding, overflow);
    case Number::bf16: return encode<Bf16>(value, mode.rounding, overflow);
    case Number::e4m3: return encode<E4m3>(value, mode.rounding, overflow);
    case Number::e5m2: return encode<E5m2>(value, mode.rounding, overflow);
    case Number::tf32: return float_to_tf32(static_cast<float>(value), mode.rounding, overflow);
    case Number::f64: return std::bit_cast<std::uint64_t>(value);
    default: break;
  }
  const std::uint32_t bits = encode<Fp32>(value, mode.rounding, overflow);
  return mode.ftz && is_subnormal<Fp32>(bits) ? bits & kSign<Fp32> : bits;
}

ConvertMode unpack(std::uint32_t word) {
  return {.to = static_cast<Number>(word & 15),
          .from = static_cast<Number>(word >> 4 & 15),
          .rounding = static_cast<Rounding>(word >> 8 & 15),
          .to_integral = (word >> 12 & 1) != 0,
          .ftz = (word >> 13 & 1) != 0,
          .saturate = (word >> 14 & 1) != 0,
          .satfinite = (word >> 15 & 1) != 0,
          .relu = (word >> 16 & 1) != 0};
}

}  // namespace

extern "C" {

std::uint32_t att_half(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t word) {
  const auto scalar = word >> 8 & 1 ? half_scalar<Bf16> : half_scalar<Fp16>;
  const auto half = [](std::uint32_t bits) { return static_cast<std::uint16_t>(bits); };
  const std::uint32_t low = scalar(half(a), half(b), half(c), word);
  if (!(word >> 9 & 1)) return low;
  return low | static_cast<std::uint32_t>(scalar(half(a >> 16), half(b >> 16), half(c >> 16), word)) << 16;
}

std::uint64_t att_convert(std::uint64_t bits, std::uint32_t word) {
  const ConvertMode mode = unpack(word);
  if (mode.to == Number::tf32 && mode.rounding == Rounding::nearest_away) {
    // Not by way of a double, which would make NaNs quiet.
    return float_to_tf32(std::bit_cast<float>(static_cast<std::uint32_t>(bits)), mode.rounding,
                         mode.satfinite ? Overflow::saturate : Overflow::ieee);
  }
  if (!is_integer(mode.from)) {
    const double value = flush_f32(float_value(bits, mode.from), mode.ftz && mode.from == Number::f32);
    return is_integer(mode.to) ? to_integer(value, mode) : to_float(value, mode);
  }
  const IntegerRange from = range_of(mode.from);
  const std::uint64_t extended = extend(bits, from);
  const bool negative = from.is_signed && static_cast<std::int64_t>(extended) < 0;
  if (is_integer(mode.to)) {
    if (!mode.saturate) return extend(extended, range_of(mode.to));
    return clamp(
        from.is_signed ? static_cast<Int128>(static_cast<std::int64_t>(extended)) : static_cast<Int128>(extended),
        range_of(mode.to));
  }
  const std::uint64_t magnitude = negative ? 0 - extended : extended;
  if (mode.to == Number::f64 && !mode.saturate) return integer_to_f64(negative, magnitude, mode.rounding);
  return to_float(to_odd(negative, magnitude), mode);
}

std::uint32_t att_pack_f16x2(float high, float low) {
  return static_cast<std::uint32_t>(encode<Fp16>(high)) << 16 | encode<Fp16>(low);
}

std::uint32_t att_pack_bf16x2(float high, float low) {
  const auto round = [](float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return std::uint32_t{Bf16::nan};
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  };
  return round(high) << 16 | round(low);
}

std::uint32_t att_convert_pair(float high, float low, std::uint32_t word) {
  const ConvertMode mode = unpack(word);
  const int width = mode.to == Number::e4m3 || mode.to == Number::e5m2 ? 8 : 16;
  return static_cast<std::uint32_t>(to_float(high, mode) << width | to_float(low, mode));
}

std::uint32_t att_convert_packed(std::uint32_t pair, std::uint32_t word) {
  const ConvertMode mode = unpack(word);
  const bool from_bytes = mode.from == Number::e4m3 || mode.from == Number::e5m2;
  const int from_width = from_bytes ? 8 : 16, to_width = from_bytes ? 16 : 8;
  const std::uint32_t mask = (1u << from_width) - 1;
  const std::uint64_t low = to_float(float_value(pair & mask, mode.from), mode);
  const std::uint64_t high = to_float(float_value(pair >> from_width & mask, mode.from), mode);
  return static_cast<std::uint32_t>(high << to_width | low);
}

}  // extern "C"

}  // namespace attune::emulator
