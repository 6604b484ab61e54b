// Scalar operations that translated code calls where LLVM IR has no short form. Plain C types, bit patterns in
// integers; constant modes come as one packed word, made by the functions here so that both sides agree.
#pragma once

#include <cstdint>

#include "runtime/emulator/exec/formats.h"

namespace attune::emulator {

/// Of f32 and f64 operations that do not round to nearest.
enum class RoundedOp : std::uint8_t { add, sub, mul, fma, div, sqrt };
constexpr std::uint32_t rounded_word(RoundedOp op, Rounding mode) {
  return static_cast<std::uint32_t>(op) | static_cast<std::uint32_t>(mode) << 8;
}

struct MinMaxMode {
  bool maximum = false;
  bool propagate_nan = false;  ///< .NaN
  bool xorsign_abs = false;
};
constexpr std::uint32_t min_max_word(MinMaxMode mode) {
  return static_cast<std::uint32_t>(mode.maximum) | static_cast<std::uint32_t>(mode.propagate_nan) << 1 |
         static_cast<std::uint32_t>(mode.xorsign_abs) << 2;
}

/// f16, bf16 and their pairs.
enum class HalfOp : std::uint8_t { add, sub, mul, fma, min, max, neg, abs, ex2, tanh };
struct HalfMode {
  HalfOp op{};
  bool bf16 = false;
  bool pair = false;
  bool ftz = false;
  bool saturate = false;
  bool relu = false;
  bool propagate_nan = false;
  bool xorsign_abs = false;
};
constexpr std::uint32_t half_word(const HalfMode& mode) {
  return static_cast<std::uint32_t>(mode.op) | static_cast<std::uint32_t>(mode.bf16) << 8 |
         static_cast<std::uint32_t>(mode.pair) << 9 | static_cast<std::uint32_t>(mode.ftz) << 10 |
         static_cast<std::uint32_t>(mode.saturate) << 11 | static_cast<std::uint32_t>(mode.relu) << 12 |
         static_cast<std::uint32_t>(mode.propagate_nan) << 13 | static_cast<std::uint32_t>(mode.xorsign_abs) << 14;
}

/// What cvt converts between. Integers: `bits` with `is_signed`; floats by their name.
enum class Number : std::uint8_t { u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, tf32, f32, f64, e4m3, e5m2 };
struct ConvertMode {
  Number to{}, from{};
  Rounding rounding{};
  bool to_integral = false;  ///< .rni and friends on a float result
  bool ftz = false;
  bool saturate = false;  ///< .sat: integers to the range, floats to [0, 1]
  bool satfinite = false;
  bool relu = false;
};
constexpr std::uint32_t convert_word(const ConvertMode& mode) {
  return static_cast<std::uint32_t>(mode.to) | static_cast<std::uint32_t>(mode.from) << 4 |
         static_cast<std::uint32_t>(mode.rounding) << 8 | static_cast<std::uint32_t>(mode.to_integral) << 12 |
         static_cast<std::uint32_t>(mode.ftz) << 13 | static_cast<std::uint32_t>(mode.saturate) << 14 |
         static_cast<std::uint32_t>(mode.satfinite) << 15 | static_cast<std::uint32_t>(mode.relu) << 16;
}

enum class PermuteMode : std::uint8_t { by_selector, f4e, b4e, rc8, ecl, ecr, rc16 };
enum class TestProperty : std::uint8_t { finite, infinite, number, not_a_number, normal, subnormal };

extern "C" {

// -- f32 and f64 --------------------------------------------------------------------------------------
float att_f32_rounded(float a, float b, float c, std::uint32_t word);
double att_f64_rounded(double a, double b, double c, std::uint32_t word);
float att_f32_fma(float a, float b, float c);
double att_f64_fma(double a, double b, double c);
float att_f32_min(float a, float b);
float att_f32_max(float a, float b);
float att_f32_min_max(float a, float b, std::uint32_t word);
double att_f64_min_max(double a, double b, std::uint32_t word);
float att_f32_saturate(float a);
double att_f64_saturate(double a);
float att_f32_ex2(float a);
float att_f32_lg2(float a);
float att_f32_sin(float a);
float att_f32_cos(float a);
float att_f32_tanh(float a);
float att_f32_rsqrt(float a);
double att_f64_rsqrt(double a);
/// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: of the upper 32 bits, giving only those.
double att_f64_coarse(double a, std::uint32_t square_root);
std::uint32_t att_f32_test(float a, std::uint32_t property);
std::uint32_t att_f64_test(double a, std::uint32_t property);

// -- f16, bf16, conversions -----------------------------------------------------------------------------
std::uint32_t att_half(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t word);
std::uint64_t att_convert(std::uint64_t bits, std::uint32_t word);
std::uint32_t att_pack_f16x2(float high, float low);
std::uint32_t att_pack_bf16x2(float high, float low);
/// Two f32 to a pair of f16, bf16, e4m3 or e5m2; the word's `to` is the element.
std::uint32_t att_convert_pair(float high, float low, std::uint32_t word);
/// A pair of e4m3, e5m2 or f16 to a pair of f16, e4m3 or e5m2.
std::uint32_t att_convert_packed(std::uint32_t pair, std::uint32_t word);

// -- integers -------------------------------------------------------------------------------------------
/// Division by zero gives all ones.
std::uint64_t att_udiv(std::uint64_t a, std::uint64_t b);
std::uint64_t att_urem(std::uint64_t a, std::uint64_t b);
std::int64_t att_sdiv(std::int64_t a, std::int64_t b);
std::int64_t att_srem(std::int64_t a, std::int64_t b);
std::uint64_t att_umulhi(std::uint64_t a, std::uint64_t b);
std::int64_t att_smulhi(std::int64_t a, std::int64_t b);
std::uint32_t att_popc(std::uint64_t a);
std::uint32_t att_clz(std::uint64_t a, std::uint32_t bits);
/// `a` is extended from `bits` as its type says.
std::uint32_t att_bfind(std::int64_t a, std::uint32_t bits, std::uint32_t is_signed, std::uint32_t shift_amount);
std::uint32_t att_fns(std::uint32_t mask, std::uint32_t base, std::int32_t offset);
std::uint64_t att_brev(std::uint64_t a, std::uint32_t bits);
std::uint64_t att_bfe(std::uint64_t a, std::uint32_t position, std::uint32_t length, std::uint32_t bits,
                      std::uint32_t is_signed);
std::uint64_t att_bfi(std::uint64_t from, std::uint64_t into, std::uint32_t position, std::uint32_t length,
                      std::uint32_t bits);
std::uint32_t att_szext(std::uint32_t a, std::uint32_t bits, std::uint32_t is_signed, std::uint32_t wrap);
std::uint32_t att_bmsk(std::uint32_t position, std::uint32_t length, std::uint32_t wrap);
std::uint32_t att_lop3(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t table);
std::uint32_t att_prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector, std::uint32_t mode);
/// dp4a; dp2a with `halves` 1 (.lo) or 2 (.hi).
std::uint32_t att_dot(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t a_signed, std::uint32_t b_signed,
                      std::uint32_t halves);
/// cvt.pack: `bits` of the element; 0 below 16 bits keeps what `c` holds above.
std::uint32_t att_pack_saturated(std::int32_t a, std::int32_t b, std::uint32_t c, std::uint32_t bits,
                                 std::uint32_t is_signed);
std::int64_t att_saturate_integer(std::int64_t a, std::uint32_t bits);

}  // extern "C"

}  // namespace attune::emulator
