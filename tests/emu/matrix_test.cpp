// The matrix units: sums against a plain model of them, and where operands lie.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/tensor_core.h"

using namespace attune::emulator;

namespace {

struct Type {
  MatrixType type;
  int bits, exponent_bits, mantissa_bits;
};
constexpr Type kTypes[] = {{MatrixType::bf16, 16, 8, 7},
                           {MatrixType::f16, 16, 5, 10},
                           {MatrixType::tf32, 32, 8, 10},
                           {MatrixType::e4m3, 8, 4, 3},
                           {MatrixType::e5m2, 8, 5, 2}};

/// A number as significand * 2^exponent, the significand with `mantissa_bits` behind the point and not normalised where
/// the format's subnormals are not.
struct Parts {
  std::int64_t significand = 0;
  int exponent = 0;
};

Parts parts_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int field = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  std::int64_t significand = bits & ((1u << mantissa_bits) - 1);
  if (field != 0) significand |= std::int64_t{1} << mantissa_bits;
  if ((bits >> (exponent_bits + mantissa_bits) & 1) != 0) significand = -significand;
  return {significand, std::max(field, 1) - bias};
}

/// The fused sum in integers, term by term, as tensor_core.h describes it.
float reference_sum(const Type& type, const std::uint32_t* a, const std::uint32_t* b, int k, float c,
                    const SumModel& model) {
  std::vector<std::pair<std::int64_t, int>> terms;  // significand with 23 + 23 bits behind the point, exponent
  const auto add = [&](std::int64_t significand, int bits, int exponent) {
    if (significand != 0) terms.emplace_back(significand << (46 - bits), exponent);
  };
  if (model.half_result) {
    const Parts p = parts_of(encode<Fp16>(double{c}), 5, 10);
    add(p.significand, 10, p.exponent);
  } else {
    const Parts p = parts_of(std::bit_cast<std::uint32_t>(c), 8, 23);
    add(p.significand, 23, p.exponent);
  }
  for (int i = 0; i < k; ++i) {
    const int cut = type.type == MatrixType::tf32 ? 13 : 0;
    const Parts pa = parts_of(a[i] >> cut, type.exponent_bits, type.mantissa_bits);
    const Parts pb = parts_of(b[i] >> cut, type.exponent_bits, type.mantissa_bits);
    add(pa.significand * pb.significand, 2 * type.mantissa_bits, pa.exponent + pb.exponent);
  }
  if (terms.empty()) return 0;
  int largest = -1000;
  for (const auto& term : terms) largest = std::max(largest, term.second);
  std::int64_t sum = 0;
  for (const auto& [significand, exponent] : terms) {
    const int shift = 46 - model.fraction_bits + (largest - exponent);
    const std::int64_t magnitude = significand < 0 ? -significand : significand;
    const std::int64_t kept = shift > 62 ? 0 : magnitude >> shift;
    sum += significand < 0 ? -kept : kept;
  }
  const double exact = std::ldexp(static_cast<double>(sum), largest - model.fraction_bits);
  if (model.half_result) return fp16_to_float(encode<Fp16>(exact));
  if (model.result_bits == 23) return truncate_to_float(exact);
  // Fewer bits of fp32's mantissa.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(truncate_to_float(exact)) &
                              ~((1u << (23 - model.result_bits)) - 1));
}

struct Product {
  int m, n, k;
  std::vector<std::uint32_t> a, b;  ///< [m][k], [n][k]
  std::vector<float> c;             ///< [m][n]
};

std::vector<std::uint8_t> packed(const std::uint32_t* elements, int count, int bits) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * bits / 8));
  for (int i = 0; i < count; ++i) {
    if (bits >= 8) {
      std::memcpy(bytes.data() + i * bits / 8, &elements[i], static_cast<std::size_t>(bits / 8));
    } else {
      bytes[static_cast<std::size_t>(i / 2)] |= static_cast<std::uint8_t>((elements[i] & 0xF) << (i % 2 * 4));
    }
  }
  return bytes;
}

std::vector<float> computed(const Product& p, const Type& type, const SumModel& model) {
  FloatOperand a, b;
  a.resize(static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(p.k));
  b.resize(static_cast<std::uint32_t>(p.k), static_cast<std::uint32_t>(p.n));
  for (int i = 0; i < p.m; ++i) {
    decode_row(type.type, packed(&p.a[static_cast<std::size_t>(i * p.k)], p.k, type.bits).data(),
               static_cast<std::uint32_t>(p.k), false, &a, static_cast<std::uint32_t>(i));
  }
  for (int i = 0; i < p.n; ++i) {
    decode_column(type.type, packed(&p.b[static_cast<std::size_t>(i * p.k)], p.k, type.bits).data(),
                  static_cast<std::uint32_t>(p.k), false, &b, 0, static_cast<std::uint32_t>(i));
  }
  std::vector<float> d(static_cast<std::size_t>(p.m) * b.pitch, 0);
  for (int i = 0; i < p.m; ++i) {
    std::copy_n(p.c.begin() + i * p.n, p.n, d.begin() + i * static_cast<int>(b.pitch));
  }
  multiply_floats(a, b, model, d.data(), b.pitch);
  std::vector<float> result;
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      result.push_back(d[static_cast<std::size_t>(i) * b.pitch + static_cast<std::size_t>(j)]);
    }
  }
  return result;
}

/// Patterns of finite numbers with exponents that differ by up to `spread`.
std::uint32_t random_pattern(std::mt19937& random, const Type& type, int centre, int spread) {
  const int most = (1 << type.exponent_bits) - 2;
  int field = centre;
  if (spread > 0) field += static_cast<int>(random() % static_cast<unsigned>(2 * spread + 1)) - spread;
  field = std::clamp(field, 0, most);
  if (random() % 16 == 0) return 0;
  const std::uint32_t magnitude =
      static_cast<std::uint32_t>(field) << type.mantissa_bits | (random() & ((1u << type.mantissa_bits) - 1));
  const std::uint32_t bits = magnitude | (random() & 1) << (type.exponent_bits + type.mantissa_bits);
  return type.type == MatrixType::tf32 ? bits << 13 | (random() & 0x1FFF) : bits;
}

}  // namespace

TEST_CASE("fused sums agree with the model in integers, for all types and spreads of exponents") {
  std::mt19937 random(3);
  for (const Type& type : kTypes) {
    for (MatrixType d : {MatrixType::f32, MatrixType::f16}) {
      if (d == MatrixType::f16 && (type.type == MatrixType::bf16 || type.type == MatrixType::tf32)) continue;
      const SumModel model = sum_model(type.type, d);
      for (int trial = 0; trial < 60; ++trial) {
        const int k = 256 / type.bits;
        Product p{8, 1 + static_cast<int>(random() % 24), random() % 8 == 0 ? k / 2 : k, {}, {}, {}};
        const int fields = 1 << type.exponent_bits;
        // Products around 1, and now and then at the ends of float's range.
        const int spread = static_cast<int>(random() % static_cast<unsigned>(fields / 2));
        const int centre =
            trial % 4 != 0 || type.exponent_bits < 8 ? fields / 2 - 1 : static_cast<int>(random() % 160) + 48;
        for (int i = 0; i < p.m * p.k; ++i) p.a.push_back(random_pattern(random, type, centre, spread));
        for (int i = 0; i < p.n * p.k; ++i) p.b.push_back(random_pattern(random, type, fields - 2 - centre, spread));
        for (int i = 0; i < p.m * p.n; ++i) {
          const double c =
              std::ldexp(static_cast<double>(random()) * 0x1p-32 - 0.5, static_cast<int>(random() % 36) - 20);
          p.c.push_back(d == MatrixType::f16 ? fp16_to_float(encode<Fp16>(c)) : static_cast<float>(c));
        }
        const std::vector<float> result = computed(p, type, model);
        for (int i = 0; i < p.m; ++i) {
          for (int j = 0; j < p.n; ++j) {
            const float expected =
                reference_sum(type, &p.a[static_cast<std::size_t>(i * p.k)], &p.b[static_cast<std::size_t>(j * p.k)],
                              p.k, p.c[static_cast<std::size_t>(i * p.n + j)], model);
            const float got = result[static_cast<std::size_t>(i * p.n + j)];
            REQUIRE(std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected));
          }
        }
      }
    }
  }
}

TEST_CASE("what the alignment cuts off") {
  const auto sum = [](float a0, float b0, float a1, float b1, float c) {
    Product p{1, 1, 16, std::vector<std::uint32_t>(16), std::vector<std::uint32_t>(16), {c}};
    p.a[0] = encode<Bf16>(double{a0});
    p.b[0] = encode<Bf16>(double{b0});
    p.a[1] = encode<Bf16>(double{a1});
    p.b[1] = encode<Bf16>(double{b1});
    return computed(p, kTypes[0], SumModel{})[0];
  };
  // 2^-25 is the last bit beside 1; two such terms make it to 2^-24, which a float of that size does not hold.
  CHECK(sum(1, 1, 0, 0, -1) == 0);
  CHECK(sum(1, 1, 0x1p-12f, 0x1p-13f, -1) == 0x1p-25f);
  CHECK(sum(1, 1, 0x1p-13f, 0x1p-13f, -1) == 0);
  CHECK(sum(0x1p-13f, 0x1p-13f, 0, 0, 0) == 0x1p-26f);
  // Toward zero, for both signs.
  CHECK(sum(1, 1, 0x1p-12f, 0x1.8p-12f, 0) == 1);
  CHECK(sum(-1, 1, 0x1p-12f, -0x1.8p-12f, 0) == -1);
  CHECK(sum(1, 1, -0x1p-12f, 0x1.8p-12f, 0) == 0x1.fffffcp-1f);
}

TEST_CASE("mma.sync of fp8: fp16 products of the halves of registers, then an addition that rounds to nearest") {
  const auto sum = [](MatrixType result, std::initializer_list<std::pair<int, float>> elements, float c) {
    constexpr std::uint32_t kK = 32;
    std::vector<std::uint8_t> a(kK), b(kK, encode<E5m2>(1.0));
    for (const auto& [k, value] : elements) a[static_cast<std::size_t>(k)] = encode<E5m2>(double{value});
    std::vector<float> d(16);
    d[0] = c;
    multiply_mma({MatrixType::e5m2, a.data(), 1}, {MatrixType::e5m2, b.data(), 1}, kK, result, d.data(), 16);
    return d[0];
  };
  using enum MatrixType;
  // Steps of 2^-15 at 256: a fused sum would cut these to none. Ties go to even.
  CHECK(sum(f32, {{0, 0x1.8p-16f}}, 256) == 256 + 0x1p-15f);
  CHECK(sum(f32, {{0, 0x1p-16f}}, 256) == 256);
  CHECK(sum(f32, {{0, 0x1p-16f}}, 256 + 0x1p-15f) == 256 + 0x1p-14f);
  // Elements 0, 1, 4, 5, ... first: their fp16 sum 2048 + 1 is rounded before 2 and 3 are added.
  CHECK(sum(f16, {{0, 2048}, {5, 1}}, 0) == 2048);
  CHECK(sum(f16, {{0, 2048}, {5, 1}, {2, 1}}, 0) == 2048);
  CHECK(sum(f16, {{0, 2048}, {5, 1}, {2, 1}, {31, 1}}, 0) == 2050);
  CHECK(sum(f16, {{0, 2048}, {5, 1}, {1, 1}}, 0) == 2050);
  CHECK(sum(f16, {{0, 2048}, {5, 1}}, 3) == 2052);
}

TEST_CASE("infinities and NaNs") {
  const Type& type = kTypes[1];
  const auto sum = [&](std::uint32_t a0, std::uint32_t b0, std::uint32_t a1, std::uint32_t b1, float c, bool half) {
    Product p{1, 1, 16, std::vector<std::uint32_t>(16), std::vector<std::uint32_t>(16), {c}};
    p.a[0] = a0;
    p.b[0] = b0;
    p.a[1] = a1;
    p.b[1] = b1;
    SumModel model;
    model.half_result = half;
    return computed(p, type, model)[0];
  };
  constexpr std::uint32_t kOne = 0x3C00, kInf = 0x7C00, kNegative = 0x8000;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(sum(kInf, kOne, 0, 0, 1, false) == kInfinity);
  CHECK(sum(kInf, kOne | kNegative, kOne, kOne, 1, false) == -kInfinity);
  CHECK(std::bit_cast<std::uint32_t>(sum(kInf, 0, 0, 0, 0, false)) == 0x7FFFFFFF);
  CHECK(std::bit_cast<std::uint32_t>(sum(kInf, kOne, kInf, kOne | kNegative, 0, false)) == 0x7FFFFFFF);
  CHECK(std::isnan(sum(0x7E00, kOne, 0, 0, 0, false)));
  CHECK(sum(kOne, kOne, 0, 0, -kInfinity, false) == -kInfinity);
  CHECK(std::isnan(sum(kInf, kOne, 0, 0, -kInfinity, false)));
  // fp16 results overflow to infinity.
  CHECK(sum(0x7BFF, kOne, 0x7BFF, kOne, 0, true) == kInfinity);
  CHECK(sum(0x7BFF, kOne, 0, 0, 0, true) == 65504.0f);
  CHECK(std::isnan(sum(0x7E00, kOne, 0, 0, 0, true)));
}

TEST_CASE("integers are exact, wrap or saturate") {
  std::mt19937 random(9);
  for (MatrixType type : {MatrixType::s8, MatrixType::u8, MatrixType::s4, MatrixType::u4}) {
    const int bits = element_bits(type), k = 256 / bits, n = 24;
    FloatOperand a, b;
    a.resize(2, static_cast<std::uint32_t>(k));
    b.resize(static_cast<std::uint32_t>(k), n);
    std::vector<std::uint32_t> left(static_cast<std::size_t>(2 * k)), right(static_cast<std::size_t>(n * k));
    for (std::uint32_t& x : left) x = random() & ((1u << bits) - 1);
    for (std::uint32_t& x : right) x = random() & ((1u << bits) - 1);
    const auto value = [&](std::uint32_t x) {
      const bool is_signed = type == MatrixType::s8 || type == MatrixType::s4;
      return static_cast<std::int64_t>(x) - (is_signed && x >> (bits - 1) != 0 ? 1 << bits : 0);
    };
    for (int i = 0; i < 2; ++i) {
      decode_row(type, packed(&left[static_cast<std::size_t>(i * k)], k, bits).data(), static_cast<std::uint32_t>(k),
                 false, &a, static_cast<std::uint32_t>(i));
    }
    for (int j = 0; j < n; ++j) {
      decode_column(type, packed(&right[static_cast<std::size_t>(j * k)], k, bits).data(),
                    static_cast<std::uint32_t>(k), false, &b, 0, static_cast<std::uint32_t>(j));
    }
    for (std::int32_t c : {0, 2147483600, -2147483600}) {
      for (bool saturate : {false, true}) {
        std::vector<std::int32_t> d(64, c);
        multiply_integers(a, b, saturate, d.data(), 32);
        for (int i = 0; i < 2; ++i) {
          for (int j = 0; j < n; ++j) {
            std::int64_t sum = c;
            for (int l = 0; l < k; ++l) {
              sum +=
                  value(left[static_cast<std::size_t>(i * k + l)]) * value(right[static_cast<std::size_t>(j * k + l)]);
            }
            if (saturate) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
            REQUIRE(d[static_cast<std::size_t>(i * 32 + j)] == static_cast<std::int32_t>(sum));
          }
        }
      }
    }
  }
  const std::uint8_t ones[4] = {0xFF, 0x0F, 0, 1}, others[4] = {0x0F, 0xFF, 0, 0};
  std::int32_t d[2] = {10, 0};
  multiply_bits(ones, 1, others, 1, 4, false, &d[0], 1);
  multiply_bits(ones, 1, others, 1, 4, true, &d[1], 1);
  CHECK(d[0] == 18);
  CHECK(d[1] == 9);
}

// -- layouts ----------------------------------------------------------------------------------------------

namespace {

std::uint64_t descriptor(std::uint32_t start, std::uint32_t leading, std::uint32_t stride, Swizzle swizzle) {
  constexpr std::uint64_t kMode[] = {0, 3, 2, 1};
  return std::uint64_t{start >> 4} | std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32 |
         kMode[static_cast<int>(swizzle)] << 62;
}

}  // namespace

TEST_CASE("descriptor fields") {
  const MatrixDescriptor d = decode_descriptor(descriptor(0x1230, 0x400, 0x3FFF0, Swizzle::bytes64) | 5ull << 49);
  CHECK(d.start == 0x1230);
  CHECK(d.leading == 0x400);
  CHECK(d.stride == 0x3FFF0);
  CHECK(d.swizzle == Swizzle::bytes64);
  CHECK(d.base_offset == 5);
  CHECK_FALSE(d.reserved_bits);
  CHECK(decode_descriptor(1ull << 15).reserved_bits);
  CHECK(decode_descriptor(1ull << 61).reserved_bits);
}

TEST_CASE("K-major operands read what a tensor copy with the same swizzle wrote") {
  // A tile of 64 rows and one swizzle span, loaded as one box; each k-step of 32 bytes is further along the row.
  for (Swizzle swizzle : {Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    const std::uint32_t span = swizzle_bytes(swizzle);
    std::vector<std::uint8_t> tensor(64 * span);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::uint8_t>(i / 16 % 251);
    TensorMapDescription map;
    map.type = TensorType::u8;
    map.rank = 2;
    map.base = tensor.data();
    map.dims = {span, 64};
    map.strides = {span};
    map.box = {span, 64};
    map.swizzle = swizzle;
    std::vector<std::uint8_t> shared(2048 + tensor.size());
    load_box(TensorBox(map, {}), shared.data(), 2048, [](std::uint64_t address, std::uint32_t) {
      return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(address));
    });
    for (std::uint32_t step = 0; step < span / 32; ++step) {
      const MatrixDescriptor d = decode_descriptor(descriptor(2048 + step * 32, 16, 8 * span, swizzle));
      for (std::uint32_t row = 0; row < 64; ++row) {
        for (std::uint32_t half = 0; half < 2; ++half) {
          const std::uint32_t chunk = (row * span + step * 32 + half * 16) / 16;
          REQUIRE(shared[k_major_chunk(d, row, half)] == chunk % 251);
        }
      }
    }
  }
}

TEST_CASE("MN-major operands read a row-major tile, whose rows are K, in boxes of one swizzle span") {
  for (Swizzle swizzle : {Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    const std::uint32_t span = swizzle_bytes(swizzle), boxes = 256 / span, rows = 32;
    // 32 rows of K, 128 elements of 16 bits along N; boxes of `span` bytes stand one behind the other.
    std::vector<std::uint8_t> tensor(rows * 256);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::uint8_t>(i / 16 % 251);
    TensorMapDescription map;
    map.type = TensorType::u8;
    map.rank = 2;
    map.base = tensor.data();
    map.dims = {256, rows};
    map.strides = {256};
    map.box = {span, rows};
    map.swizzle = swizzle;
    std::vector<std::uint8_t> shared(1024 + tensor.size());
    for (std::uint32_t i = 0; i < boxes; ++i) {
      load_box(TensorBox(map, {static_cast<std::int32_t>(i * span)}), shared.data(), 1024 + i * span * rows,
               [](std::uint64_t address, std::uint32_t) {
                 return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(address));
               });
    }
    for (std::uint32_t step = 0; step < rows / 16; ++step) {
      const MatrixDescriptor d = decode_descriptor(descriptor(1024 + step * 16 * span, span * rows, 8 * span, swizzle));
      for (std::uint32_t k = 0; k < 16; ++k) {
        for (std::uint32_t chunk = 0; chunk < 16; ++chunk) {
          REQUIRE(shared[mn_major_chunk(d, chunk, k)] == ((step * 16 + k) * 16 + chunk) % 251);
        }
      }
    }
  }
}

TEST_CASE("operands without a swizzle are core matrices of 128 bytes") {
  const MatrixDescriptor d = decode_descriptor(descriptor(4096, 256, 1024, Swizzle::none));
  CHECK(k_major_chunk(d, 0, 0) == 4096);
  CHECK(k_major_chunk(d, 3, 0) == 4096 + 48);
  CHECK(k_major_chunk(d, 3, 1) == 4096 + 48 + 256);
  CHECK(k_major_chunk(d, 11, 1) == 4096 + 48 + 256 + 1024);
  CHECK(mn_major_chunk(d, 0, 3) == 4096 + 48);
  CHECK(mn_major_chunk(d, 2, 3) == 4096 + 48 + 2048);
  CHECK(mn_major_chunk(d, 2, 11) == 4096 + 48 + 2048 + 256);
}

TEST_CASE("fragments cover their matrices once") {
  const auto covers = [](std::uint32_t words, std::uint32_t bytes_each, std::uint32_t total, const auto& place) {
    std::set<std::uint32_t> seen;
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t i = 0; i < words; ++i) seen.insert(place(lane, i));
    }
    return seen.size() == 32 * words && 32 * words * bytes_each == total && *seen.rbegin() == total - bytes_each;
  };
  for (std::uint32_t k_bytes : {16u, 32u}) {
    for (std::uint32_t rows : {8u, 16u}) {
      CHECK(covers(rows * k_bytes / 128, 4, rows * k_bytes, [&](std::uint32_t lane, std::uint32_t i) {
        const FragmentPlace p = a_fragment(lane, i, rows);
        return p.row * k_bytes + p.byte;
      }));
    }
    CHECK(covers(k_bytes / 16, 4, 8 * k_bytes, [&](std::uint32_t lane, std::uint32_t i) {
      const FragmentPlace p = b_fragment(lane, i);
      return p.row * k_bytes + p.byte;
    }));
  }
  for (std::uint32_t columns : {8u, 64u}) {
    CHECK(covers(columns / 2, 1, 16 * columns, [&](std::uint32_t lane, std::uint32_t i) {
      const AccumulatorPlace p = accumulator_fragment(lane, i, false, 16);
      return p.row * columns + p.column;
    }));
    CHECK(covers(columns / 4, 2, 16 * columns, [&](std::uint32_t lane, std::uint32_t i) {
      const AccumulatorPlace p = accumulator_fragment(lane, i, true, 16);
      return p.row * columns + p.column;
    }));
  }
  // Corners, from the instruction set's tables.
  CHECK(a_fragment(31, 3, 16).row == 15);
  CHECK(a_fragment(31, 3, 16).byte == 28);
  CHECK(a_fragment(5, 1, 16).row == 9);
  CHECK(a_fragment(5, 1, 16).byte == 4);
  CHECK(accumulator_fragment(6, 3, false, 16).row == 9);
  CHECK(accumulator_fragment(6, 3, false, 16).column == 5);
  CHECK(accumulator_fragment(6, 7, false, 16).column == 13);
  CHECK(accumulator_fragment(6, 1, true, 16).row == 9);
}
