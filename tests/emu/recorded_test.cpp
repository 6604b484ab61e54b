// The emulator against what a Hopper GPU computed: golden/hopper_numerics.bin, written by golden/record_matrix.py.
#include <doctest/doctest.h>

#include <attune/emulator.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/tensor_core.h"
#include "runtime/emulator/exec/tensor_map.h"

using namespace attune::emulator;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Records = std::map<std::string, Bytes>;

template <typename T>
T take(const Bytes& bytes, std::size_t at) {
  T value;
  REQUIRE(at + sizeof value <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

const Records& records() {
  static const Records all = [] {
    Records found;
    std::ifstream in(ATTUNE_TEST_DATA "/../golden/hopper_numerics.bin", std::ios::binary);
    const Bytes file{std::istreambuf_iterator<char>(in), {}};
    const std::string magic = "attune numerics 1\n";
    REQUIRE_MESSAGE(file.size() > magic.size(), "no recording: golden/record_matrix.py makes one on a GPU");
    REQUIRE(std::equal(magic.begin(), magic.end(), file.begin()));
    for (std::size_t at = magic.size(); at < file.size();) {
      const std::size_t name = take<std::uint16_t>(file, at);
      const std::size_t size = take<std::uint32_t>(file, at + 2 + name);
      const auto begin = file.begin() + static_cast<std::ptrdiff_t>(at);
      REQUIRE(at + 6 + name + size <= file.size());
      const auto data = begin + static_cast<std::ptrdiff_t>(6 + name);
      found[std::string(begin + 2, begin + 2 + static_cast<std::ptrdiff_t>(name))] =
          Bytes(data, data + static_cast<std::ptrdiff_t>(size));
      at += 6 + name + size;
    }
    return found;
  }();
  return all;
}

/// Calls visit(name without the prefix, data) for records that begin with the prefix.
template <typename Visit>
void for_each(const std::string& prefix, const Visit& visit) {
  int found = 0;
  for (const auto& [name, data] : records()) {
    if (!name.starts_with(prefix)) continue;
    visit(name.substr(prefix.size()), data);
    ++found;
  }
  REQUIRE(found > 0);
}

MatrixType type_named(const std::string& name) {
  const std::map<std::string, MatrixType> types{{"bf16", MatrixType::bf16}, {"f16", MatrixType::f16},
                                                {"tf32", MatrixType::tf32}, {"e4m3", MatrixType::e4m3},
                                                {"e5m2", MatrixType::e5m2}, {"f32", MatrixType::f32}};
  return types.at(name);
}

/// name: "bf16_f32.wide". Counts results that differ, NaNs by their patterns.
void check_products(const std::string& name, const Bytes& data, bool wgmma) {
  constexpr std::uint32_t kColumns = 8;
  const std::size_t first = name.find('_'), second = name.find('.');
  const MatrixType type = type_named(name.substr(0, first));
  const MatrixType result = type_named(name.substr(first + 1, second - first - 1));
  const bool half = result == MatrixType::f16;
  const std::uint32_t rows = wgmma ? 32 : 16, k = 256 / static_cast<std::uint32_t>(element_bits(type));
  const std::size_t b_at = rows * 32, c_at = b_at + kColumns * 32, result_bytes = rows * kColumns * (half ? 2u : 4u);
  REQUIRE(data.size() == c_at + 2 * result_bytes);

  constexpr std::uint32_t kPitch = 16;
  std::vector<float> d(rows * kPitch, 0);
  const auto bits = [&](std::size_t at, std::size_t index) -> std::uint32_t {
    return half ? take<std::uint16_t>(data, at + 2 * index) : take<std::uint32_t>(data, at + 4 * index);
  };
  for (std::uint32_t i = 0; i < rows * kColumns; ++i) {
    const std::uint32_t c = bits(c_at, i);
    d[i / kColumns * kPitch + i % kColumns] =
        half ? fp16_to_float(static_cast<std::uint16_t>(c)) : std::bit_cast<float>(c);
  }
  if (wgmma) {
    FloatOperand a, b;
    a.resize(rows, k);
    b.resize(k, kColumns);
    REQUIRE(b.pitch == kPitch);
    for (std::uint32_t row = 0; row < rows; ++row) decode_row(type, data.data() + row * 32, k, false, &a, row);
    for (std::uint32_t column = 0; column < kColumns; ++column) {
      decode_column(type, data.data() + b_at + column * 32, k, false, &b, 0, column);
    }
    multiply_floats(a, b, sum_model(type, result), d.data(), kPitch);
  } else {
    multiply_mma({type, data.data(), rows}, {type, data.data() + b_at, kColumns}, k, result, d.data(), kPitch);
  }
  int different = 0;
  for (std::uint32_t i = 0; i < rows * kColumns; ++i) {
    const float sum = d[i / kColumns * kPitch + i % kColumns];
    const std::uint32_t expected = bits(c_at + result_bytes, i);
    const std::uint32_t got = half ? encode<Fp16>(double{sum}) : std::bit_cast<std::uint32_t>(sum);
    if (expected == got) continue;
    if (++different <= 3) MESSAGE(name << ": " << i << ": " << std::hex << got << ", recorded " << expected);
  }
  CHECK_MESSAGE(different == 0, name << ": " << different << " of " << rows * kColumns << " results differ");
}

}  // namespace

TEST_CASE("recorded: wgmma products, bit for bit") {
  for_each("wgmma_", [](const std::string& name, const Bytes& data) { check_products(name, data, true); });
}

TEST_CASE("recorded: mma.sync products, bit for bit") {
  for_each("mma_", [](const std::string& name, const Bytes& data) { check_products(name, data, false); });
}

TEST_CASE("recorded: the addresses that wgmma descriptors give") {
  constexpr std::uint32_t kBase = 16 << 10;  // of what the recording addressed from 0
  constexpr Swizzle kModes[] = {Swizzle::none, Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32};
  for_each("probe_", [&](const std::string& name, const Bytes& data) {
    constexpr std::size_t kRecord = 20 + 256;
    CHECK(data.size() == 40 * kRecord);  // the GPU refused none
    REQUIRE(data.size() >= kRecord);
    REQUIRE(data.size() % kRecord == 0);
    for (std::size_t at = 0; at + kRecord <= data.size(); at += kRecord) {
      MatrixDescriptor d;
      d.start = kBase + take<std::uint32_t>(data, at);
      d.leading = take<std::uint32_t>(data, at + 4);
      d.stride = take<std::uint32_t>(data, at + 8);
      d.swizzle = kModes[take<std::uint32_t>(data, at + 12)];
      d.base_offset = take<std::uint32_t>(data, at + 16);
      int different = 0;
      for (std::uint32_t i = 0; i < 128; ++i) {
        const std::uint32_t address =
            name == "k_major" ? k_major_chunk(d, i / 2, i % 2) : mn_major_chunk(d, i % 8, i / 8);
        different += (address - kBase) / 16 == take<std::uint16_t>(data, at + 20 + 2 * i) ? 0 : 1;
      }
      CHECK_MESSAGE(different == 0, name << ": start " << d.start - kBase << ", swizzle " << swizzle_bytes(d.swizzle)
                                         << ", base offset " << d.base_offset << ": " << different
                                         << " of 128 chunks differ");
    }
  });
}

namespace {

struct TensorCase {
  const char* name;
  TensorType type;
  const Bytes* data;
  std::array<std::uint64_t, 2> dims;
  std::array<std::uint32_t, 2> box, steps;
  Swizzle swizzle;
  bool nan;
  std::int32_t x, y;
};

}  // namespace

TEST_CASE("recorded: what tensor copies write") {
  Bytes numbers(4096), halves(2048), ties(256);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint8_t>(i / 16 % 251);
  for (std::size_t i = 0; i < halves.size() / 2; ++i) {
    const auto half = static_cast<std::uint16_t>(0x3C00 + i % 64);
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  for (std::uint32_t i = 0; i < 64; ++i) {
    const std::uint32_t word = (i < 32 ? 0x3F800000u : 0xBF800000u) + (i % 32 << 11);
    std::memcpy(ties.data() + 4 * i, &word, 4);
  }
  const Bytes& floats = records().at("tensor.floats");
  using enum TensorType;
  using enum Swizzle;
  for (const TensorCase& c :
       {TensorCase{"pitch32_swizzle128", u8, &numbers, {32, 16}, {32, 16}, {1, 1}, bytes128, false, 0, 0},
        TensorCase{"pitch64_swizzle128", u8, &numbers, {64, 16}, {64, 16}, {1, 1}, bytes128, false, 0, 0},
        TensorCase{"pitch32_swizzle64", u8, &numbers, {32, 16}, {32, 16}, {1, 1}, bytes64, false, 0, 0},
        TensorCase{"pitch16_swizzle32", u8, &numbers, {16, 16}, {16, 16}, {1, 1}, bytes32, false, 0, 0},
        TensorCase{"swizzle128", u8, &numbers, {128, 16}, {128, 16}, {1, 1}, bytes128, false, 0, 0},
        TensorCase{"outside_swizzle128", u8, &numbers, {112, 12}, {128, 16}, {1, 1}, bytes128, false, -24, -3},
        TensorCase{"element_stride_row", u8, &numbers, {32, 64}, {32, 15}, {1, 2}, none, false, 0, 1},
        TensorCase{"element_stride_inner", u16, &numbers, {64, 16}, {32, 8}, {2, 1}, none, false, 0, 0},
        TensorCase{"nan_f16", f16, &halves, {64, 8}, {64, 8}, {1, 1}, none, true, -8, -1},
        TensorCase{"nan_bf16", bf16, &halves, {64, 8}, {64, 8}, {1, 1}, none, true, -8, -1},
        TensorCase{"nan_f32", f32, &floats, {32, 8}, {32, 8}, {1, 1}, none, true, -8, -1},
        TensorCase{"nan_tf32", tf32, &floats, {32, 8}, {32, 8}, {1, 1}, none, true, -8, -1},
        TensorCase{"f32", f32, &floats, {32, 8}, {32, 8}, {1, 1}, none, false, 0, 0},
        TensorCase{"f32_ftz", f32_ftz, &floats, {32, 8}, {32, 8}, {1, 1}, none, false, 0, 0},
        TensorCase{"tf32", tf32, &floats, {32, 8}, {32, 8}, {1, 1}, none, false, 0, 0},
        TensorCase{"tf32_ftz", tf32_ftz, &floats, {32, 8}, {32, 8}, {1, 1}, none, false, 0, 0},
        TensorCase{"tf32_ties", tf32, &ties, {32, 2}, {32, 2}, {1, 1}, none, false, 0, 0}}) {
    const Bytes& recorded = records().at(std::string("tensor.") + c.name);
    CAPTURE(std::string(c.name));
    TensorMapDescription d;
    d.type = c.type;
    d.rank = 2;
    d.base = c.data->data();
    std::ranges::copy(c.dims, d.dims.begin());
    std::ranges::copy(c.box, d.box.begin());
    std::ranges::copy(c.steps, d.element_strides.begin());
    d.strides = {c.dims[0] * element_bytes(c.type)};
    d.swizzle = c.swizzle;
    d.fill = c.nan ? OutOfBoundsFill::nan : OutOfBoundsFill::zeros;
    Bytes shared(4096, 0xEE);
    const TensorBox box(d, {c.x, c.y});
    CHECK(box.starts_on_chunk() == !recorded.empty());  // empty: the GPU refused the copy
    if (recorded.empty()) continue;
    load_box(box, shared.data(), 0, [](std::uint64_t address, std::uint32_t) {
      return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(address));
    });
    CHECK(box.bytes() == c.box[0] * element_bytes(c.type) * ((c.box[1] + c.steps[1] - 1) / c.steps[1]));
    CHECK_MESSAGE(take<std::uint32_t>(recorded, 0) == 1, "the copy is credited with another number of bytes");
    const auto different = std::ranges::mismatch(recorded.begin() + 4, recorded.end(), shared.begin(), shared.end());
    CHECK_MESSAGE(different.in1 == recorded.end(), "differs from byte " << different.in1 - recorded.begin() - 4);
  }
}

// -- unary operations -----------------------------------------------------------------------------------------

namespace {

/// How far the emulator may be from the GPU, whose approximations nobody documents beyond their limits of error: in
/// units of the last place, or absolutely. The limits are what the recording needs. Any NaN is a NaN.
struct Unary {
  const char* name;
  const char* text;  ///< from f or {h, k} (the input) to %y
  int ulp = 0;
  double absolute = 0;
  bool halves = false;  ///< the result is two 16-bit floats
};

#define TO_F32(op) op " f, f;\nmov.b32 %y, f;"
#define TO_16(op) op " h, f;\nmov.b16 k, 0;\nmov.b32 %y, {h, k};"
#define TO_PAIR(op) "neg.f32 g, f;\n" op " h, g, f;\nmov.b16 k, 0;\nmov.b32 %y, {h, k};"
constexpr Unary kUnary[] = {
    {"ex2_approx_ftz_f32", TO_F32("ex2.approx.ftz.f32"), 2},
    {"ex2_approx_f32", TO_F32("ex2.approx.f32"), 2},
    {"lg2_approx_ftz_f32", TO_F32("lg2.approx.ftz.f32"), 1, 0x1p-22},
    {"lg2_approx_f32", TO_F32("lg2.approx.f32"), 1, 0x1p-22},
    {"rcp_approx_ftz_f32", TO_F32("rcp.approx.ftz.f32"), 1},
    {"rsqrt_approx_ftz_f32", TO_F32("rsqrt.approx.ftz.f32"), 1},
    {"sqrt_approx_ftz_f32", TO_F32("sqrt.approx.ftz.f32"), 1},
    {"tanh_approx_f32", TO_F32("tanh.approx.f32"), 114},
    {"sin_approx_f32", TO_F32("sin.approx.f32"), 1, 0x1p-21},
    {"cos_approx_f32", TO_F32("cos.approx.f32"), 1, 0x1p-21},
    {"ex2_approx_f16x2", "ex2.approx.f16x2 %y, %x;", 1, 0, true},
    {"ex2_approx_ftz_bf16x2", "ex2.approx.ftz.bf16x2 %y, %x;", 1, 0, true},
    {"tanh_approx_f16x2", "tanh.approx.f16x2 %y, %x;", 1, 0, true},
    {"cvt_rn_f16_f32", TO_16("cvt.rn.f16.f32")},
    {"cvt_rz_f16_f32", TO_16("cvt.rz.f16.f32")},
    {"cvt_rn_bf16_f32", TO_16("cvt.rn.bf16.f32")},
    {"cvt_rz_bf16_f32", TO_16("cvt.rz.bf16.f32")},
    {"cvt_rn_relu_bf16_f32", TO_16("cvt.rn.relu.bf16.f32")},
    {"cvt_rna_tf32_f32", "cvt.rna.tf32.f32 %y, f;"},
    {"cvt_e4m3x2_f32", TO_PAIR("cvt.rn.satfinite.e4m3x2.f32")},
    {"cvt_e5m2x2_f32", TO_PAIR("cvt.rn.satfinite.e5m2x2.f32")},
    {"cvt_f16x2_e4m3x2", "cvt.rn.f16x2.e4m3x2 %y, h;"},
    {"cvt_f16x2_e5m2x2", "cvt.rn.f16x2.e5m2x2 %y, h;"},
    {"cvt_rni_s32_f32", "cvt.rni.s32.f32 %y, f;"},
    {"cvt_rzi_u32_f32", "cvt.rzi.u32.f32 %y, f;"},
    {"cvt_f32_f16", "cvt.f32.f16 f, h;\nmov.b32 %y, f;"},
};

std::vector<std::uint32_t> run_unary(const Unary& unary, const std::vector<std::uint32_t>& inputs) {
  const std::string ptx = std::string(R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry unary(.param .u64 in, .param .u64 out) {
.reg .b32 %x, %y, %i;
.reg .b64 %in, %out, %o;
.reg .f32 f, g;
.reg .b16 h, k;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %i, %tid.x;
mul.wide.u32 %o, %i, 4;
add.u64 %in, %in, %o;
add.u64 %out, %out, %o;
ld.global.b32 %x, [%in];
mov.b32 f, %x;
mov.b32 {h, k}, %x;
)") + unary.text + "\nst.global.b32 [%out], %y;\nret;\n}\n";
  const auto program = Program::load(ptx);
  const std::unique_ptr<Machine> machine = Machine::create();
  const std::size_t bytes = inputs.size() * 4;
  auto* in = static_cast<std::uint32_t*>(machine->allocate(bytes));
  auto* out = static_cast<std::uint32_t*>(machine->allocate(bytes));
  std::ranges::copy(inputs, in);
  machine->mark_written(in, bytes);
  LaunchOptions options;
  options.block.x = static_cast<unsigned>(inputs.size());
  void* arguments[] = {&in, &out};
  const Report report = machine->launch(*program, "unary", options, arguments);
  REQUIRE_MESSAGE(report.clean(), report.text());
  return {out, out + inputs.size()};
}

/// Steps between two floats of a width; 0 for two NaNs.
std::int64_t distance(std::uint32_t a, std::uint32_t b, int bits) {
  const std::uint32_t sign = 1u << (bits - 1);
  const auto order = [&](std::uint32_t x) {
    return (x & sign) != 0 ? -static_cast<std::int64_t>(x & (sign - 1)) : std::int64_t{x};
  };
  return std::abs(order(a) - order(b));
}

bool close(const Unary& unary, std::uint32_t got, std::uint32_t recorded) {
  if (got == recorded) return true;
  if (unary.halves) {
    return distance(got & 0xFFFF, recorded & 0xFFFF, 16) <= unary.ulp &&
           distance(got >> 16, recorded >> 16, 16) <= unary.ulp;
  }
  if (unary.ulp == 0) return false;
  const auto a = std::bit_cast<float>(got), b = std::bit_cast<float>(recorded);
  if (std::isnan(a) && std::isnan(b)) return true;
  return distance(got, recorded, 32) <= unary.ulp || std::abs(double{a} - double{b}) <= unary.absolute;
}

}  // namespace

TEST_CASE("recorded: approximations and conversions") {
  const Bytes& bytes = records().at("unary.inputs");
  std::vector<std::uint32_t> inputs(bytes.size() / 4);
  std::memcpy(inputs.data(), bytes.data(), bytes.size());
  for (const Unary& unary : kUnary) {
    const Bytes& recorded = records().at(std::string("unary.") + unary.name);
    const std::vector<std::uint32_t> results = run_unary(unary, inputs);
    int different = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto expected = take<std::uint32_t>(recorded, 4 * i);
      if (close(unary, results[i], expected)) continue;
      if (++different <= 3) {
        MESSAGE(std::string(unary.name) << " of " << std::hex << inputs[i] << ": " << results[i] << ", recorded "
                                        << expected);
      }
    }
    CHECK_MESSAGE(different == 0, std::string(unary.name)
                                      << ": " << different << " of " << inputs.size() << " results differ");
  }
}
