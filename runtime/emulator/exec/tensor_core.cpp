#include "runtime/emulator/exec/tensor_core.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/emulator/exec/formats.h"

namespace attune::emulator {
namespace {

// Vectors of the compiler's, so that speed does not hang on the optimisation level. Functions that take or return them
// are inlined always, so it does not matter that their calling convention depends on the target.
#pragma GCC diagnostic ignored "-Wpsabi"
using F32x8 = float __attribute__((vector_size(32)));
using F64x4 = double __attribute__((vector_size(32)));
using I16x8 = std::int16_t __attribute__((vector_size(16)));
using I16x16 = std::int16_t __attribute__((vector_size(32)));
using U16x8 = std::uint16_t __attribute__((vector_size(16)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using I32x8 = std::int32_t __attribute__((vector_size(32)));
using U32x8 = std::uint32_t __attribute__((vector_size(32)));
using U64x4 = std::uint64_t __attribute__((vector_size(32)));

#define ATTUNE_INLINE inline __attribute__((always_inline))

constexpr std::uint32_t kLanes = 16;  ///< results that are computed side by side
/// Terms that are summed as 32-bit integers: each is below 2^(kFractionBits + 2).
constexpr std::uint32_t kGroup = 8;
static_assert(kGroup << (kFractionBits + 2) <= std::uint32_t{1} << 30);

// Where the largest exponent lies in this range, float arithmetic does it: products that underflow are below the last
// bit that is kept, and powers of two for scaling are normal floats. Zeros alone come out far below.
constexpr std::int16_t kLeastFast = -100, kMostFast = 126, kAllZero = -600;

template <typename Vector, typename Element>
ATTUNE_INLINE Vector load(const Element* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

/// One result with the terms a[0..k) b[0, pitch, ...): any operands.
float sum_one(const float* a, const std::int16_t* a_exponents, const float* b, const std::int16_t* b_exponents,
              std::uint32_t k, std::uint32_t pitch, float c, int c_exponent, const SumModel& model) {
  int largest = c_exponent;
  bool special = c_exponent == kSpecialExponent;
  for (std::uint32_t i = 0; i < k; ++i) {
    const int ea = a_exponents[i], eb = b_exponents[i * pitch];
    largest = std::max(largest, ea + eb);
    special = special || ea == kSpecialExponent || eb == kSpecialExponent;
  }
  double sum = 0;
  if (special) {
    // Infinities and NaNs propagate as in any addition; finite terms do not change them.
    sum = std::isfinite(c) ? 0.0 : double{c};
    for (std::uint32_t i = 0; i < k; ++i) {
      const double product = double{a[i]} * double{b[i * pitch]};
      if (!std::isfinite(product)) sum += product;
    }
    if (std::isnan(sum))
      return std::bit_cast<float>(model.half_result ? std::bit_cast<std::uint32_t>(fp16_to_float(Fp16::nan))
                                                    : Fp32::nan);
    return static_cast<float>(sum);
  }
  if (largest < kAllZero) return 0;
  const double scale = std::ldexp(1.0, model.fraction_bits - largest);
  sum = std::trunc(double{c} * scale);
  for (std::uint32_t i = 0; i < k; ++i) sum += std::trunc(double{a[i]} * double{b[i * pitch]} * scale);
  const double result = std::ldexp(sum, largest - model.fraction_bits);
  if (model.half_result) return fp16_to_float(encode<Fp16>(result));
  if (model.result_bits == kFractionBitsFp32) return truncate_to_float(result);
  // The format has fp32's exponents and fewer bits.
  const double cut = result == 0 ? 0 : std::ldexp(1.0, std::max(std::ilogb(result), -126) - model.result_bits);
  return cut == 0 ? 0 : truncate_to_float(std::trunc(result / cut) * cut);
}

ATTUNE_INLINE std::int16_t accumulator_exponent(float value, int least) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
  if (magnitude == 0) return kZeroExponent;
  if (magnitude >= 0x7F800000u) return kSpecialExponent;
  return static_cast<std::int16_t>(std::max(static_cast<int>(magnitude >> 23) - 127, least));
}

/// Exponents of 8 accumulators.
ATTUNE_INLINE I16x8 accumulator_exponents(const float* values, int least) {
  const I32x8 magnitude = load<I32x8>(values) & 0x7FFFFFFF;
  I32x8 exponent = (magnitude >> 23) - 127;
  exponent = exponent < least ? I32x8{} + least : exponent;
  exponent = magnitude == 0 ? I32x8{} + kZeroExponent : exponent;
  exponent = magnitude >= 0x7F800000 ? I32x8{} + kSpecialExponent : exponent;
  return __builtin_convertvector(exponent, I16x8);
}

/// The exact sum of 8 results' integers and what earlier groups gave.
struct WideSum {
  F64x4 low = {}, high = {};
};
ATTUNE_INLINE void add_group(const I32x8& group, WideSum* sum) {
  sum->low += __builtin_convertvector(__builtin_shufflevector(group, group, 0, 1, 2, 3), F64x4);
  sum->high += __builtin_convertvector(__builtin_shufflevector(group, group, 4, 5, 6, 7), F64x4);
}

/// Cuts 8 sums to their format and scales them back. `exponent` as in finish().
ATTUNE_INLINE void store_floats(const WideSum& sum, const I32x8& exponent, const SumModel& model, float* d) {
  // Clearing the mantissa's end truncates toward zero; what is left is exact in a float.
  const std::uint64_t kept = ~((std::uint64_t{1} << (52 - model.result_bits)) - 1);
  const auto low = std::bit_cast<F64x4>(std::bit_cast<U64x4>(sum.low) & kept);
  const auto high = std::bit_cast<F64x4>(std::bit_cast<U64x4>(sum.high) & kept);
  using F32x4 = float __attribute__((vector_size(16)));
  const F32x4 low_result = __builtin_convertvector(low, F32x4), high_result = __builtin_convertvector(high, F32x4);
  const auto unscale = std::bit_cast<F32x8>((exponent + (127 - model.fraction_bits)) << 23);
  const F32x8 result = __builtin_shufflevector(low_result, high_result, 0, 1, 2, 3, 4, 5, 6, 7) * unscale;
  std::memcpy(d, &result, sizeof result);
}

void store_halves(const double* sums, const std::int32_t* exponents, const SumModel& model, float* d) {
  for (int i = 0; i < 8; ++i) {
    d[i] = fp16_to_float(encode<Fp16>(std::ldexp(sums[i], exponents[i] - model.fraction_bits)));
  }
}

ATTUNE_INLINE void store(const WideSum& sum, const I32x8& exponent, const SumModel& model, float* d) {
  if (!model.half_result) return store_floats(sum, exponent, model, d);
  std::array<double, 8> sums;
  std::array<std::int32_t, 8> exponents;
  std::memcpy(sums.data(), &sum.low, sizeof sum.low);
  std::memcpy(sums.data() + 4, &sum.high, sizeof sum.high);
  std::memcpy(exponents.data(), &exponent, sizeof exponent);
  store_halves(sums.data(), exponents.data(), model, d);
}

/// kLanes results of one row. `largest`: their largest exponents.
ATTUNE_INLINE void finish(const float* left, const float* right, std::uint32_t k, std::uint32_t pitch,
                          const I16x16& largest, const SumModel& model, float* d) {
  const I32x8 exponent0 =
      __builtin_convertvector(__builtin_shufflevector(largest, largest, 0, 1, 2, 3, 4, 5, 6, 7), I32x8);
  const I32x8 exponent1 =
      __builtin_convertvector(__builtin_shufflevector(largest, largest, 8, 9, 10, 11, 12, 13, 14, 15), I32x8);
  const auto scale0 = std::bit_cast<F32x8>((model.fraction_bits + 127 - exponent0) << 23);
  const auto scale1 = std::bit_cast<F32x8>((model.fraction_bits + 127 - exponent1) << 23);
  I32x8 group0 = __builtin_convertvector(load<F32x8>(d) * scale0, I32x8);
  I32x8 group1 = __builtin_convertvector(load<F32x8>(d + 8) * scale1, I32x8);
  WideSum sum0, sum1;
  for (std::uint32_t begin = 0; begin < k; begin += kGroup) {
    const std::uint32_t end = std::min(begin + kGroup, k);
    for (std::uint32_t i = begin; i < end; ++i) {
      const F32x8 factor = left[i] + F32x8{};
      group0 += __builtin_convertvector(factor * load<F32x8>(right) * scale0, I32x8);
      group1 += __builtin_convertvector(factor * load<F32x8>(right + 8) * scale1, I32x8);
      right += pitch;
    }
    add_group(group0, &sum0);
    add_group(group1, &sum1);
    group0 = group1 = I32x8{};
  }
  store(sum0, exponent0, model, d);
  store(sum1, exponent1, model, d + 8);
}

ATTUNE_INLINE void multiply(const FloatOperand& a, const FloatOperand& b, SumModel model, float* d,
                            std::uint32_t d_pitch) {
  const std::uint32_t k = a.columns, rows = a.rows, columns = b.columns, pitch = b.pitch;
  const int least = model.half_result ? min_exponent<Fp16>() : min_exponent<Fp32>();
  for (std::uint32_t row = 0; row < rows; ++row) {
    const float* left = a.values.data() + row * a.pitch;
    const std::int16_t* left_exponents = a.exponents.data() + row * a.pitch;
    for (std::uint32_t column = 0; column < columns; column += kLanes) {
      float* out = d + row * d_pitch + column;
      const float* right = b.values.data() + column;
      const std::int16_t* right_exponents = b.exponents.data() + column;
      const I16x8 own0 = accumulator_exponents(out, least), own1 = accumulator_exponents(out + 8, least);
      const I16x16 own = __builtin_shufflevector(own0, own1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      I16x16 largest = own;
      const std::int16_t* next = right_exponents;
      for (std::uint32_t i = 0; i < k; ++i) {
        const I16x16 exponent = left_exponents[i] + load<I16x16>(next);
        largest = exponent > largest ? exponent : largest;
        next += pitch;
      }
      const I16x16 slow = (largest > kMostFast) | ((largest < kLeastFast) & (largest > kAllZero));
      const auto slow_words = std::bit_cast<U64x4>(slow);
      if ((slow_words[0] | slow_words[1] | slow_words[2] | slow_words[3]) == 0) [[likely]] {
        finish(left, right, k, pitch, largest < kLeastFast ? I16x16{} + kLeastFast : largest, model, out);
        continue;
      }
      const auto accumulators = std::bit_cast<std::array<std::int16_t, kLanes>>(own);
      for (std::uint32_t i = 0; i < std::min(kLanes, columns - column); ++i) {
        out[i] =
            sum_one(left, left_exponents, right + i, right_exponents + i, k, pitch, out[i], accumulators[i], model);
      }
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void multiply_avx2(const FloatOperand& a, const FloatOperand& b, const SumModel& model,
                                                   float* d, std::uint32_t d_pitch) {
  multiply(a, b, model, d, d_pitch);
}
#endif

// -- operands ---------------------------------------------------------------------------------------

struct EightDecoded {
  std::array<float, 8> values;
  std::array<std::int16_t, 8> exponents;
};

template <typename Format>
ATTUNE_INLINE I16x8 exponents_of(const U16x8& bits) {
  constexpr int kMask = (1 << Format::exponent_bits) - 1;
  const auto field = std::bit_cast<I16x8>((bits >> Format::mantissa_bits) & kMask);
  const auto magnitude = std::bit_cast<I16x8>(bits & 0x7FFF);
  constexpr auto kLeast = static_cast<std::int16_t>(min_exponent<Format>());
  I16x8 exponent = field + static_cast<std::int16_t>(kLeast - 1);
  exponent = field == 0 ? I16x8{} + kLeast : exponent;
  exponent = magnitude == 0 ? I16x8{} + kZeroExponent : exponent;
  return field == kMask ? I16x8{} + kSpecialExponent : exponent;
}

ATTUNE_INLINE void decode_eight_bf16(const std::uint8_t* bytes, std::uint32_t sign, EightDecoded* out) {
  const auto bits = load<U16x8>(bytes);
  const U32x8 words = (__builtin_convertvector(bits, U32x8) << 16) ^ sign;
  std::memcpy(out->values.data(), &words, sizeof words);
  const I16x8 exponents = exponents_of<Bf16>(bits);
  std::memcpy(out->exponents.data(), &exponents, sizeof exponents);
}

ATTUNE_INLINE void decode_eight_fp16(const std::uint8_t* bytes, std::uint32_t sign, EightDecoded* out) {
  const auto bits = load<U16x8>(bytes);
  const U32x8 wide = __builtin_convertvector(bits, U32x8);
  // The float with fp16's exponent field is 2^112 too small; multiplying normalises subnormals as well.
  const auto shifted = std::bit_cast<F32x8>((wide & 0x7FFF) << 13);
  U32x8 words = std::bit_cast<U32x8>(shifted * 0x1p112f);
  words = (wide & 0x7C00) == 0x7C00 ? (words | 0x7F800000u) : words;
  words = (words | (wide & 0x8000) << 16) ^ sign;
  std::memcpy(out->values.data(), &words, sizeof words);
  const I16x8 exponents = exponents_of<Fp16>(bits);
  std::memcpy(out->exponents.data(), &exponents, sizeof exponents);
}

struct ByteTable {
  std::array<float, 256> values;
  std::array<std::int16_t, 256> exponents;
};

template <typename Format>
ByteTable fp8_table() {
  ByteTable table{};
  for (unsigned i = 0; i < 256; ++i) {
    const float value = decode<Format>(static_cast<std::uint8_t>(i));
    table.values[i] = value;
    table.exponents[i] = accumulator_exponent(value, min_exponent<Format>());
  }
  return table;
}

const ByteTable& byte_table(MatrixType type) {
  static const ByteTable e4m3 = fp8_table<E4m3>(), e5m2 = fp8_table<E5m2>();
  return type == MatrixType::e4m3 ? e4m3 : e5m2;
}

/// One element by its index among packed ones.
void decode_element(MatrixType type, const std::uint8_t* bytes, std::uint32_t index, float* value,
                    std::int16_t* exponent) {
  *exponent = 0;
  switch (type) {
    case MatrixType::e4m3:
    case MatrixType::e5m2: {
      const ByteTable& table = byte_table(type);
      *value = table.values[bytes[index]];
      *exponent = table.exponents[bytes[index]];
      return;
    }
    case MatrixType::tf32: {
      std::uint32_t word;
      std::memcpy(&word, bytes + index * 4, 4);
      *value = tf32_to_float(word);
      *exponent = accumulator_exponent(*value, min_exponent<Fp32>());
      return;
    }
    case MatrixType::s8: *value = static_cast<std::int8_t>(bytes[index]); return;
    case MatrixType::u8: *value = bytes[index]; return;
    case MatrixType::s4:
    case MatrixType::u4: {
      const int nibble = bytes[index / 2] >> (index % 2 * 4) & 0xF;
      *value = static_cast<float>(type == MatrixType::s4 && nibble > 7 ? nibble - 16 : nibble);
      return;
    }
    default: *value = 0; return;
  }
}

bool is_fp8(MatrixType type) { return type == MatrixType::e4m3 || type == MatrixType::e5m2; }

constexpr std::uint32_t kMostElements = 64;  ///< of a row or column that is decoded at once: s4, k64

struct DecodedRow {
  std::array<float, kMostElements> values;
  std::array<std::int16_t, kMostElements> exponents;
};

void decode_elements(MatrixType type, const std::uint8_t* bytes, std::uint32_t count, bool negate, DecodedRow* out) {
  const std::uint32_t sign = negate ? 0x80000000u : 0;
  if (type == MatrixType::bf16 || type == MatrixType::f16) {
    for (std::uint32_t i = 0; i < count; i += 8) {
      EightDecoded eight;
      std::array<std::uint8_t, 16> padded{};
      const std::uint8_t* source = bytes + i * 2;
      if (count - i < 8) {
        std::memcpy(padded.data(), source, (count - i) * 2);
        source = padded.data();
      }
      if (type == MatrixType::bf16) {
        decode_eight_bf16(source, sign, &eight);
      } else {
        decode_eight_fp16(source, sign, &eight);
      }
      std::memcpy(out->values.data() + i, eight.values.data(), sizeof eight.values);
      std::memcpy(out->exponents.data() + i, eight.exponents.data(), sizeof eight.exponents);
    }
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    decode_element(type, bytes, i, &out->values[i], &out->exponents[i]);
    if (negate) out->values[i] = -out->values[i];
  }
}

// -- mma.sync ----------------------------------------------------------------------------------------

void multiply_packed(const PackedRows& a, const PackedRows& b, std::uint32_t k, MatrixType result, float* d,
                     std::uint32_t d_pitch) {
  const auto row_bytes = static_cast<std::size_t>(k) * static_cast<std::size_t>(element_bits(a.type)) / 8;
  FloatOperand left, right;
  left.resize(a.count, k);
  right.resize(k, b.count);
  for (std::uint32_t i = 0; i < a.count; ++i) decode_row(a.type, a.bytes + i * row_bytes, k, false, &left, i);
  for (std::uint32_t i = 0; i < b.count; ++i) decode_column(b.type, b.bytes + i * row_bytes, k, false, &right, 0, i);
  multiply_floats(left, right, sum_model(a.type, result), d, d_pitch);
}

/// The first (else the second) two of every four fp8 elements along K, as fp16: what one half of each register holds.
std::vector<std::uint8_t> half_as_fp16(const PackedRows& rows, std::uint32_t k, bool first) {
  const ByteTable& table = byte_table(rows.type);
  std::vector<std::uint8_t> halves(static_cast<std::size_t>(rows.count) * k);
  for (std::size_t i = 0; i < halves.size() / 2; ++i) {
    const std::size_t source = i / 2 * 4 + i % 2 + (first ? 0 : 2);
    const std::uint16_t half = encode<Fp16>(table.values[rows.bytes[source]]);
    std::memcpy(halves.data() + 2 * i, &half, sizeof half);
  }
  return halves;
}

/// Products of fp16 that begin with zeros for C, one of each half of the registers; C is added to them afterwards, as
/// ordinary arithmetic adds.
void multiply_mma_fp8(const PackedRows& a, const PackedRows& b, std::uint32_t k, MatrixType result, float* d,
                      std::uint32_t d_pitch) {
  std::vector<float> products(static_cast<std::size_t>(a.count) * d_pitch);
  for (bool first : {true, false}) {
    const std::vector<std::uint8_t> left = half_as_fp16(a, k, first), right = half_as_fp16(b, k, first);
    multiply_packed({MatrixType::f16, left.data(), a.count}, {MatrixType::f16, right.data(), b.count}, k / 2, result,
                    products.data(), d_pitch);
  }
  for (std::size_t i = 0; i < products.size(); ++i) {
    const double sum = double{d[i]} + double{products[i]};
    d[i] = result == MatrixType::f16 ? fp16_to_float(encode<Fp16>(sum)) : std::bit_cast<float>(encode<Fp32>(sum));
  }
}

}  // namespace

SumModel sum_model(MatrixType a, MatrixType d) {
  SumModel model;
  if (is_fp8(a)) {
    model.fraction_bits = kFractionBitsFp8;
    model.result_bits = kFractionBitsFp8;
  }
  model.half_result = d == MatrixType::f16;
  return model;
}

bool is_integer(MatrixType type) {
  switch (type) {
    case MatrixType::s8:
    case MatrixType::u8:
    case MatrixType::s4:
    case MatrixType::u4:
    case MatrixType::s32: return true;
    default: return false;
  }
}

int element_bits(MatrixType type) {
  switch (type) {
    case MatrixType::f64: return 64;
    case MatrixType::f32:
    case MatrixType::s32:
    case MatrixType::tf32: return 32;
    case MatrixType::f16:
    case MatrixType::bf16: return 16;
    case MatrixType::e4m3:
    case MatrixType::e5m2:
    case MatrixType::s8:
    case MatrixType::u8: return 8;
    case MatrixType::s4:
    case MatrixType::u4: return 4;
    case MatrixType::b1: return 1;
  }
  return 0;
}

void FloatOperand::resize(std::uint32_t new_rows, std::uint32_t new_columns) {
  rows = new_rows;
  columns = new_columns;
  pitch = (columns + kLanes - 1) / kLanes * kLanes;
  values.resize(std::size_t{rows} * pitch);
  exponents.resize(std::size_t{rows} * pitch);
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::fill(values.data() + row * pitch + columns, values.data() + (row + 1) * pitch, 0.0f);
    std::fill(exponents.data() + row * pitch + columns, exponents.data() + (row + 1) * pitch, kZeroExponent);
  }
}

void decode_row(MatrixType type, const std::uint8_t* bytes, std::uint32_t count, bool negate, FloatOperand* operand,
                std::uint32_t row, std::uint32_t column) {
  DecodedRow decoded;
  decode_elements(type, bytes, count, negate, &decoded);
  const std::size_t at = std::size_t{row} * operand->pitch + column;
  std::memcpy(operand->values.data() + at, decoded.values.data(), count * sizeof(float));
  std::memcpy(operand->exponents.data() + at, decoded.exponents.data(), count * sizeof(std::int16_t));
}

void decode_column(MatrixType type, const std::uint8_t* bytes, std::uint32_t count, bool negate, FloatOperand* operand,
                   std::uint32_t row, std::uint32_t column) {
  DecodedRow decoded;
  decode_elements(type, bytes, count, negate, &decoded);
  for (std::uint32_t i = 0; i < count; ++i) {
    operand->values[(row + i) * operand->pitch + column] = decoded.values[i];
    operand->exponents[(row + i) * operand->pitch + column] = decoded.exponents[i];
  }
}

void multiply_floats(const FloatOperand& a, const FloatOperand& b, const SumModel& model, float* d,
                     std::uint32_t d_pitch) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return multiply_avx2(a, b, model, d, d_pitch);
#endif
  multiply(a, b, model, d, d_pitch);
}

void multiply_mma(const PackedRows& a, const PackedRows& b, std::uint32_t k, MatrixType result, float* d,
                  std::uint32_t d_pitch) {
  const auto multiply_types = is_fp8(a.type) ? multiply_mma_fp8 : multiply_packed;
  multiply_types(a, b, k, result, d, d_pitch);
}

void multiply_integers(const FloatOperand& a, const FloatOperand& b, bool saturate, std::int32_t* d,
                       std::uint32_t d_pitch) {
  // Products of bytes are below 2^16 and at most 64 are added: exact in a float.
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    const float* left = a.values.data() + row * a.pitch;
    for (std::uint32_t column = 0; column < b.columns; column += 8) {
      F32x8 sums = {};
      for (std::uint32_t i = 0; i < a.columns; ++i) sums += left[i] * load<F32x8>(&b.values[i * b.pitch + column]);
      std::int32_t* out = d + row * d_pitch + column;
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::int64_t sum = std::int64_t{out[i]} + static_cast<std::int64_t>(sums[i]);
        out[i] = static_cast<std::int32_t>(saturate ? std::clamp(sum, kLeast, kMost) : sum);
      }
    }
  }
}

void multiply_bits(const std::uint8_t* a, std::uint32_t rows, const std::uint8_t* b, std::uint32_t columns,
                   std::uint32_t bytes, bool exclusive, std::int32_t* d, std::uint32_t d_pitch) {
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t column = 0; column < columns; ++column) {
      std::uint32_t ones = 0;
      for (std::uint32_t i = 0; i < bytes; i += 4) {
        std::uint32_t left, right;
        std::memcpy(&left, a + row * bytes + i, 4);
        std::memcpy(&right, b + column * bytes + i, 4);
        ones += static_cast<std::uint32_t>(std::popcount(exclusive ? left ^ right : left & right));
      }
      std::int32_t& out = d[row * d_pitch + column];
      out = static_cast<std::int32_t>(static_cast<std::uint32_t>(out) + ones);
    }
  }
}

}  // namespace attune::emulator
