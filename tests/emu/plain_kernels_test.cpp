// Kernels as people write them, compiled by NVRTC, run on the emulator in several orders and compared with the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "tests/emu/kernel_support.h"

namespace attune::emulator::tests {
namespace {

/// Small whole numbers: sums of their products are exact in any order.
template <typename T>
std::vector<T> small_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<int>(random() % 9) - 4);
  return values;
}

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](float v) { return tests::to_bf16(v); });
  return result;
}

template <typename T>
void check_equal(std::span<T> got, const std::vector<T>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      FAIL_CHECK("element " << i << " is " << got[i] << ", not " << expected[i]);
      return;
    }
  }
}

void check_clean(const Report& report) { CHECK_MESSAGE(report.clean(), report.text()); }

TEST_CASE("block reduction by shuffles") {
  KernelTest test("block_reduce");
  if (!test.available()) return;
  constexpr int kRows = 5, kColumns = 700;
  const auto x = small_numbers<float>(kRows * kColumns, 1);
  std::vector<float> expected;
  for (int i = 0; i < kRows; ++i) {
    expected.push_back(std::accumulate(x.begin() + i * kColumns, x.begin() + (i + 1) * kColumns, 0.0f));
  }
  const auto in = test.upload(x);
  const auto sums = test.allocate<float>(kRows);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(sums);
    check_clean(test.launch(launch_options(kRows, 128, seed), in.data(), sums.data(), kColumns));
    check_equal(sums, expected);
  }
}

TEST_CASE("grid-wide reduction by a counter and fences") {
  KernelTest test("grid_reduce");
  if (!test.available()) return;
  constexpr int kBlocks = 6, kCount = 5000;
  const auto x = small_numbers<int>(kCount, 2);
  const auto in = test.upload(x);
  const auto partial = test.allocate<int>(kBlocks), result = test.allocate<int>(1);
  for (const std::uint64_t seed : kSeeds) {
    for (const int resident : {1, kBlocks}) {
      test.clear(partial);
      test.clear(result);
      LaunchOptions options = launch_options(kBlocks, 128, seed);
      options.resident_blocks = resident;
      check_clean(test.launch(options, in.data(), partial.data(), result.data(), kCount));
      CHECK(result[0] == std::accumulate(x.begin(), x.end(), 0));
    }
  }
}

TEST_CASE("inclusive scan") {
  KernelTest test("scan");
  if (!test.available()) return;
  constexpr int kBlocks = 3;
  const auto x = small_numbers<int>(kBlocks * 256, 3);
  std::vector<int> expected(x.size());
  for (int i = 0; i < kBlocks; ++i) {
    std::partial_sum(x.begin() + i * 256, x.begin() + (i + 1) * 256, expected.begin() + i * 256);
  }
  const auto in = test.upload(x);
  const auto sums = test.allocate<int>(x.size());
  for (const std::uint64_t seed : kSeeds) {
    test.clear(sums);
    check_clean(test.launch(launch_options(kBlocks, 256, seed), in.data(), sums.data()));
    check_equal(sums, expected);
  }
}

TEST_CASE("transpose through shared memory") {
  KernelTest test("transpose");
  if (!test.available()) return;
  constexpr int kRows = 70, kColumns = 45;
  const auto x = small_numbers<float>(kRows * kColumns, 4);
  std::vector<float> expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) expected[i % kColumns * kRows + i / kColumns] = x[i];
  const auto in = test.upload(x), out = test.allocate<float>(x.size());
  for (const std::uint64_t seed : kSeeds) {
    test.clear(out);
    LaunchOptions options = launch_options(1, 1, seed);
    options.grid = {2, 3, 1};
    options.block = {32, 8, 1};
    options.resident_blocks = 4;
    check_clean(test.launch(options, in.data(), out.data(), kRows, kColumns));
    check_equal(out, expected);
  }
}

TEST_CASE("histogram by shared and global atomics") {
  KernelTest test("histogram");
  if (!test.available()) return;
  constexpr int kCount = 3000;
  std::mt19937 random(5);
  std::vector<std::uint8_t> x(kCount);
  std::vector<unsigned> expected(256);
  for (auto& value : x) ++expected[value = static_cast<std::uint8_t>(random() % 64 + random() % 192)];
  const auto in = test.upload(x);
  for (const std::uint64_t seed : kSeeds) {
    const auto bins = test.upload(std::vector<unsigned>(256)), most = test.upload(std::vector<unsigned>(1));
    check_clean(test.launch(launch_options(3, 128, seed), in.data(), bins.data(), most.data(), kCount));
    check_equal(bins, expected);
    CHECK(most[0] > 0);
    CHECK(most[0] <= std::ranges::max(expected));
  }
}

/// A [m][k], B [n][k].
std::vector<float> multiply(const std::vector<float>& a, const std::vector<float>& b, int m, int n, int k) {
  std::vector<float> c(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      c[static_cast<std::size_t>(i * n + j)] =
          std::inner_product(a.begin() + i * k, a.begin() + (i + 1) * k, b.begin() + j * k, 0.0f);
    }
  }
  return c;
}

TEST_CASE("GEMM by cp.async, ldmatrix and mma.sync") {
  KernelTest test("cp_async_gemm");
  if (!test.available()) return;
  constexpr int kM = 128, kN = 192, kK = 160;
  const auto a = small_numbers<float>(kM * kK, 6), b = small_numbers<float>(kN * kK, 7);
  const auto expected = multiply(a, b, kM, kN, kK);
  const auto in_a = test.upload(to_bf16(a)), in_b = test.upload(to_bf16(b));
  const auto c = test.allocate<float>(expected.size());
  for (const std::uint64_t seed : kSeeds) {
    test.clear(c);
    LaunchOptions options = launch_options(1, 128, seed);
    options.grid = {kN / 64, kM / 64, 1};
    options.resident_blocks = 3;
    check_clean(test.launch(options, in_a.data(), in_b.data(), c.data(), kN, kK));
    check_equal(c, expected);
  }
}

TensorMap tile_map(const void* base, TensorType type, unsigned columns, unsigned rows, unsigned element_bytes,
                   unsigned box_columns, unsigned box_rows, Swizzle swizzle) {
  TensorMapDescription description;
  description.type = type;
  description.rank = 2;
  description.base = base;
  description.dims = {columns, rows};
  description.strides = {columns * element_bytes};
  description.box = {box_columns, box_rows};
  description.swizzle = swizzle;
  return encode_tensor_map(description);
}

TEST_CASE("GEMM by TMA, mbarriers and wgmma") {
  KernelTest test("tma_gemm");
  if (!test.available()) return;
  constexpr int kM = 128, kN = 64, kK = 320;
  const auto a = small_numbers<float>(kM * kK, 8), b = small_numbers<float>(kN * kK, 9);
  const auto expected = multiply(a, b, kM, kN, kK);
  const auto in_a = test.upload(to_bf16(a)), in_b = test.upload(to_bf16(b));
  const auto c = test.allocate<float>(expected.size());
  const TensorMap map_a = tile_map(in_a.data(), TensorType::bf16, kK, kM, 2, 64, 64, Swizzle::bytes128);
  const TensorMap map_b = tile_map(in_b.data(), TensorType::bf16, kK, kN, 2, 64, 64, Swizzle::bytes128);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(c);
    LaunchOptions options = launch_options(1, 160, seed);
    options.grid = {kN / 64, kM / 64, 1};
    options.dynamic_shared_bytes = 4 * 8192 + 32 + 1024;
    check_clean(test.launch(options, map_a, map_b, c.data(), kN, kK));
    check_equal(c, expected);
  }
}

TEST_CASE("GEMM by wgmma with A in registers and B transposed") {
  KernelTest test("wgmma_registers");
  if (!test.available()) return;
  constexpr int kN = 32, kK = 128;
  const auto a = small_numbers<float>(64 * kK, 10), b = small_numbers<float>(kN * kK, 11);
  std::vector<float> b_rows(b.size());
  for (std::size_t i = 0; i < b.size(); ++i) b_rows[i % kK * kN + i / kK] = b[i];
  const auto expected = multiply(a, b, 64, kN, kK);
  const auto in_a = test.upload(to_bf16(a)), in_b = test.upload(to_bf16(b_rows));
  const auto c = test.allocate<float>(expected.size());
  for (const std::uint64_t seed : kSeeds) {
    test.clear(c);
    check_clean(test.launch(launch_options(1, 128, seed), in_a.data(), in_b.data(), c.data(), kK));
    check_equal(c, expected);
  }
}

TEST_CASE("cluster reduction over distributed shared memory") {
  KernelTest test("cluster_reduce");
  if (!test.available()) return;
  constexpr int kCount = 3000;
  const auto x = small_numbers<float>(kCount, 12);
  const auto in = test.upload(x);
  const auto sums = test.allocate<float>(2);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(sums);
    LaunchOptions options = launch_options(8, 64, seed);
    options.cluster = {4, 1, 1};
    check_clean(test.launch(options, in.data(), sums.data(), kCount));
    CHECK(sums[0] + sums[1] == std::accumulate(x.begin(), x.end(), 0.0f));
  }
}

TEST_CASE("TMA multicast within a cluster") {
  KernelTest test("multicast");
  if (!test.available()) return;
  constexpr int kTile = 32 * 16, kClusters = 2;
  const auto x = small_numbers<float>(kClusters * kTile, 13);
  const auto in = test.upload(x);
  const auto out = test.allocate<float>(2 * x.size());
  std::vector<float> expected;
  for (int block = 0; block < 2 * kClusters; ++block) {
    for (int i = 0; i < kTile; ++i) {
      expected.push_back(x[static_cast<std::size_t>(block / 2 * kTile + i)] + static_cast<float>(block % 2));
    }
  }
  const TensorMap map = tile_map(in.data(), TensorType::f32, 16, kClusters * 32, 4, 16, 16, Swizzle::none);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(out);
    LaunchOptions options = launch_options(2 * kClusters, 64, seed);
    options.cluster = {2, 1, 1};
    check_clean(test.launch(options, map, out.data()));
    check_equal(out, expected);
  }
}

TEST_CASE("softmax in packed fp16 and bf16") {
  KernelTest test("softmax");
  if (!test.available()) return;
  constexpr int kRows = 8, kColumns = 256;
  std::mt19937 random(14);
  std::vector<std::uint16_t> x(kRows * kColumns);
  // fp16 from -8 to 8: the sign, an exponent up to that of 4, any fraction.
  for (auto& value : x)
    value = static_cast<std::uint16_t>((random() & 1) << 15 | (10 + random() % 8) << 10 | (random() & 1023));
  const auto in = test.upload(x);
  const auto half = test.allocate<std::uint16_t>(x.size()), bfloat = test.allocate<std::uint16_t>(x.size());
  for (const std::uint64_t seed : kSeeds) {
    test.clear(half);
    test.clear(bfloat);
    check_clean(test.launch(launch_options(kRows / 4, 128, seed), in.data(), half.data(), bfloat.data()));
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto value = [&](std::size_t i) { return static_cast<double>(from_fp16(x[row * kColumns + i])); };
      double most = -100, sum = 0;
      for (std::size_t i = 0; i < kColumns; ++i) most = std::max(most, value(i));
      for (std::size_t i = 0; i < kColumns; ++i) sum += std::exp(value(i) - most);
      for (std::size_t i = 0; i < kColumns; ++i) {
        const double expected = std::exp(value(i) - most) / sum;
        REQUIRE(from_fp16(half[row * kColumns + i]) == doctest::Approx(expected).epsilon(0.03).scale(1e-4));
        REQUIRE(from_bf16(bfloat[row * kColumns + i]) == doctest::Approx(expected / 2).epsilon(0.04).scale(1e-4));
      }
    }
  }
}

/// The 8-bit code nearest to a value, the even one of two; the largest finite one for what is larger.
struct Fp8 {
  int fraction_bits, bias;
  int largest;  ///< code

  float value(int code) const {
    const int exponent = (code & 0x7f) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    const float magnitude = std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - fraction_bits);
    return code & 0x80 ? -magnitude : magnitude;
  }
  int code(float number) const {
    if (std::isnan(number)) return 0x7f;
    const int sign = std::signbit(number) ? 0x80 : 0;
    if (std::abs(number) > value(largest)) return sign | largest;
    int best = 0;
    for (int candidate = 0; candidate <= largest; ++candidate) {
      const double difference = std::abs(static_cast<double>(std::abs(number)) - static_cast<double>(value(candidate)));
      const double least = std::abs(static_cast<double>(std::abs(number)) - static_cast<double>(value(best)));
      if (difference < least || (difference == least && candidate % 2 == 0)) best = candidate;
    }
    return sign | best;
  }
};

TEST_CASE("conversions to and from 8-bit floats") {
  KernelTest test("fp8_convert");
  if (!test.available()) return;
  std::mt19937 random(15);
  std::vector<float> x = {
      0,       -0.0f,    448,      449,      464,        465,      57344,    61440,           70000,
      -1e9f,   1e-9f,    0x1p-9f,  0x1p-10f, 0x1.8p-10f, 0x1p-16f, 0x1p-17f, 0x1.000002p-17f, 1.0625f,
      1.1875f, -1.0625f, INFINITY, -INFINITY};
  while (x.size() < 600) {
    x.push_back(
        std::ldexp(static_cast<float>(static_cast<int>(random() % 4096) - 2048), static_cast<int>(random() % 30) - 25));
  }
  const Fp8 e4m3{3, 7, 0x7e}, e5m2{2, 15, 0x7b};
  const auto in = test.upload(x);
  const auto a = test.allocate<std::uint8_t>(x.size()), b = test.allocate<std::uint8_t>(x.size());
  const auto a_back = test.allocate<float>(x.size()), b_back = test.allocate<float>(x.size());
  check_clean(test.launch(launch_options(3, 128, 1), in.data(), a.data(), b.data(), a_back.data(), b_back.data(),
                          static_cast<int>(x.size() / 2)));
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    CHECK(static_cast<int>(a[i]) == e4m3.code(x[i]));
    CHECK(static_cast<int>(b[i]) == e5m2.code(x[i]));
    CHECK(a_back[i] == e4m3.value(a[i]));
    CHECK(b_back[i] == e5m2.value(b[i]));
  }
}

TEST_CASE("printf and assertions") {
  KernelTest test("print_assert");
  if (!test.available()) return;
  std::vector<int> x(64);
  std::iota(x.begin(), x.end(), 0);
  const auto in = test.upload(x);
  for (const std::uint64_t seed : kSeeds) {
    const Report report = test.launch(launch_options(1, 64, seed), in.data(), 100);
    check_clean(report);
    std::vector<std::string> lines;
    std::istringstream text(report.output);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    std::ranges::sort(lines);
    CHECK(lines == std::vector<std::string>{"thread 19 of 64:  9.50|19  |text|c|13|1099511627776|%",
                                            "thread 3 of 64:  1.50|3   |text|c|3|1099511627776|%",
                                            "thread 35 of 64: 17.50|35  |text|c|23|1099511627776|%",
                                            "thread 51 of 64: 25.50|51  |text|c|33|1099511627776|%"});
  }
  const Report report = test.launch(launch_options(1, 64, 0), in.data(), 50);
  REQUIRE(!report.clean());
  const Finding& finding = report.findings.front();
  CHECK(finding.kind == FindingKind::trap);
  CHECK(finding.message.find("value < limit") != std::string::npos);
  CHECK(finding.thread.thread.x >= 50);
  CHECK(finding.at.line == 8);
}

TEST_CASE("two warps that wait for each other by looking") {
  KernelTest test("spin_wait");
  if (!test.available()) return;
  constexpr int kRounds = 5;
  const auto x = small_numbers<int>(32, 16);
  std::vector<int> expected = x;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> back(32);
    for (std::size_t i = 0; i < 32; ++i) back[i] = expected[i] + static_cast<int>(i);
    for (std::size_t i = 0; i < 32; ++i) expected[i] = back[31 - i];
  }
  const auto in = test.upload(x), out = test.allocate<int>(32);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(out);
    check_clean(test.launch(launch_options(1, 64, seed), in.data(), out.data(), kRounds));
    check_equal(out, expected);
  }
}

TEST_CASE("indirect look-ups in constant memory") {
  KernelTest test("const_table");
  if (!test.available()) return;
  constexpr int kSteps = 11;
  const int next[] = {3, 7, 0, 5, 1, 2, 4, 6};
  std::vector<float> expected;
  for (int thread = 0; thread < 32; ++thread) {
    float sum = 0;
    for (int i = 0, entry = thread % 8; i < kSteps; ++i, entry = next[entry]) {
      sum += (static_cast<float>(entry) + 0.5f) * (i % 2 == 0 ? 1.0f : -2.0f);
    }
    expected.push_back(sum);
  }
  const auto out = test.allocate<float>(32);
  for (const std::uint64_t seed : kSeeds) {
    test.clear(out);
    check_clean(test.launch(launch_options(1, 32, seed), out.data(), kSteps));
    check_equal(out, expected);
  }
}

}  // namespace
}  // namespace attune::emulator::tests
