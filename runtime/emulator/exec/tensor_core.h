// The arithmetic of the matrix units: D = A B + C over plain arrays, with the roundings of the hardware, bit for bit as
// an H200 computes it (tests/emu/recorded_test.cpp). wgmma and mma differ in where operands lie and in what they do
// with fp8.
//
// A floating-point dot product is one fused sum. Products are exact. All terms of one result, the accumulator among
// them, are aligned to the largest exponent that occurs (of a product: the sum of its factors' exponents) and cut off,
// toward zero, `fraction_bits` behind that exponent's leading bit. The sum of what is left is exact and is then cut to
// the result's format, toward zero; fp16 results are rounded to nearest.
//
// mma.sync of fp8 is no operation of Hopper's: the assembler makes two fp16 products of it, and an addition.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/exec/intrinsics.h"

namespace attune::emulator {

/// Bits that are kept behind the leading one of the largest term.
constexpr int kFractionBits = 25;      ///< of all types but fp8
constexpr int kFractionBitsFp8 = 13;   ///< also of fp8's fp32 results
constexpr int kFractionBitsFp32 = 23;  ///< of an fp32 result otherwise

struct SumModel {
  int fraction_bits = kFractionBits;
  int result_bits = kFractionBitsFp32;  ///< of fp32 results
  bool half_result = false;             ///< fp16 accumulator and result
};
/// Of Hopper's matrix units. fp8: in wgmma.
SumModel sum_model(MatrixType a, MatrixType d);

bool is_integer(MatrixType type);
int element_bits(MatrixType type);

/// A matrix operand as rows of exact floats and their exponents. A is stored by rows of M, B by rows of K. Rows are
/// padded with zeros to `pitch` elements.
struct FloatOperand {
  std::uint32_t rows = 0, columns = 0, pitch = 0;
  std::vector<float> values;
  /// Unbiased; of subnormals the least of the type; kZeroExponent for zeros, kSpecialExponent for infinities and NaNs.
  std::vector<std::int16_t> exponents;

  void resize(std::uint32_t new_rows, std::uint32_t new_columns);
};
constexpr std::int16_t kZeroExponent = -4000, kSpecialExponent = 10000;

/// Decodes `count` packed elements of a type (all but b1 and f64) into a row of the operand. Integers become floats.
void decode_row(MatrixType type, const std::uint8_t* bytes, std::uint32_t count, bool negate, FloatOperand* operand,
                std::uint32_t row, std::uint32_t column = 0);
/// The same with rows and columns exchanged: the elements go down a column, from `row` on.
void decode_column(MatrixType type, const std::uint8_t* bytes, std::uint32_t count, bool negate, FloatOperand* operand,
                   std::uint32_t row, std::uint32_t column);

/// d[m][n] += sum over k of a[m][k] b[k][n]. Rows of d are `d_pitch` >= b.pitch elements apart and the columns from
/// b.columns to b.pitch are scratch. Half results: d holds values of fp16.
void multiply_floats(const FloatOperand& a, const FloatOperand& b, const SumModel& model, float* d,
                     std::uint32_t d_pitch);

/// Rows of packed elements along K: of A one for each row, of B one for each column.
struct PackedRows {
  MatrixType type;
  const std::uint8_t* bytes;
  std::uint32_t count;
};
/// What mma.sync makes of floating-point operands with `k` elements a row, d as of multiply_floats(): d += A B. The
/// columns of d from b.count up to the next multiple of 16 are scratch.
void multiply_mma(const PackedRows& a, const PackedRows& b, std::uint32_t k, MatrixType result, float* d,
                  std::uint32_t d_pitch);

/// multiply_floats() of integers of up to 8 bits; wraps around, or stops at the ends of the range.
void multiply_integers(const FloatOperand& a, const FloatOperand& b, bool saturate, std::int32_t* d,
                       std::uint32_t d_pitch);
/// b1: the number of ones in a & b, or a ^ b, of `bytes` bytes a row. B by rows of N.
void multiply_bits(const std::uint8_t* a, std::uint32_t rows, const std::uint8_t* b, std::uint32_t columns,
                   std::uint32_t bytes, bool exclusive, std::int32_t* d, std::uint32_t d_pitch);

}  // namespace attune::emulator
