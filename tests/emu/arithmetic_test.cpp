// Scalar instructions against values computed by hand or by the host: every case is one instruction with its operands,
// run by one thread. Registers are named d (result), p (a second, predicate result), a, b, c, e, q (a predicate
// operand).
#include <attune/emulator.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace emulator = attune::emulator;

namespace {

struct Case {
  /// "add.s32 d, a, b;": one or more statements.
  std::string code;
  /// The registers' types, in the order d, a, b, c, e: p predicate, h 16 bits, r 32, d 64, f f32, g f64.
  std::string types;
  std::vector<std::uint64_t> operands;
  std::uint64_t expected;
};

std::uint64_t f32(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint64_t f64(double value) { return std::bit_cast<std::uint64_t>(value); }
std::uint64_t s32(std::int32_t value) { return static_cast<std::uint32_t>(value); }
std::uint64_t s64(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::uint64_t s16(std::int16_t value) { return static_cast<std::uint16_t>(value); }

constexpr std::uint64_t kNan = 0x7FFFFFFF, kInf = 0x7F800000, kMinusInf = 0xFF800000, kMinusZero = 0x80000000;
constexpr std::uint64_t kSubnormal = 0x00400000;  // 2^-127
constexpr std::uint64_t kNan16 = 0x7FFF;

const char* register_type(char type) {
  switch (type) {
    case 'p': return ".pred";
    case 'h': return ".b16";
    case 'r': return ".b32";
    case 'd': return ".b64";
    case 'f': return ".f32";
    default: return ".f64";
  }
}

std::string memory_type(char type) {
  switch (type) {
    case 'p':
    case 'r': return "b32";
    case 'h': return "b16";
    case 'd': return "b64";
    case 'f': return "f32";
    default: return "f64";
  }
}

/// A kernel that loads the operands of each case from `in` (five words of 64 bits a case) and stores its result to
/// `out`.
std::string kernel(const std::vector<Case>& cases) {
  std::string text =
      ".version 8.6\n.target sm_90a\n.address_size 64\n"
      ".visible .entry run(.param .u64 in, .param .u64 out) {\n.reg .b64 %in, %out;\n"
      "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\n";
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& test = cases[i];
    text += "{\n.reg .pred p, q;\n.reg .b32 t;\n";
    const std::string names = "dabce";
    for (std::size_t r = 0; r < test.types.size(); ++r) {
      text += std::string(".reg ") + register_type(test.types[r]) + " " + names[r] + ";\n";
    }
    for (std::size_t r = 1; r < test.types.size(); ++r) {
      const std::string address = "[%in+" + std::to_string(40 * i + 8 * (r - 1)) + "]";
      const std::string name(1, names[r]);
      if (test.types[r] == 'p') {
        text += "ld.global.b32 t, " + address + ";\nsetp.ne.b32 " + name + ", t, 0;\n";
      } else {
        text += "ld.global." + memory_type(test.types[r]) + " " + name + ", " + address + ";\n";
      }
    }
    text += test.code + "\n";
    const std::string address = "[%out+" + std::to_string(8 * i) + "]";
    if (test.types[0] == 'p') {
      text += "selp.b32 t, 1, 0, d;\nst.global.b32 " + address + ", t;\n}\n";
    } else {
      text += "st.global." + memory_type(test.types[0]) + " " + address + ", d;\n}\n";
    }
  }
  return text + "ret;\n}\n";
}

void check(const std::vector<Case>& cases) {
  for (const bool optimise : {false, true}) {
    const auto program = emulator::Program::load(kernel(cases), {.checks = true, .optimise = optimise});
    const auto machine = emulator::Machine::create();
    auto* in = static_cast<std::uint64_t*>(machine->allocate(40 * cases.size()));
    auto* out = static_cast<std::uint64_t*>(machine->allocate(8 * cases.size()));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t r = 0; r < 5; ++r) in[5 * i + r] = r < cases[i].operands.size() ? cases[i].operands[r] : 0;
      out[i] = 0;
    }
    machine->mark_written(in, 40 * cases.size());
    void* arguments[] = {&in, &out};
    const emulator::Report report = machine->launch(*program, "run", {.grid = {}, .block = {}}, arguments);
    CHECK_MESSAGE(report.clean(), report.text());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::string operands;
      for (const std::uint64_t operand : cases[i].operands) operands += " " + std::to_string(operand);
      INFO(cases[i].code, " of", operands, ", optimised: ", optimise);
      CHECK(out[i] == cases[i].expected);
    }
    machine->free(in);
    machine->free(out);
  }
}

}  // namespace

TEST_CASE("arithmetic: integer addition, subtraction, multiplication") {
  check({
      {"add.s32 d, a, b;", "rrr", {5, s32(-7)}, s32(-2)},
      {"add.u32 d, a, b;", "rrr", {0xFFFFFFFF, 2}, 1},
      {"add.s32 d, a, -3;", "rr", {1}, s32(-2)},
      {"add.s16 d, a, b;", "hhh", {0x7FFF, 1}, 0x8000},
      {"add.s64 d, a, b;", "ddd", {s64(-1), 3}, 2},
      {"add.sat.s32 d, a, b;", "rrr", {0x7FFFFFFF, 1}, 0x7FFFFFFF},
      {"add.sat.s32 d, a, b;", "rrr", {0x80000000, s32(-1)}, 0x80000000},
      {"sub.s32 d, a, b;", "rrr", {5, 7}, s32(-2)},
      {"sub.sat.s32 d, a, b;", "rrr", {0x80000000, 1}, 0x80000000},
      {"sub.u64 d, a, b;", "ddd", {0, 1}, ~0ull},
      {"add.u16x2 d, a, b;", "rrr", {0x0001FFFF, 0x00020001}, 0x00030000},
      {"mul.lo.s32 d, a, b;", "rrr", {s32(-3), 7}, s32(-21)},
      {"mul.lo.u32 d, a, b;", "rrr", {0x10000, 0x10000}, 0},
      {"mul.hi.s32 d, a, b;", "rrr", {s32(-1), 1}, s32(-1)},
      {"mul.hi.u32 d, a, b;", "rrr", {0xFFFFFFFF, 0xFFFFFFFF}, 0xFFFFFFFE},
      {"mul.wide.s32 d, a, b;", "drr", {s32(-2), 3}, s64(-6)},
      {"mul.wide.u32 d, a, b;", "drr", {0xFFFFFFFF, 0xFFFFFFFF}, 0xFFFFFFFE00000001},
      {"mul.wide.u16 d, a, b;", "rhh", {0xFFFF, 0xFFFF}, 0xFFFE0001},
      {"mul.wide.s16 d, a, b;", "rhh", {s16(-2), 3}, s32(-6)},
      {"mul.lo.s16 d, a, b;", "hhh", {s16(-2), 3}, s16(-6)},
      {"mul.lo.s64 d, a, b;", "ddd", {s64(-3), 1ull << 40}, s64(-3 * (1ll << 40))},
      {"mul.hi.u64 d, a, b;", "ddd", {~0ull, ~0ull}, ~1ull},
      {"mul.hi.s64 d, a, b;", "ddd", {s64(-1), 5}, s64(-1)},
      {"mul24.lo.u32 d, a, b;", "rrr", {0xFF000003, 5}, 15},
      {"mul24.lo.s32 d, a, b;", "rrr", {0x00FFFFFF, 5}, s32(-5)},
      {"mul24.hi.u32 d, a, b;", "rrr", {0xFFFFFF, 0xFFFFFF}, (0xFFFFFFull * 0xFFFFFF) >> 16 & 0xFFFFFFFF},
      {"mad.lo.s32 d, a, b, c;", "rrrr", {3, s32(-4), 5}, s32(-7)},
      {"mad.hi.u32 d, a, b, c;", "rrrr", {0x80000000, 6, 10}, 13},
      {"mad.hi.sat.s32 d, a, b, c;", "rrrr", {0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF}, 0x7FFFFFFF},
      {"mad.wide.u32 d, a, b, c;", "drrd", {0xFFFFFFFF, 2, 3}, 0x200000001},
      {"mad.wide.s32 d, a, b, c;", "drrd", {s32(-1), 2, 3}, 1},
      {"mad.lo.u64 d, a, b, c;", "dddd", {1ull << 33, 2, 1}, (1ull << 34) + 1},
      {"mad24.lo.s32 d, a, b, c;", "rrrr", {7, 6, s32(-2)}, 40},
      {"sad.s32 d, a, b, c;", "rrrr", {s32(-3), 4, 10}, 17},
      {"sad.u32 d, a, b, c;", "rrrr", {0xFFFFFFFF, 1, 1}, 0xFFFFFFFF},
      {"div.s32 d, a, b;", "rrr", {s32(-7), 2}, s32(-3)},
      {"div.s32 d, a, b;", "rrr", {0x80000000, s32(-1)}, 0x80000000},
      {"div.u32 d, a, b;", "rrr", {0xFFFFFFFF, 2}, 0x7FFFFFFF},
      {"div.u32 d, a, b;", "rrr", {5, 0}, 0xFFFFFFFF},
      {"div.s32 d, a, 3;", "rr", {s32(-7)}, s32(-2)},
      {"div.u16 d, a, b;", "hhh", {0xFFFF, 2}, 0x7FFF},
      {"div.s64 d, a, b;", "ddd", {s64(-100), 7}, s64(-14)},
      {"rem.s32 d, a, b;", "rrr", {s32(-7), 2}, s32(-1)},
      {"rem.s32 d, a, b;", "rrr", {0x80000000, s32(-1)}, 0},
      {"rem.u32 d, a, 10;", "rr", {0xFFFFFFFF}, 5},
      {"rem.u64 d, a, b;", "ddd", {~0ull, 10}, 5},
      {"abs.s32 d, a;", "rr", {s32(-5)}, 5},
      {"abs.s64 d, a;", "dd", {s64(-5)}, 5},
      {"abs.s16 d, a;", "hh", {s16(-5)}, 5},
      {"neg.s32 d, a;", "rr", {5}, s32(-5)},
      {"neg.s64 d, a;", "dd", {5}, s64(-5)},
      {"min.s32 d, a, b;", "rrr", {s32(-1), 1}, s32(-1)},
      {"min.u32 d, a, b;", "rrr", {s32(-1), 1}, 1},
      {"max.s32 d, a, b;", "rrr", {s32(-1), 1}, 1},
      {"max.u64 d, a, b;", "ddd", {s64(-1), 1}, s64(-1)},
      {"max.s16 d, a, b;", "hhh", {s16(-1), 1}, 1},
      {"max.relu.s32 d, a, b;", "rrr", {s32(-5), s32(-3)}, 0},
      {"min.s16x2 d, a, b;", "rrr", {0x0001FFFF, 0xFFFF0001}, 0xFFFFFFFF},
      {"max.u16x2 d, a, b;", "rrr", {0x0001FFFF, 0xFFFF0001}, 0xFFFFFFFF},
      {"max.relu.s16x2 d, a, b;", "rrr", {0xFFFEFFFF, 0xFFFF0001}, 0x00000001},
  });
}

TEST_CASE("arithmetic: carries") {
  check({
      {"add.cc.u32 d, a, b; addc.u32 d, 0, 0;", "rrr", {0xFFFFFFFF, 1}, 1},
      {"add.cc.u32 d, a, b; addc.u32 d, 0, 0;", "rrr", {0xFFFFFFFE, 1}, 0},
      {"add.cc.u32 d, a, b; addc.cc.u32 d, a, 0; addc.u32 d, 0, 0;", "rrr", {0xFFFFFFFF, 1}, 1},
      {"add.cc.u64 d, a, b; addc.u64 d, 5, 5;", "ddd", {~0ull, 1}, 11},
      {"sub.cc.u32 d, a, b; subc.u32 d, 10, 3;", "rrr", {0, 1}, 6},
      {"sub.cc.u32 d, a, b; subc.u32 d, 10, 3;", "rrr", {1, 1}, 7},
      {"mad.lo.cc.u32 d, a, b, c; addc.u32 d, 0, 0;", "rrrr", {0x10000, 0xFFFF, 0x10000}, 1},
      {"mad.lo.cc.u32 d, a, b, c; madc.hi.u32 d, a, b, 7;",
       "rrrr",
       {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
       0xFFFFFFFE + 8u},
  });
}

TEST_CASE("arithmetic: bits") {
  check({
      {"popc.b32 d, a;", "rr", {0xF0F0}, 8},
      {"popc.b64 d, a;", "rd", {~0ull}, 64},
      {"clz.b32 d, a;", "rr", {0x00010000}, 15},
      {"clz.b32 d, a;", "rr", {0}, 32},
      {"clz.b64 d, a;", "rd", {1}, 63},
      {"brev.b32 d, a;", "rr", {0x00000003}, 0xC0000000},
      {"brev.b64 d, a;", "dd", {1}, 1ull << 63},
      {"bfind.u32 d, a;", "rr", {0x00012345}, 16},
      {"bfind.u32 d, a;", "rr", {0}, 0xFFFFFFFF},
      {"bfind.s32 d, a;", "rr", {s32(-1)}, 0xFFFFFFFF},
      {"bfind.s32 d, a;", "rr", {s32(-5)}, 2},
      {"bfind.shiftamt.u32 d, a;", "rr", {0x00010000}, 15},
      {"bfind.u64 d, a;", "rd", {1ull << 40}, 40},
      {"bfind.s64 d, a;", "rd", {s64(-(1ll << 40)) - 1}, 40},
      {"fns.b32 d, a, 0, 2;", "rr", {0b10110}, 2},
      {"fns.b32 d, a, 31, -1;", "rr", {0b10110}, 4},
      {"fns.b32 d, a, 1, 0;", "rr", {0b10110}, 1},
      {"fns.b32 d, a, 0, 4;", "rr", {0b10110}, 0xFFFFFFFF},
      {"bfe.u32 d, a, 4, 8;", "rr", {0x12345678}, 0x67},
      {"bfe.s32 d, a, 4, 4;", "rr", {0x000000F0}, s32(-1)},
      {"bfe.u32 d, a, 28, 8;", "rr", {0x92345678}, 9},
      {"bfe.s32 d, a, 28, 8;", "rr", {0x92345678}, s32(-7)},
      {"bfe.s32 d, a, 40, 4;", "rr", {0x80000000}, s32(-1)},
      {"bfe.u32 d, a, 4, 0;", "rr", {0x12345678}, 0},
      {"bfe.s64 d, a, 60, 8;", "dd", {0x9234567812345678}, s64(-7)},
      {"bfi.b32 d, a, b, 8, 8;", "rrr", {0xAB, 0x11223344}, 0x1122AB44},
      {"bfi.b32 d, a, b, 28, 8;", "rrr", {0xAB, 0x11223344}, 0xB1223344},
      {"bfi.b32 d, a, b, 32, 8;", "rrr", {0xAB, 0x11223344}, 0x11223344},
      {"bfi.b64 d, a, b, 0, 64;", "ddd", {0xAB, 0x11223344}, 0xAB},
      {"szext.wrap.s32 d, a, 4;", "rr", {0x18}, s32(-8)},
      {"szext.clamp.u32 d, a, 4;", "rr", {0x18}, 8},
      {"szext.clamp.s32 d, a, 32;", "rr", {0x87654321}, 0x87654321},
      {"szext.wrap.u32 d, a, 32;", "rr", {0x87654321}, 0},
      {"bmsk.clamp.b32 d, a, b;", "rrr", {4, 8}, 0xFF0},
      {"bmsk.clamp.b32 d, a, b;", "rrr", {4, 40}, 0xFFFFFFF0},
      {"bmsk.clamp.b32 d, a, b;", "rrr", {32, 4}, 0},
      {"bmsk.wrap.b32 d, a, b;", "rrr", {36, 36}, 0xF0},
      {"dp4a.s32.s32 d, a, b, c;", "rrrr", {0xFF020304, 0x01010101, 10}, 18},
      {"dp4a.u32.u32 d, a, b, c;", "rrrr", {0xFF020304, 0x01010101, 10}, 274},
      {"dp4a.u32.s32 d, a, b, c;", "rrrr", {0xFF020304, 0xFF010101, 0}, s32(-255 + 9)},
      {"dp2a.lo.s32.s32 d, a, b, c;", "rrrr", {0xFFFF0003, 0x05060708, 1}, 3 * 8 - 7 + 1},
      {"dp2a.hi.u32.u32 d, a, b, c;", "rrrr", {0x00020003, 0x05060708, 1}, 3 * 6 + 2 * 5 + 1},
      {"and.b32 d, a, b;", "rrr", {0xFF00FF00, 0x0FF00FF0}, 0x0F000F00},
      {"or.b64 d, a, b;", "ddd", {1ull << 63, 1}, (1ull << 63) + 1},
      {"xor.b16 d, a, b;", "hhh", {0xFFFF, 0x0F0F}, 0xF0F0},
      {"not.b32 d, a;", "rr", {0x0000FFFF}, 0xFFFF0000},
      {"cnot.b32 d, a;", "rr", {0}, 1},
      {"cnot.b32 d, a;", "rr", {7}, 0},
      {"and.pred d, a, b;", "ppp", {1, 0}, 0},
      {"or.pred d, a, b;", "ppp", {1, 0}, 1},
      {"xor.pred d, a, b;", "ppp", {1, 1}, 0},
      {"not.pred d, a;", "pp", {0}, 1},
      {"lop3.b32 d, a, b, c, 0x96;", "rrrr", {0xF0F0, 0xCCCC, 0xAAAA}, 0xF0F0 ^ 0xCCCC ^ 0xAAAA},
      {"lop3.b32 d, a, b, c, 0xE8;", "rrrr", {0xF0, 0xCC, 0xAA}, 0xE8},
      {"lop3.b32 d, a, b, c, 0x1A;", "rrrr", {0xF0, 0xCC, 0xAA}, 0x1A},
      {"setp.ne.b32 q, a, a; lop3.or.b32 d|p, a, b, c, 0x80, q; selp.b32 d, 1, 0, p;", "rrrr", {7, 7, 4}, 1},
      {"shl.b32 d, a, b;", "rrr", {1, 31}, 0x80000000},
      {"shl.b32 d, a, b;", "rrr", {1, 32}, 0},
      {"shl.b64 d, a, b;", "ddr", {1, 40}, 1ull << 40},
      {"shl.b16 d, a, 4;", "hh", {0xFFFF}, 0xFFF0},
      {"shr.u32 d, a, b;", "rrr", {0x80000000, 31}, 1},
      {"shr.u32 d, a, b;", "rrr", {0x80000000, 0xFFFFFFFF}, 0},
      {"shr.s32 d, a, b;", "rrr", {0x80000000, 100}, s32(-1)},
      {"shr.s32 d, a, 4;", "rr", {s32(-32)}, s32(-2)},
      {"shr.s64 d, a, b;", "ddr", {s64(-1024), 3}, s64(-128)},
      {"shr.b32 d, a, 40;", "rr", {0x80000000}, 0},
      {"shf.l.wrap.b32 d, a, b, c;", "rrrr", {0x80000001, 0x00000002, 36}, 0x00000028},
      {"shf.l.clamp.b32 d, a, b, c;", "rrrr", {0x80000001, 0x00000002, 36}, 0x80000001},
      {"shf.r.wrap.b32 d, a, b, c;", "rrrr", {0x80000010, 0x00000002, 4}, 0x28000001},
      {"shf.r.clamp.b32 d, a, b, c;", "rrrr", {0x80000010, 0x00000002, 99}, 2},
      {"prmt.b32 d, a, b, c;", "rrrr", {0x33221100, 0x77665544, 0x7520}, 0x77552200},
      {"prmt.b32 d, a, b, 0xF8B4;", "rrr", {0xB3221100, 0x77665580}, 0x0000FF80},
      {"prmt.b32.f4e d, a, b, 1;", "rrr", {0x33221100, 0x77665544}, 0x44332211},
      {"prmt.b32.b4e d, a, b, 1;", "rrr", {0x33221100, 0x77665544}, 0x66770011},
      {"prmt.b32.rc8 d, a, b, 2;", "rrr", {0x33221100, 0}, 0x22222222},
      {"prmt.b32.ecl d, a, b, 1;", "rrr", {0x33221100, 0}, 0x33221111},
      {"prmt.b32.ecr d, a, b, 1;", "rrr", {0x33221100, 0}, 0x11111100},
      {"prmt.b32.rc16 d, a, b, 1;", "rrr", {0x33221100, 0}, 0x33223322},
  });
}

TEST_CASE("arithmetic: comparisons and selections") {
  std::vector<Case> cases;
  const auto compare = [&](const std::string& names, const std::string& suffix, const std::string& types,
                           std::uint64_t a, std::uint64_t b, const std::string& results) {
    std::size_t begin = 0;
    for (const char result : results) {
      const std::size_t end = names.find(' ', begin);
      cases.push_back({"setp." + names.substr(begin, end - begin) + suffix + " d, a, b;",
                       types,
                       {a, b},
                       result == '1' ? 1ull : 0ull});
      begin = end + 1;
    }
  };
  const std::string integers = "eq ne lt le gt ge", unsigned_ones = "eq ne lo ls hi hs lt";
  const std::string floats = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan";
  compare(integers, ".s32", "prr", s32(-1), 1, "011100");
  compare(integers, ".s64", "pdd", 5, 5, "100101");
  compare(integers, ".s16", "phh", 1, s16(-1), "010011");
  compare(unsigned_ones, ".u32", "prr", s32(-1), 1, "0100110");
  compare(unsigned_ones, ".u64", "pdd", 1, s64(-1), "0111001");
  compare("eq ne", ".b32", "prr", 4, 4, "10");
  compare("eq ne", ".b16", "phh", 4, 5, "01");
  compare(floats, ".f32", "pff", f32(1), f32(2), "01110001110010");
  compare(floats, ".f32", "pff", f32(2), f32(2), "10010110010110");
  compare(floats, ".f32", "pff", kNan, f32(2), "00000011111101");
  compare(floats, ".f64", "pgg", f64(3), f64(-2), "01001101001110");
  compare("eq lt", ".f32", "pff", 0, kMinusZero, "10");
  compare("eq lt", ".ftz.f32", "pff", 0, kSubnormal, "10");
  compare("eq lt", ".f32", "pff", 0, kSubnormal, "01");
  compare("eq lt geu", ".f16", "phh", 0x3C00, 0x4000, "010");
  compare("eq lt ltu", ".bf16", "phh", 0x7FC0, 0x4000, "001");
  check(cases);
  check({
      {"setp.lt.and.s32 d, a, b, c;", "prrp", {1, 2, 0}, 0},
      {"setp.lt.or.s32 d, a, b, c;", "prrp", {3, 2, 1}, 1},
      {"setp.lt.xor.s32 d, a, b, c;", "prrp", {1, 2, 1}, 0},
      {"setp.lt.and.s32 d, a, b, !c;", "prrp", {1, 2, 0}, 1},
      {"setp.lt.s32 p|q, a, b; selp.b32 d, 1, 2, q;", "rrr", {1, 2}, 2},
      {"setp.lt.and.s32 p|q, a, b, c; selp.b32 d, 1, 2, q;", "rrrp", {2, 1, 1}, 1},
      {"setp.gt.f16x2 p|q, a, b; selp.b32 t, 1, 0, p; selp.b32 d, 2, 0, q; or.b32 d, d, t;",
       "rrr",
       {0x40003C00, 0x3C004000},
       2},
      {"set.lt.u32.s32 d, a, b;", "rrr", {1, 2}, 0xFFFFFFFF},
      {"set.lt.f32.s32 d, a, b;", "frr", {1, 2}, f32(1)},
      {"set.gt.u32.f32 d, a, b;", "rff", {f32(1), f32(2)}, 0},
      {"set.lt.or.s32.f32 d, a, b, c;", "rffp", {f32(3), f32(2), 1}, 0xFFFFFFFF},
      {"set.gt.f16x2.f16x2 d, a, b;", "rrr", {0x40003C00, 0x3C004000}, 0x3C000000},
      {"selp.b32 d, a, b, c;", "rrrp", {5, 6, 1}, 5},
      {"selp.f32 d, a, b, c;", "fffp", {f32(5), f32(6), 0}, f32(6)},
      {"selp.u64 d, a, b, c;", "dddp", {5, 6, 0}, 6},
      {"selp.b16 d, a, b, c;", "hhhp", {5, 6, 1}, 5},
      {"slct.s32.s32 d, a, b, c;", "rrrr", {5, 6, s32(-1)}, 6},
      {"slct.f32.f32 d, a, b, c;", "ffff", {f32(5), f32(6), f32(0)}, f32(5)},
      {"slct.u64.f32 d, a, b, c;", "dddf", {5, 6, kNan}, 6},
  });
}

TEST_CASE("arithmetic: f32 and f64") {
  const float third = 1.0f / 3.0f;
  const float up = std::nextafter(third, 1.0f), down = std::nextafter(third, 0.0f);
  const bool third_is_above = static_cast<double>(third) > 1.0 / 3.0;
  check({
      {"add.f32 d, a, b;", "fff", {f32(1.5f), f32(2.25f)}, f32(3.75f)},
      {"add.rn.f32 d, a, b;", "fff", {f32(1), f32(0x1p-24f)}, f32(1)},
      {"add.rp.f32 d, a, b;", "fff", {f32(1), f32(0x1p-24f)}, f32(std::nextafter(1.0f, 2.0f))},
      {"add.rz.f32 d, a, b;", "fff", {f32(-1), f32(0x1p-30f)}, f32(std::nextafter(-1.0f, 0.0f))},
      {"add.rm.f32 d, a, b;", "fff", {f32(1), f32(-0x1p-30f)}, f32(std::nextafter(1.0f, 0.0f))},
      {"add.f32 d, a, b;", "fff", {kSubnormal, kSubnormal}, 0x00800000},
      {"add.ftz.f32 d, a, b;", "fff", {kSubnormal, kSubnormal}, 0},
      {"add.ftz.f32 d, a, b;", "fff", {kSubnormal | kMinusZero, kMinusZero}, kMinusZero},
      {"add.sat.f32 d, a, b;", "fff", {f32(1), f32(1)}, f32(1)},
      {"add.sat.f32 d, a, b;", "fff", {kInf, kMinusInf}, 0},
      {"sub.f32 d, a, b;", "fff", {f32(1), f32(3)}, f32(-2)},
      {"mul.f32 d, a, b;", "fff", {f32(1.5f), f32(-2)}, f32(-3)},
      {"mul.ftz.f32 d, a, b;", "fff", {f32(0x1p-100f), f32(0x1p-30f)}, 0},
      {"mul.rz.f32 d, a, b;", "fff", {f32(0x1.000002p0f), f32(0x1.000002p0f)}, f32(0x1.000004p0f)},
      {"mul.rp.f32 d, a, b;", "fff", {f32(0x1.000002p0f), f32(0x1.000002p0f)}, f32(0x1.000006p0f)},
      {"mul.sat.f32 d, a, b;", "fff", {f32(-1.5f), f32(2)}, 0},
      {"mul.f32 d, a, 0f40000000;", "ff", {f32(1.5f)}, f32(3)},
      {"fma.rn.f32 d, a, b, c;",
       "ffff",
       {f32(0x1.000002p0f), f32(0x1.000002p0f), f32(-1)},
       f32(std::fma(0x1.000002p0f, 0x1.000002p0f, -1.0f))},
      {"fma.rz.f32 d, a, b, c;", "ffff", {f32(1), f32(1), f32(-0x1p-40f)}, f32(std::nextafter(1.0f, 0.0f))},
      {"fma.rp.f32 d, a, b, c;", "ffff", {f32(1), f32(1), f32(0x1p-40f)}, f32(std::nextafter(1.0f, 2.0f))},
      {"fma.rn.ftz.f32 d, a, b, c;", "ffff", {f32(1), kSubnormal, f32(0)}, 0},
      {"mad.rn.f32 d, a, b, c;", "ffff", {f32(2), f32(3), f32(4)}, f32(10)},
      {"div.rn.f32 d, a, b;", "fff", {f32(1), f32(3)}, f32(third)},
      {"div.rz.f32 d, a, b;", "fff", {f32(1), f32(3)}, f32(third_is_above ? down : third)},
      {"div.rp.f32 d, a, b;", "fff", {f32(1), f32(3)}, f32(third_is_above ? third : up)},
      {"div.approx.f32 d, a, b;", "fff", {f32(6), f32(3)}, f32(2)},
      {"div.full.ftz.f32 d, a, b;", "fff", {f32(1), f32(0)}, kInf},
      {"rcp.rn.f32 d, a;", "ff", {f32(3)}, f32(third)},
      {"rcp.rm.f32 d, a;", "ff", {f32(3)}, f32(third_is_above ? down : third)},
      {"rcp.approx.ftz.f32 d, a;", "ff", {f32(4)}, f32(0.25f)},
      {"rcp.approx.ftz.f32 d, a;", "ff", {kSubnormal}, kInf},
      {"sqrt.rn.f32 d, a;", "ff", {f32(2)}, f32(std::sqrt(2.0f))},
      {"sqrt.rp.f32 d, a;", "ff", {f32(2)}, f32(0x1.6a09e8p0f)},
      {"sqrt.approx.f32 d, a;", "ff", {f32(9)}, f32(3)},
      {"rsqrt.approx.f32 d, a;", "ff", {f32(4)}, f32(0.5f)},
      {"rsqrt.approx.f32 d, a;", "ff", {f32(-4)}, kNan},
      {"ex2.approx.ftz.f32 d, a;", "ff", {f32(3)}, f32(8)},
      {"ex2.approx.ftz.f32 d, a;", "ff", {f32(-127)}, 0},
      {"ex2.approx.f32 d, a;", "ff", {f32(-127)}, kSubnormal},
      {"ex2.approx.ftz.f32 d, a;", "ff", {kMinusInf}, 0},
      {"lg2.approx.f32 d, a;", "ff", {f32(8)}, f32(3)},
      {"lg2.approx.f32 d, a;", "ff", {f32(0)}, kMinusInf},
      {"lg2.approx.ftz.f32 d, a;", "ff", {f32(-1)}, kNan},
      {"sin.approx.f32 d, a;", "ff", {f32(1)}, f32(std::sin(1.0f))},
      {"cos.approx.f32 d, a;", "ff", {f32(1)}, 0x3F0A5141},  // of the angle as the GPU has it, in turns
      {"sin.approx.f32 d, a;", "ff", {f32(0x1p30f)}, 0},
      {"cos.approx.f32 d, a;", "ff", {f32(0x1p30f)}, f32(1)},
      {"cos.approx.f32 d, a;", "ff", {kInf}, kNan},
      {"tanh.approx.f32 d, a;", "ff", {f32(0.5f)}, f32(std::tanh(0.5f))},
      {"neg.f32 d, a;", "ff", {f32(2)}, f32(-2)},
      {"neg.ftz.f32 d, a;", "ff", {kSubnormal}, kMinusZero},
      {"abs.f32 d, a;", "ff", {f32(-2)}, f32(2)},
      {"min.f32 d, a, b;", "fff", {f32(1), f32(2)}, f32(1)},
      {"min.f32 d, a, b;", "fff", {0, kMinusZero}, kMinusZero},
      {"max.f32 d, a, b;", "fff", {kMinusZero, 0}, 0},
      {"max.f32 d, a, b;", "fff", {kNan, f32(2)}, f32(2)},
      {"max.f32 d, a, b;", "fff", {kNan, 0xFFC00000}, kNan},
      {"max.NaN.f32 d, a, b;", "fff", {kNan, f32(2)}, kNan},
      {"max.ftz.f32 d, a, b;", "fff", {kSubnormal, kMinusZero}, 0},
      {"max.xorsign.abs.f32 d, a, b;", "fff", {f32(-3), f32(2)}, f32(-3)},
      {"min.xorsign.abs.f32 d, a, b;", "fff", {f32(-3), f32(-2)}, f32(2)},
      {"max.f32 d, a, b, c;", "ffff", {f32(1), f32(5), f32(3)}, f32(5)},
      {"testp.finite.f32 d, a;", "pf", {kInf}, 0},
      {"testp.infinite.f32 d, a;", "pf", {kMinusInf}, 1},
      {"testp.number.f32 d, a;", "pf", {kNan}, 0},
      {"testp.notanumber.f32 d, a;", "pf", {kNan}, 1},
      {"testp.normal.f32 d, a;", "pf", {kSubnormal}, 0},
      {"testp.subnormal.f64 d, a;", "pg", {1}, 1},
      {"copysign.f32 d, a, b;", "fff", {f32(-1), f32(5)}, f32(-5)},
      {"add.f64 d, a, b;", "ggg", {f64(1.5), f64(2)}, f64(3.5)},
      {"add.rp.f64 d, a, b;", "ggg", {f64(1), f64(0x1p-60)}, f64(std::nextafter(1.0, 2.0))},
      {"mul.rm.f64 d, a, b;", "ggg", {f64(0.1), f64(0.1)}, f64(0x1.47ae147ae147bp-7)},
      {"fma.rn.f64 d, a, b, c;", "gggg", {f64(0.1), f64(10), f64(-1)}, f64(std::fma(0.1, 10.0, -1.0))},
      {"div.rn.f64 d, a, b;", "ggg", {f64(1), f64(3)}, f64(1.0 / 3.0)},
      {"rcp.rn.f64 d, a;", "gg", {f64(8)}, f64(0.125)},
      {"rcp.approx.ftz.f64 d, a;", "gg", {f64(3)}, f64(1.0 / 3.0) & 0xFFFFFFFF00000000},
      {"sqrt.rn.f64 d, a;", "gg", {f64(2)}, f64(std::sqrt(2.0))},
      {"rsqrt.approx.f64 d, a;", "gg", {f64(16)}, f64(0.25)},
      {"max.f64 d, a, b;", "ggg", {f64(-1), f64(1)}, f64(1)},
      {"abs.f64 d, a;", "gg", {f64(-1)}, f64(1)},
      {"neg.f64 d, a;", "gg", {f64(1)}, f64(-1)},
      {"copysign.f64 d, a, b;", "ggg", {f64(-1), f64(5)}, f64(-5)},
  });
}

TEST_CASE("arithmetic: f16 and bf16") {
  check({
      {"add.f16 d, a, b;", "hhh", {0x3C00, 0x4000}, 0x4200},
      {"add.rn.f16 d, a, b;", "hhh", {0x6800, 0x3C00}, 0x6800},  // 2048 + 1: a tie, to even
      {"add.f16 d, a, b;", "hhh", {0x6801, 0x3C00}, 0x6802},     // 2050 + 1
      {"add.f16 d, a, b;", "hhh", {0x7BFF, 0x7BFF}, 0x7C00},
      {"add.ftz.f16 d, a, b;", "hhh", {0x0001, 0x0001}, 0},
      {"add.sat.f16 d, a, b;", "hhh", {0x3C00, 0x3C00}, 0x3C00},
      {"sub.f16 d, a, b;", "hhh", {0x3C00, 0x4000}, 0xBC00},
      {"sub.f16 d, a, b;", "hhh", {0x3C00, 0x3C00}, 0},
      {"mul.f16x2 d, a, b;", "rrr", {0x40003C00, 0x42004000}, 0x46004000},
      {"fma.rn.f16 d, a, b, c;", "hhhh", {0x3C01, 0x3C01, 0xBC02}, 0x0010},  // exactly 2^-20
      {"fma.rn.f16x2 d, a, b, c;", "rrrr", {0x3C004000, 0x40004000, 0x3C003C00}, 0x42004500},
      {"fma.rn.relu.f16 d, a, b, c;", "hhhh", {0xBC00, 0x3C00, 0}, 0},
      {"fma.rn.sat.f16 d, a, b, c;", "hhhh", {0x4000, 0x4000, 0}, 0x3C00},
      {"fma.rn.f16 d, a, b, c;", "hhhh", {0x7C00, 0, 0}, kNan16},
      {"add.bf16 d, a, b;", "hhh", {0x3F80, 0x4000}, 0x4040},
      {"add.bf16x2 d, a, b;", "rrr", {0x3F804000, 0x3F803F80}, 0x40004040},
      {"fma.rn.bf16 d, a, b, c;", "hhhh", {0x3F81, 0x3F81, 0xBF82}, 0x3880},  // exactly 2^-14
      {"fma.rn.bf16 d, a, b, c;", "hhhh", {0x3F81, 0x3F81, 0x0001}, 0x3F82},
      {"fma.rn.bf16 d, a, b, c;", "hhhh", {0x3FC0, 0x3F81, 0x0001}, 0x3FC2},  // just above a tie
      {"fma.rn.bf16 d, a, b, c;", "hhhh", {0x3FC0, 0x3F81, 0x8001}, 0x3FC1},  // just below it
      {"min.f16 d, a, b;", "hhh", {0x3C00, 0x7E00}, 0x3C00},
      {"min.NaN.f16 d, a, b;", "hhh", {0x3C00, 0x7E00}, kNan16},
      {"max.f16x2 d, a, b;", "rrr", {0x3C004000, 0x40003C00}, 0x40004000},
      {"max.bf16 d, a, b;", "hhh", {0x8000, 0}, 0},
      {"max.xorsign.abs.f16 d, a, b;", "hhh", {0xC000, 0x3C00}, 0xC000},
      {"neg.f16 d, a;", "hh", {0x3C00}, 0xBC00},
      {"neg.bf16x2 d, a;", "rr", {0x3F80BF80}, 0xBF803F80},
      {"abs.f16x2 d, a;", "rr", {0xBC003C00}, 0x3C003C00},
      {"ex2.approx.f16 d, a;", "hh", {0x4200}, 0x4800},
      {"ex2.approx.ftz.bf16x2 d, a;", "rr", {0x40404000}, 0x41004080},
      {"tanh.approx.f16 d, a;", "hh", {0x0000}, 0},
      {"tanh.approx.bf16 d, a;", "hh", {0x7F80}, 0x3F80},
  });
}

TEST_CASE("arithmetic: conversions of integers") {
  check({
      {"cvt.s32.s16 d, a;", "rh", {s16(-5)}, s32(-5)},
      {"cvt.u32.u16 d, a;", "rh", {s16(-5)}, 0xFFFB},
      {"cvt.u64.u32 d, a;", "dr", {0xFFFFFFFF}, 0xFFFFFFFF},
      {"cvt.s64.s32 d, a;", "dr", {s32(-1)}, ~0ull},
      {"cvt.u32.u64 d, a;", "rd", {0x123456789}, 0x23456789},
      {"cvt.u16.u32 d, a;", "hr", {0x12345}, 0x2345},
      {"cvt.s8.s32 d, a;", "rr", {0x1FF}, 0xFFFFFFFF},
      {"cvt.u8.u32 d, a;", "rr", {0x1FF}, 0xFF},
      {"cvt.s32.s8 d, a;", "rr", {0x80}, s32(-128)},
      {"cvt.u32.u8 d, a;", "rh", {0x1280}, 0x80},
      {"cvt.sat.s8.s32 d, a;", "rr", {300}, 127},
      {"cvt.sat.u8.s32 d, a;", "rr", {s32(-4)}, 0},
      {"cvt.sat.u16.u32 d, a;", "hr", {70000}, 0xFFFF},
      {"cvt.sat.s32.u32 d, a;", "rr", {0xFFFFFFFF}, 0x7FFFFFFF},
      {"cvt.sat.u32.s64 d, a;", "rd", {s64(-1)}, 0},
      {"cvt.rn.f32.s32 d, a;", "fr", {s32(-3)}, f32(-3)},
      {"cvt.rn.f32.u32 d, a;", "fr", {0xFFFFFFFF}, f32(0x1p32f)},
      {"cvt.rz.f32.u32 d, a;", "fr", {0xFFFFFFFF}, f32(0x1.fffffep31f)},
      {"cvt.rp.f32.s32 d, a;", "fr", {0x01000001}, f32(0x1.000002p24f)},
      {"cvt.rn.f32.s32 d, a;", "fr", {0x01000001}, f32(0x1p24f)},
      {"cvt.rn.f32.u64 d, a;", "fd", {~0ull}, f32(0x1p64f)},
      {"cvt.rn.f32.s64 d, a;", "fd", {(1ull << 62) + (1ull << 38) + 1}, f32(0x1.000002p62f)},
      {"cvt.rm.f64.u64 d, a;", "gd", {~0ull}, f64(0x1.fffffffffffffp63)},
      {"cvt.rn.f64.s64 d, a;", "gd", {s64(-5)}, f64(-5)},
      {"cvt.rn.f64.u32 d, a;", "gr", {0xFFFFFFFF}, f64(4294967295.0)},
      {"cvt.rn.f16.s32 d, a;", "hr", {2049}, 0x6800},
      {"cvt.rn.f16.u64 d, a;", "hd", {1ull << 40}, 0x7C00},
      {"cvt.rz.f16.s32 d, a;", "hr", {70000}, 0x7BFF},
      {"cvt.rn.bf16.s32 d, a;", "hr", {257}, 0x4380},
      {"cvt.rn.f32.u8 d, a;", "fr", {0x1FF}, f32(255)},
      {"cvt.pack.sat.u8.s32.b32 d, a, b, c;", "rrrr", {300, s32(-1), 0xABCD}, 0xABCDFF00},
      {"cvt.pack.sat.s16.s32 d, a, b;", "rrr", {40000, s32(-40000)}, 0x7FFF8000},
  });
}

TEST_CASE("arithmetic: conversions of floating-point numbers") {
  check({
      {"cvt.rzi.s32.f32 d, a;", "rf", {f32(-2.7f)}, s32(-2)},
      {"cvt.rni.s32.f32 d, a;", "rf", {f32(2.5f)}, 2},
      {"cvt.rni.s32.f32 d, a;", "rf", {f32(3.5f)}, 4},
      {"cvt.rmi.s32.f32 d, a;", "rf", {f32(-2.1f)}, s32(-3)},
      {"cvt.rpi.s32.f32 d, a;", "rf", {f32(2.1f)}, 3},
      {"cvt.rzi.s32.f32 d, a;", "rf", {f32(1e20f)}, 0x7FFFFFFF},
      {"cvt.rzi.u32.f32 d, a;", "rf", {f32(-1)}, 0},
      {"cvt.rzi.s32.f32 d, a;", "rf", {kNan}, 0},
      {"cvt.rzi.s64.f32 d, a;", "df", {kNan}, 1ull << 63},
      {"cvt.rzi.s32.f64 d, a;", "rg", {f64(std::numeric_limits<double>::quiet_NaN())}, 0x80000000},
      {"cvt.rzi.u64.f64 d, a;", "dg", {f64(1e30)}, ~0ull},
      {"cvt.rzi.u8.f32 d, a;", "rf", {f32(300)}, 255},
      {"cvt.rzi.s16.f32 d, a;", "hf", {f32(-40000)}, 0x8000},
      {"cvt.rzi.s32.f16 d, a;", "rh", {0xC100}, s32(-2)},
      {"cvt.rni.ftz.s32.f32 d, a;", "rf", {kSubnormal}, 0},
      {"cvt.f64.f32 d, a;", "gf", {f32(1.5f)}, f64(1.5)},
      {"cvt.rn.f32.f64 d, a;", "fg", {f64(0.1)}, f32(0.1f)},
      {"cvt.rz.f32.f64 d, a;", "fg", {f64(0.1)}, f32(0x1.999998p-4f)},
      {"cvt.rp.f32.f64 d, a;", "fg", {f64(1e300)}, kInf},
      {"cvt.rm.f32.f64 d, a;", "fg", {f64(1e300)}, f32(std::numeric_limits<float>::max())},
      {"cvt.rn.ftz.f32.f64 d, a;", "fg", {f64(0x1p-130)}, 0},
      {"cvt.rni.f32.f32 d, a;", "ff", {f32(-2.5f)}, f32(-2)},
      {"cvt.rmi.f32.f32 d, a;", "ff", {f32(-2.5f)}, f32(-3)},
      {"cvt.rpi.f64.f64 d, a;", "gg", {f64(2.25)}, f64(3)},
      {"cvt.sat.f32.f32 d, a;", "ff", {f32(1.5f)}, f32(1)},
      {"cvt.sat.f32.f32 d, a;", "ff", {kNan}, 0},
      {"cvt.ftz.f32.f32 d, a;", "ff", {kSubnormal | kMinusZero}, kMinusZero},
      {"cvt.f32.f16 d, a;", "fh", {0x3E00}, f32(1.5f)},
      {"cvt.f32.f16 d, a;", "fh", {0x0001}, f32(0x1p-24f)},
      {"cvt.f32.f16 d, a;", "fh", {0xFC00}, kMinusInf},
      {"cvt.f32.bf16 d, a;", "fh", {0x4049}, f32(3.140625f)},
      {"cvt.f64.f16 d, a;", "gh", {0x3E00}, f64(1.5)},
      {"cvt.rn.f16.f32 d, a;", "hf", {f32(1.0f + 0x1p-11f)}, 0x3C00},
      {"cvt.rn.f16.f32 d, a;", "hf", {f32(1.0f + 0x1.8p-11f)}, 0x3C01},
      {"cvt.rz.f16.f32 d, a;", "hf", {f32(1.0f + 0x1.8p-11f)}, 0x3C00},
      {"cvt.rn.f16.f32 d, a;", "hf", {f32(65520)}, 0x7C00},
      {"cvt.rn.f16.f32 d, a;", "hf", {f32(0x1p-25f)}, 0},
      {"cvt.rn.f16.f64 d, a;", "hg", {f64(1 + 0x1p-11 + 0x1p-40)}, 0x3C01},
      {"cvt.rn.bf16.f32 d, a;", "hf", {f32(1.00390625f)}, 0x3F80},
      {"cvt.rn.relu.bf16.f32 d, a;", "hf", {f32(-1)}, 0},
      {"cvt.rn.f16x2.f32 d, a, b;", "rff", {f32(1), f32(2)}, 0x3C004000},
      {"cvt.rn.bf16x2.f32 d, a, b;", "rff", {f32(1), f32(-2)}, 0x3F80C000},
      {"cvt.rn.bf16x2.f32 d, a, b;", "rff", {kNan, f32(0x1.ffp0f)}, 0x7FFF4000},
      {"cvt.rz.bf16x2.f32 d, a, b;", "rff", {f32(0x1.ffp0f), f32(1)}, 0x3FFF3F80},
      {"cvt.rn.relu.f16x2.f32 d, a, b;", "rff", {f32(-1), f32(2)}, 0x00004000},
      {"cvt.rna.tf32.f32 d, a;", "rf", {f32(0x1.002p0f)}, f32(0x1.004p0f)},
      {"cvt.rna.tf32.f32 d, a;", "rf", {0xFFA01FFF}, 0xFFA00000},
      {"cvt.rn.tf32.f32 d, a;", "rf", {f32(0x1.002p0f)}, f32(1)},
      {"cvt.rn.satfinite.e4m3x2.f32 d, a, b;", "hff", {f32(1), f32(1000)}, 0x387E},
      {"cvt.rn.satfinite.e5m2x2.f32 d, a, b;", "hff", {f32(-1), f32(1.5f)}, 0xBC3E},
      {"cvt.rn.satfinite.e4m3x2.f16x2 d, a;", "hr", {0x3C004000}, 0x3840},
      {"cvt.rn.f16x2.e4m3x2 d, a;", "rh", {0x3840}, 0x3C004000},
      {"cvt.rn.f16x2.e5m2x2 d, a;", "rh", {0x7C3C}, 0x7C003C00},
  });
}

TEST_CASE("arithmetic: moves") {
  check({
      {"mov.b32 d, a;", "rf", {f32(2)}, f32(2)},
      {"mov.b32 d, a;", "fr", {f32(2)}, f32(2)},
      {"mov.b64 d, {a, b};", "drr", {0x11111111, 0x22222222}, 0x2222222211111111},
      {"mov.b64 {d, t}, a;", "rd", {0x2222222211111111}, 0x11111111},
      {"mov.b64 {t, d}, a;", "rd", {0x2222222211111111}, 0x22222222},
      {"mov.b64 {_, d}, a;", "rd", {0x2222222211111111}, 0x22222222},
      {"mov.b32 d, {a, b};", "rhh", {0x1111, 0x2222}, 0x22221111},
      {"mov.b64 d, {a, b, c, e};", "dhhhh", {1, 2, 3, 4}, 0x0004000300020001},
      {"mov.b64 d, {a, b};", "gff", {f32(0), 0x40000000}, f64(2)},
      {"mov.u32 d, 0x80000000;", "r", {}, 0x80000000},
      {"mov.f32 d, 0f3F800000;", "f", {}, f32(1)},
      {"mov.f64 d, 0d3FF0000000000000;", "g", {}, f64(1)},
      {"mov.b32 d, 0f3F800000;", "r", {}, f32(1)},
      {"mov.u32 d, WARP_SZ;", "r", {}, 32},
      {"mov.u32 d, %ntid.x;", "r", {}, 1},
      {"mov.pred d, a;", "pp", {1}, 1},
  });
}

TEST_CASE("arithmetic: guards") {
  check({
      {"mov.b32 d, 7; @a mov.b32 d, 8;", "rp", {1}, 8},
      {"mov.b32 d, 7; @a mov.b32 d, 8;", "rp", {0}, 7},
      {"mov.b32 d, 7; @!a add.s32 d, d, 8;", "rp", {0}, 15},
      {"mov.b32 d, 7; @a div.s32 d, d, b;", "rpr", {0, 0}, 7},
      {"mov.b32 d, 7; @a ld.global.b32 d, [%in];", "rp", {0}, 7},
      {"mov.b32 d, 7; @!a ld.global.u32 d, [%out];", "rp", {1}, 7},
      {"setp.eq.s32 d, 0, 1; @a setp.eq.s32 d, 1, 1;", "pp", {1}, 1},
  });
}
