// wgmma, mma, ldmatrix and their like on running threads: results, and what is done wrong with them.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/tensor_core.h"
#include "tests/emu/native_kernel.h"

using namespace attune::emulator;
using namespace attune::emulator::tests;

namespace {

constexpr std::uint32_t kA = kShared + 1024, kB = kA + 8192;
constexpr std::uint32_t kElements = 28 << 10;  ///< bytes of shared memory

/// A product whose values are small integers, so that every type and every order gives the same.
struct Product {
  WgmmaInfo info{};
  std::uint64_t a_descriptor = 0, b_descriptor = 0;
  bool scale_d = true;
  std::vector<int> a, b, c;  ///< [m][k], [n][k], [m][n]

  int at_a(std::uint32_t m, std::uint32_t k) const { return a[m * info.k + k]; }
  int at_b(std::uint32_t n, std::uint32_t k) const { return b[n * info.k + k]; }
  int expected(std::uint32_t m, std::uint32_t n) const {
    int sum = scale_d ? c[m * info.n + n] : 0;
    for (std::uint32_t k = 0; k < info.k; ++k) sum += info.scale_a * info.scale_b * at_a(m, k) * at_b(n, k);
    return sum;
  }
};

std::uint32_t encoded(MatrixType type, int value) {
  switch (type) {
    case MatrixType::f16: return encode<Fp16>(value);
    case MatrixType::bf16: return encode<Bf16>(value);
    case MatrixType::tf32:
    case MatrixType::f32: return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case MatrixType::e4m3: return encode<E4m3>(value);
    case MatrixType::e5m2: return encode<E5m2>(value);
    default:
      return static_cast<std::uint32_t>(value) & (element_bits(type) == 32 ? ~0u : (1u << element_bits(type)) - 1);
  }
}

/// Values that all types hold: e5m2 has two bits of mantissa.
int small_value(MatrixType type, std::mt19937& random) {
  if (type == MatrixType::b1) return static_cast<int>(random() % 2);
  if (type == MatrixType::u8 || type == MatrixType::u4) return static_cast<int>(random() % 4);
  return static_cast<int>(random() % 7) - 3;
}

void put_element(std::vector<std::uint8_t>* row, MatrixType type, std::uint32_t index, int value) {
  const auto bits = static_cast<std::uint32_t>(element_bits(type));
  const std::uint32_t word = encoded(type, value);
  if (bits >= 8) {
    std::memcpy(row->data() + index * bits / 8, &word, bits / 8);
  } else {
    (*row)[index * bits / 8] |= static_cast<std::uint8_t>(word << index * bits % 8);
  }
}

/// Rows of 32 bytes along K.
std::vector<std::uint8_t> row_bytes(const Product& p, bool of_b, std::uint32_t row) {
  std::vector<std::uint8_t> bytes(kWgmmaKBytes);
  for (std::uint32_t k = 0; k < p.info.k; ++k) {
    put_element(&bytes, of_b ? p.info.b : p.info.a, k, of_b ? p.at_b(row, k) : p.at_a(row, k));
  }
  return bytes;
}

std::uint64_t descriptor(std::uint32_t start, std::uint32_t leading, std::uint32_t stride, Swizzle swizzle) {
  constexpr std::uint64_t kMode[] = {0, 3, 2, 1};
  return std::uint64_t{start >> 4} | std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32 |
         kMode[static_cast<int>(swizzle)] << 62;
}

// Native kernels are plain functions: what they work on stands here.
struct {
  Product product;
  std::array<std::uint16_t, 128> d_slots{};
  std::array<std::uint16_t, 4> a_slots{};
  std::vector<std::uint8_t> shared;                   ///< contents from kShared on
  std::function<void(ThreadContext*)> before, after;  ///< around the product
  std::vector<std::vector<std::uint32_t>> results;    ///< accumulator words by thread
} state;

void fill_shared(ThreadContext* c) {
  for (std::uint32_t i = 16 * c->index; i < state.shared.size(); i += 16 * c->block->thread_count) {
    for (std::uint32_t word = 0; word < 16; word += 4) {
      std::uint32_t value;
      std::memcpy(&value, state.shared.data() + i + word, 4);
      store(c, AddressSpace::shared, kShared + i + word, value, 50);
    }
  }
}

std::uint32_t accumulator_count(const WgmmaInfo& info) { return info.n / (info.d == MatrixType::f16 ? 4u : 2u); }

void fill_registers(ThreadContext* c) {
  const Product& p = state.product;
  const std::uint32_t warp = c->index / 32;
  for (std::uint32_t i = 0; i < accumulator_count(p.info); ++i) {
    const bool half = p.info.d == MatrixType::f16;
    const AccumulatorPlace place = accumulator_fragment(c->lane, i, half, 16);
    const int* at = &p.c[(warp * 16 + place.row) * p.info.n + place.column];
    c->slots[state.d_slots[i]] =
        half ? encoded(p.info.d, at[0]) | encoded(p.info.d, at[1]) << 16 : encoded(p.info.d, at[0]);
  }
  if (!p.info.a_in_registers) return;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const FragmentPlace place = a_fragment(c->lane, i, 16);
    std::memcpy(&c->slots[state.a_slots[i]], row_bytes(p, false, warp * 16 + place.row).data() + place.byte, 4);
  }
}

void multiply(ThreadContext* c, std::uint32_t site) {
  att_wgmma(c, &state.product.info, state.product.a_descriptor, state.product.b_descriptor, state.product.scale_d,
            site);
}

void product_kernel(ThreadContext* c) {
  fill_shared(c);
  fill_registers(c);
  att_fence(c, FenceKind::proxy_async, 51);
  sync(c, 0, 0, 52);
  att_wgmma_fence(c, 53);
  multiply(c, 54);
  att_wgmma_commit(c, 55);
  att_wgmma_wait(c, 0, 56);
  std::vector<std::uint32_t>& words = state.results[c->index];
  for (std::uint32_t i = 0; i < accumulator_count(state.product.info); ++i) words.push_back(c->slots[state.d_slots[i]]);
}

Report run_warpgroup(Entry entry, std::uint64_t seed = 0, unsigned block = 128) {
  auto image = native_image(entry);
  image->kernels[0].slots = 256;
  const LoadedProgram program(image, 0, 0);
  LaunchOptions options;
  options.block.x = block;
  options.seed = seed;
  options.dynamic_shared_bytes = 32 << 10;
  std::uint64_t zero = 0;
  void* arguments[kParameters] = {&zero, &zero, &zero, &zero};
  state.results.assign(block, {});
  return Machine::create()->launch(program, "kernel", options, arguments);
}

void put(std::uint32_t address, const std::uint8_t* bytes, std::size_t count) {
  std::memcpy(state.shared.data() + (address - kShared), bytes, count);
}

/// Lays an operand out by its definition; gives its descriptor.
std::uint64_t place_operand(bool of_b, bool mn_major, Swizzle swizzle) {
  const Product& p = state.product;
  const std::uint32_t rows = of_b ? p.info.n : kWgmmaRows, start = of_b ? kB : kA, span = swizzle_bytes(swizzle);
  const auto type = of_b ? p.info.b : p.info.a;
  const auto write_at = [&](std::uint32_t offset, const std::uint8_t* bytes, std::size_t count) {
    put(swizzled(start + offset / 16 * 16, swizzle) + offset % 16, bytes, count);
  };
  if (!mn_major) {
    // 8 rows of one swizzle span stand together; without a swizzle each half of 16 bytes stands apart.
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::vector<std::uint8_t> bytes = row_bytes(p, of_b, row);
      for (std::uint32_t i = 0; i < kWgmmaKBytes; ++i) {
        const std::uint32_t offset =
            span == 0 ? row / 8 * 256 + i / 16 * 128 + row % 8 * 16 + i % 16 : row / 8 * 8 * span + row % 8 * span + i;
        write_at(offset, &bytes[i], 1);
      }
    }
    return span == 0 ? descriptor(start, 128, 256, swizzle) : descriptor(start, 16, 8 * span, swizzle);
  }
  // Rows of K; 8 of them, of one span along M or N, stand together, then the next 8 of K, then the next span.
  const std::uint32_t per_span = span == 0 ? 8 : span / 2;
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t k = 0; k < 16; ++k) {
      const std::uint32_t word = encoded(type, of_b ? p.at_b(row, k) : p.at_a(row, k));
      const std::uint32_t width = per_span * 2;
      const std::uint32_t offset = row / per_span * 16 * width + k / 8 * 8 * width + k % 8 * width + row % per_span * 2;
      write_at(offset, reinterpret_cast<const std::uint8_t*>(&word), 2);
    }
  }
  if (span == 0) return descriptor(start, 128, 256, swizzle);
  return descriptor(start, 16 * span, 8 * span, swizzle);
}

struct Variant {
  MatrixType a, b, d;
  std::uint16_t n, k;
  bool a_in_registers = false, transpose_a = false, transpose_b = false;
  Swizzle swizzle = Swizzle::bytes128;
};

void prepare(const Variant& v, std::mt19937& random) {
  Product& p = state.product;
  p = {};
  p.info.m = 64;
  p.info.n = v.n;
  p.info.k = v.k;
  p.info.a = v.a;
  p.info.b = v.b;
  p.info.d = v.d;
  p.info.a_in_registers = v.a_in_registers;
  p.info.transpose_a = v.transpose_a;
  p.info.transpose_b = v.transpose_b;
  const bool scales = !is_integer(v.a) && v.a != MatrixType::b1;
  p.info.scale_a = scales && random() % 2 == 0 ? -1 : 1;
  p.info.scale_b = scales && random() % 2 == 0 ? -1 : 1;
  p.scale_d = random() % 4 != 0;
  // Slots in no order, as a register allocator may leave them.
  std::array<std::uint16_t, 256> slots;
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::uint16_t>(i);
  std::shuffle(slots.begin(), slots.end(), random);
  std::copy_n(slots.begin(), 128, state.d_slots.begin());
  std::copy_n(slots.begin() + 128, 4, state.a_slots.begin());
  p.info.d_slots = state.d_slots.data();
  p.info.a_slots = v.a_in_registers ? state.a_slots.data() : nullptr;
  for (std::uint32_t i = 0; i < 64u * v.k; ++i) p.a.push_back(small_value(v.a, random));
  for (std::uint32_t i = 0; i < std::uint32_t{v.n} * v.k; ++i) p.b.push_back(small_value(v.b, random));
  for (std::uint32_t i = 0; i < 64u * v.n; ++i) p.c.push_back(static_cast<int>(random() % 100) - 50);
  state.shared.assign(kElements, 0);
  if (!v.a_in_registers) p.a_descriptor = place_operand(false, v.transpose_a, v.swizzle);
  p.b_descriptor = place_operand(true, v.transpose_b, v.swizzle);
}

void check_results() {
  const Product& p = state.product;
  const bool half = p.info.d == MatrixType::f16;
  for (std::uint32_t thread = 0; thread < 128; ++thread) {
    REQUIRE(state.results[thread].size() == accumulator_count(p.info));
    for (std::uint32_t i = 0; i < accumulator_count(p.info); ++i) {
      const AccumulatorPlace place = accumulator_fragment(thread % 32, i, half, 16);
      const std::uint32_t row = thread / 32 * 16 + place.row;
      std::uint32_t expected = encoded(p.info.d, p.expected(row, place.column));
      if (half) expected |= encoded(p.info.d, p.expected(row, place.column + 1)) << 16;
      REQUIRE(state.results[thread][i] == expected);
    }
  }
}

}  // namespace

TEST_CASE("wgmma: all types, swizzles, majors and sources of operands") {
  using enum MatrixType;
  std::vector<Variant> variants;
  for (Swizzle swizzle : {Swizzle::none, Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    for (const Variant& v : {Variant{bf16, bf16, f32, 64, 16},
                             {f16, f16, f32, 8, 16},
                             {f16, f16, f16, 24, 16},
                             {tf32, tf32, f32, 40, 8},
                             {e4m3, e5m2, f32, 32, 32},
                             {e5m2, e4m3, f16, 16, 32},
                             {s8, u8, s32, 32, 32},
                             {u8, u8, s32, 48, 32},
                             {b1, b1, s32, 24, 256},
                             {bf16, bf16, f32, 128, 16}}) {
      for (bool a_in_registers : {false, true}) {
        Variant variant = v;
        variant.swizzle = swizzle;
        variant.a_in_registers = a_in_registers;
        variants.push_back(variant);
        if (element_bits(v.a) != 16) continue;
        variant.transpose_b = true;
        variants.push_back(variant);
        variant.transpose_a = !a_in_registers;
        variants.push_back(variant);
      }
    }
  }
  std::mt19937 random(21);
  for (const Variant& v : variants) {
    CAPTURE(static_cast<int>(v.a));
    CAPTURE(v.n);
    CAPTURE(static_cast<int>(v.swizzle));
    CAPTURE(v.transpose_a);
    CAPTURE(v.transpose_b);
    CAPTURE(v.a_in_registers);
    prepare(v, random);
    const Report report = run_warpgroup(product_kernel, random() % 4);
    REQUIRE_MESSAGE(report.clean(), report.text());
    check_results();
  }
}

TEST_CASE("wgmma: integers stop at the ends of their range") {
  std::mt19937 random(2);
  prepare({MatrixType::s8, MatrixType::s8, MatrixType::s32, 16, 32}, random);
  state.product.info.saturate = true;
  state.product.scale_d = true;
  for (int& c : state.product.c) c = c < 0 ? -2147483647 : 2147483647;
  for (int& a : state.product.a) a = 3;
  for (int& b : state.product.b) b = 3;
  state.product.a_descriptor = place_operand(false, false, Swizzle::bytes128);
  state.product.b_descriptor = place_operand(true, false, Swizzle::bytes128);
  const Report report = run_warpgroup(product_kernel);
  CHECK_MESSAGE(report.clean(), report.text());
  for (const auto& words : state.results) {
    for (std::uint32_t word : words)
      CHECK((word == 2147483647 || static_cast<std::int32_t>(word) == -2147483647 + 288));
  }
}

namespace {

/// Two products into one accumulator and one into another, with a wait for the first group alone.
void chained_kernel(ThreadContext* c) {
  fill_shared(c);
  fill_registers(c);
  att_fence(c, FenceKind::proxy_async, 51);
  sync(c, 0, 0, 52);
  att_wgmma_fence(c, 53);
  multiply(c, 54);
  multiply(c, 55);
  att_wgmma_commit(c, 56);
  for (std::uint32_t i = 0; i < accumulator_count(state.product.info); ++i) {
    REQUIRE(c->slot_states[state.d_slots[i]] == kSlotBusy);
  }
  REQUIRE(c->slot_states[state.a_slots[0]] == kSlotRead);
  att_wgmma_wait(c, 1, 57);
  REQUIRE(c->slot_states[state.d_slots[0]] == kSlotBusy);
  att_wgmma_commit(c, 58);  // of nothing
  att_wgmma_wait(c, 1, 59);
  REQUIRE(c->slot_states[state.d_slots[0]] == kSlotFree);
  REQUIRE(c->slot_states[state.a_slots[0]] == kSlotFree);
  std::vector<std::uint32_t>& words = state.results[c->index];
  for (std::uint32_t i = 0; i < accumulator_count(state.product.info); ++i) words.push_back(c->slots[state.d_slots[i]]);
}

}  // namespace

TEST_CASE("wgmma: chains of products, groups and the states of registers") {
  std::mt19937 random(5);
  for (std::uint64_t seed : kSeeds) {
    prepare({MatrixType::bf16, MatrixType::bf16, MatrixType::f32, 64, 16, true}, random);
    state.product.scale_d = true;
    const Report report = run_warpgroup(chained_kernel, seed);
    REQUIRE_MESSAGE(report.clean(), report.text());
    // The product is added twice: as if the accumulator had begun with one of them.
    Product& p = state.product;
    const std::vector<int> c = p.c;
    for (std::uint32_t m = 0; m < 64; ++m) {
      for (std::uint32_t n = 0; n < p.info.n; ++n) p.c[m * p.info.n + n] = 2 * p.expected(m, n) - c[m * p.info.n + n];
    }
    for (int& a : p.a) a = 0;
    check_results();
  }
}

// -- what is done wrong -----------------------------------------------------------------------------------

namespace {

/// A kernel with faults to choose from.
struct {
  bool fence = true, write_after_fence = false, proxy_fence = true, barrier = true, overwrite_early = false,
       wait = true, own_rows_late = false, b_late = false;
} fault;

void faulty_kernel(ThreadContext* c) {
  fill_shared(c);
  if (fault.proxy_fence) att_fence(c, FenceKind::proxy_async, 51);
  if (fault.barrier) sync(c, 0, 0, 52);
  const std::uint32_t warp = c->index / 32;
  // Each warp writes 16 rows of A (or B) of its own, and orders that by itself alone.
  if ((fault.own_rows_late || fault.b_late) && c->lane == 0) {
    store(c, AddressSpace::shared, (fault.own_rows_late ? kA : kB) + warp * 2 * 256, 0u, 60);
    att_fence(c, FenceKind::proxy_async, 61);
  }
  if (fault.own_rows_late || fault.b_late) att_warp_sync(c, kAll, 62);
  if (fault.fence) att_wgmma_fence(c, 53);
  if (fault.write_after_fence) c->slot_states[state.d_slots[3]] |= kSlotWritten;
  multiply(c, 54);
  att_wgmma_commit(c, 55);
  if (fault.overwrite_early && c->index == 5) store(c, AddressSpace::shared, kB + 16, 0u, 63);
  if (fault.wait) att_wgmma_wait(c, 0, 56);
}

Report faulty() {
  std::mt19937 random(8);
  prepare({MatrixType::bf16, MatrixType::bf16, MatrixType::f32, 64, 16, false, false, false, Swizzle::none}, random);
  return run_warpgroup(faulty_kernel);
}

template <typename Change>
Finding fault_of(const Change& change, FindingKind kind) {
  fault = {};
  change();
  const Report report = faulty();
  CHECK_MESSAGE(report.findings.size() == 1, report.text());
  return find(report, kind);
}

}  // namespace

TEST_CASE("wgmma: what is done wrong around it") {
  fault = {};
  Report report = faulty();
  CHECK_MESSAGE(report.clean(), report.text());
  fault.own_rows_late = true;
  report = faulty();
  CHECK_MESSAGE(report.clean(), report.text());

  CHECK(contains(fault_of([] { fault.fence = false; }, FindingKind::register_hazard).message, "no wgmma.fence"));
  CHECK(contains(fault_of([] { fault.write_after_fence = true; }, FindingKind::register_hazard).message,
                 "accumulator registers were written after"));
  const Finding proxy = fault_of([] { fault.proxy_fence = false; }, FindingKind::proxy_race);
  CHECK(proxy.at.ptx_line == 54);
  CHECK(proxy.other_at->ptx_line == 50);
  const Finding late = fault_of([] { fault.b_late = true; }, FindingKind::race);
  CHECK(late.at.ptx_line == 54);
  CHECK(late.other_at->ptx_line == 60);
  const Finding early = fault_of([] { fault.overwrite_early = true; }, FindingKind::race);
  CHECK(early.at.ptx_line == 63);
  CHECK(early.other_at->ptx_line == 54);
  fault = {};
  fault.barrier = false;
  CHECK(has(faulty(), FindingKind::race));
}

TEST_CASE("wgmma: descriptors and operands") {
  const auto with_descriptors = [](std::uint64_t a, std::uint64_t b) {
    static std::uint64_t extra_a, extra_b;
    extra_a = a;
    extra_b = b;
    std::mt19937 random(8);
    prepare({MatrixType::bf16, MatrixType::bf16, MatrixType::f32, 64, 16, false, false, false, Swizzle::none}, random);
    return run_warpgroup([](ThreadContext* c) {
      fill_shared(c);
      att_fence(c, FenceKind::proxy_async, 51);
      sync(c, 0, 0, 52);
      att_wgmma_fence(c, 53);
      state.product.a_descriptor |= extra_a;
      state.product.b_descriptor |= extra_b;
      multiply(c, 54);
      att_wgmma_commit(c, 55);
      att_wgmma_wait(c, 0, 56);
    });
  };
  CHECK(contains(find(with_descriptors(1ull << 15, 0), FindingKind::bad_operand).message, "A: bits that must be zero"));
  CHECK(contains(find(with_descriptors(0, 3ull << 49), FindingKind::bad_operand).message, "B: base offset"));
  CHECK(contains(find(with_descriptors(0, 0x2000), FindingKind::out_of_bounds).message, "the operand reaches"));

  std::mt19937 random(8);
  prepare({MatrixType::bf16, MatrixType::bf16, MatrixType::f32, 64, 16, true}, random);
  const Report report = run_warpgroup([](ThreadContext* c) {
    fill_shared(c);
    att_fence(c, FenceKind::proxy_async, 51);
    sync(c, 0, 0, 52);
    att_wgmma_fence(c, 53);
    att_wgmma(c, &state.product.info, 0, state.product.b_descriptor + (c->index == 77 ? 2 : 0), 1, 54);
    att_wgmma_commit(c, 55);
    att_wgmma_wait(c, 0, 56);
  });
  CHECK(find(report, FindingKind::divergence).thread.thread.x == 77);
}

TEST_CASE("wgmma: missing threads, and registers that are touched while they are busy") {
  std::mt19937 random(8);
  prepare({MatrixType::bf16, MatrixType::bf16, MatrixType::f32, 64, 16, true}, random);
  Report report = run_warpgroup(
      [](ThreadContext* c) {
        fill_shared(c);
        att_fence(c, FenceKind::proxy_async, 51);
        sync(c, 0, 0, 52);
        att_wgmma_fence(c, 53);
        multiply(c, 54);
        att_wgmma_commit(c, 55);
        att_wgmma_wait(c, 0, 56);
      },
      0, 96);
  CHECK(contains(find(report, FindingKind::divergence).message, "wgmma.mma_async"));

  report = run_warpgroup([](ThreadContext* c) {
    fill_shared(c);
    att_fence(c, FenceKind::proxy_async, 51);
    sync(c, 0, 0, 52);
    att_wgmma_fence(c, 53);
    multiply(c, 54);
    att_wgmma_commit(c, 55);
    if (c->index == 3) att_slot_hazard(c, state.d_slots[7], 0, 70);
    if (c->index == 4) att_slot_hazard(c, state.a_slots[2], 1, 71);
    att_wgmma_wait(c, 0, 56);
  });
  REQUIRE(report.findings.size() == 2);
  for (const Finding& finding : report.findings) {
    CHECK(finding.kind == FindingKind::register_hazard);
    CHECK(finding.other_at->ptx_line == 54);
  }
  CHECK(contains(report.text(), "read while a pending wgmma.mma_async accumulates into it"));
  CHECK(contains(report.text(), "written while a pending wgmma.mma_async reads it"));
}

// -- mma.sync -----------------------------------------------------------------------------------------------

namespace {

struct {
  MmaInfo info;
  std::vector<int> a, b, c;  ///< [m][k], [n][k], [m][n]
  std::array<std::array<std::uint32_t, 8>, 32> results;
} mma;

std::uint8_t words(unsigned rows, unsigned columns, MatrixType type) {
  return static_cast<std::uint8_t>(rows * columns * static_cast<unsigned>(element_bits(type)) / 1024);
}

void mma_kernel(ThreadContext* c) {
  const MmaInfo& info = mma.info;
  std::array<std::uint32_t, 40> operands{};
  std::uint32_t* const a = operands.data();
  std::uint32_t* const b = a + info.a_words;
  std::uint32_t* const accumulators = b + info.b_words;
  const std::uint32_t group = c->lane / 4, within = c->lane % 4;
  if (info.a == MatrixType::f64) {
    const auto put_double = [](std::uint32_t* at, int value) {
      const double real = value;
      std::memcpy(at, &real, 8);
    };
    for (std::uint32_t i = 0; i < info.a_words / 2u; ++i) {
      const std::uint32_t row = info.m == 8 ? group : group + i % 2 * 8, k = (info.m == 8 ? i : i / 2) * 4 + within;
      put_double(a + 2 * i, mma.a[row * info.k + k]);
    }
    for (std::uint32_t i = 0; i < info.b_words / 2u; ++i) put_double(b + 2 * i, mma.b[group * info.k + i * 4 + within]);
    for (std::uint32_t i = 0; i < info.c_words / 2u; ++i) {
      put_double(accumulators + 2 * i, mma.c[(group + i / 2 * 8) * 8 + within * 2 + i % 2]);
    }
  } else {
    const std::uint32_t k_bytes = info.k * static_cast<std::uint32_t>(element_bits(info.a)) / 8;
    const auto row = [&](const std::vector<int>& values, MatrixType type, std::uint32_t index) {
      std::vector<std::uint8_t> bytes(k_bytes);
      for (std::uint32_t k = 0; k < info.k; ++k) put_element(&bytes, type, k, values[index * info.k + k]);
      return bytes;
    };
    for (std::uint32_t i = 0; i < info.a_words; ++i) {
      const FragmentPlace place = a_fragment(c->lane, i, info.m);
      std::memcpy(a + i, row(mma.a, info.a, place.row).data() + place.byte, 4);
    }
    for (std::uint32_t i = 0; i < info.b_words; ++i) {
      const FragmentPlace place = b_fragment(c->lane, i);
      std::memcpy(b + i, row(mma.b, info.b, place.row).data() + place.byte, 4);
    }
    for (std::uint32_t i = 0; i < info.c_words; ++i) {
      const bool half = info.c == MatrixType::f16;
      const AccumulatorPlace place = accumulator_fragment(c->lane, i, half, info.m);
      const int* at = &mma.c[place.row * 8 + place.column];
      accumulators[i] = half ? encoded(info.c, at[0]) | encoded(info.c, at[1]) << 16 : encoded(info.c, at[0]);
    }
  }
  att_mma(c, &info, operands.data(), mma.results[c->lane].data(), 1);
}

}  // namespace

TEST_CASE("mma.sync: all shapes and types") {
  using enum MatrixType;
  struct Shape {
    std::uint16_t m, k;
    MatrixType a, b, d;
  };
  std::mt19937 random(4);
  for (const Shape& s :
       {Shape{16, 8, f16, f16, f32}, {16, 16, f16, f16, f32},   {16, 16, f16, f16, f16},  {16, 8, f16, f16, f16},
        {16, 8, bf16, bf16, f32},    {16, 16, bf16, bf16, f32}, {16, 4, tf32, tf32, f32}, {16, 8, tf32, tf32, f32},
        {16, 32, e4m3, e5m2, f32},   {16, 16, e5m2, e5m2, f16}, {8, 16, s8, u8, s32},     {16, 16, u8, s8, s32},
        {16, 32, s8, s8, s32},       {8, 32, s4, u4, s32},      {16, 32, u4, u4, s32},    {16, 64, s4, s4, s32},
        {8, 128, b1, b1, s32},       {16, 128, b1, b1, s32},    {16, 256, b1, b1, s32},   {8, 4, f64, f64, f64},
        {16, 4, f64, f64, f64},      {16, 8, f64, f64, f64},    {16, 16, f64, f64, f64}}) {
    CAPTURE(s.m);
    CAPTURE(s.k);
    CAPTURE(static_cast<int>(s.a));
    mma.info = {};
    mma.info.m = s.m;
    mma.info.n = 8;
    mma.info.k = s.k;
    mma.info.a = s.a;
    mma.info.b = s.b;
    mma.info.c = mma.info.d = s.d;
    mma.info.a_words = words(s.m, s.k, s.a);
    mma.info.b_words = words(s.k, 8, s.b);
    mma.info.c_words = mma.info.d_words = words(s.m, 8, s.d);
    const bool exclusive = s.a == b1 && s.m == 8;
    if (s.a == b1) mma.info.bits = exclusive ? MmaInfo::Bits::bit_xor : MmaInfo::Bits::bit_and;
    mma.a.clear();
    mma.b.clear();
    mma.c.clear();
    for (unsigned i = 0; i < s.m * unsigned{s.k}; ++i) mma.a.push_back(small_value(s.a, random));
    for (unsigned i = 0; i < 8u * s.k; ++i) mma.b.push_back(small_value(s.b, random));
    for (unsigned i = 0; i < s.m * 8u; ++i) mma.c.push_back(static_cast<int>(random() % 60) - 30);
    const Report report = run(mma_kernel, threads(32));
    CHECK_MESSAGE(report.clean(), report.text());
    const auto expected = [&](std::uint32_t row, std::uint32_t column) {
      int sum = mma.c[row * 8 + column];
      for (std::uint32_t k = 0; k < s.k; ++k) {
        const int x = mma.a[row * s.k + k], y = mma.b[column * s.k + k];
        sum += exclusive ? x ^ y : x * y;
      }
      return sum;
    };
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const std::uint32_t* d = mma.results[lane].data();
      if (s.a == f64) {
        for (std::uint32_t i = 0; i < mma.info.d_words / 2u; ++i) {
          double value;
          std::memcpy(&value, d + 2 * i, 8);
          REQUIRE(value == expected(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2));
        }
        continue;
      }
      for (std::uint32_t i = 0; i < mma.info.d_words; ++i) {
        const bool half = s.d == f16;
        const AccumulatorPlace place = accumulator_fragment(lane, i, half, s.m);
        std::uint32_t word = encoded(s.d, expected(place.row, place.column));
        if (half) word |= encoded(s.d, expected(place.row, place.column + 1)) << 16;
        REQUIRE(d[i] == word);
      }
    }
  }
}

// -- ldmatrix, stmatrix, movmatrix ------------------------------------------------------------------------

namespace {

/// Matrix i has the element 64 i + 8 row + column; its rows lie 32 bytes apart.
std::uint32_t row_address(std::uint32_t lane) { return kA + lane * 32; }

template <bool Transpose>
void move_kernel(ThreadContext* c) {
  static constexpr MatrixMoveInfo kMove{4, Transpose, AddressSpace::shared};
  for (std::uint32_t column = 0; column < 8; ++column) {
    store(c, AddressSpace::shared, row_address(c->lane) + 2 * column, static_cast<std::uint16_t>(8 * c->lane + column),
          1);
  }
  att_warp_sync(c, kAll, 2);
  std::array<std::uint32_t, 4> loaded{};
  att_ldmatrix(c, &kMove, row_address(c->lane), loaded.data(), 3);
  att_stmatrix(c, &kMove, row_address(c->lane) + 16, loaded.data(), 4);
  att_warp_sync(c, kAll, 5);
  for (std::uint32_t column = 0; column < 8; ++column) {
    const auto value = load<std::uint16_t>(c, AddressSpace::shared, row_address(c->lane) + 16 + 2 * column, 6);
    REQUIRE(value == 8 * c->lane + column);
  }
  const std::uint32_t moved = att_movmatrix(c, loaded[2], 7);
  result<std::uint64_t>(c, std::uint64_t{moved} << 32 | loaded[2]);
}

}  // namespace

TEST_CASE("ldmatrix, stmatrix and movmatrix, also transposed") {
  for (bool transpose : {false, true}) {
    const std::vector<std::uint64_t> words =
        clean_results<std::uint64_t>(transpose ? move_kernel<true> : move_kernel<false>, threads(32));
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const std::uint32_t row = lane / 4, column = lane % 4 * 2;
      const auto pair = [&](bool flipped) {
        const auto element = [&](std::uint32_t r, std::uint32_t k) { return 128 + (flipped ? 8 * k + r : 8 * r + k); };
        return element(row, column) | element(row, column + 1) << 16;
      };
      CHECK(static_cast<std::uint32_t>(words[lane]) == pair(transpose));
      CHECK((words[lane] >> 32) == pair(!transpose));
    }
  }
}

TEST_CASE("ldmatrix: rows that lie wrong, were never written, or are not ordered") {
  static constexpr MatrixMoveInfo kOne{1, false, AddressSpace::shared};
  Report report = run(
      [](ThreadContext* c) {
        std::uint32_t word = 0;
        att_ldmatrix(c, &kOne, kA + 16 * c->lane + (c->lane == 3 ? 8 : 0), &word, 1);
      },
      threads(32));
  CHECK(find(report, FindingKind::misaligned).thread.thread.x == 3);
  CHECK(find(report, FindingKind::uninitialised_read).at.ptx_line == 1);
  report = run(
      [](ThreadContext* c) {
        for (std::uint32_t i = 0; i < 16; i += 4) store(c, AddressSpace::shared, kA + 16 * c->lane + i, 0u, 1);
        std::uint32_t word = 0;
        att_ldmatrix(c, &kOne, kA + 16 * (c->lane ^ 1), &word, 2);
      },
      threads(32));
  CHECK(find(report, FindingKind::race).at.ptx_line == 2);
  // Lanes whose addresses do not count may name anything.
  report = run(
      [](ThreadContext* c) {
        for (std::uint32_t i = 0; i < 16; i += 4) store(c, AddressSpace::shared, kA + 16 * c->lane + i, 0u, 1);
        std::uint32_t word = 0;
        att_ldmatrix(c, &kOne, c->lane < 8 ? kA + 16 * c->lane : 3u, &word, 2);
      },
      threads(32));
  CHECK_MESSAGE(report.clean(), report.text());
}
