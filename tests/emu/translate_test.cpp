// Control flow, calls, state spaces and refusals of the translator, through the public interface.
#include <attune/emulator.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/emulator/exec/intrinsics.h"

namespace emulator = attune::emulator;

namespace {

std::string module_text(const std::string& body) { return ".version 8.6\n.target sm_90a\n.address_size 64\n" + body; }

/// A kernel "run" with a pointer parameter "out", loaded to %out, and %tid.x in %tid.
std::string run_text(const std::string& declarations, const std::string& body) {
  return module_text(declarations +
                     "\n.visible .entry run(.param .u64 out) {\n.reg .b64 %out, %rd<20>;\n.reg .b32 %lane, %r<20>;\n"
                     ".reg .b16 %rs<8>;\n.reg .pred %p<8>;\n.reg .f32 %f<8>;\nld.param.u64 %out, [out];\n"
                     "mov.u32 %lane, %tid.x;\n" +
                     body + "\n}\n");
}

struct Result {
  std::vector<std::uint32_t> out;
  emulator::Report report;
};

Result run(const std::string& text, unsigned threads = 1, bool optimise = false) {
  const auto program = emulator::Program::load(text, {.checks = true, .optimise = optimise});
  const auto machine = emulator::Machine::create();
  constexpr std::size_t kWords = 64;
  auto* out = static_cast<std::uint32_t*>(machine->allocate(4 * kWords));
  for (std::size_t i = 0; i < kWords; ++i) out[i] = 0;
  machine->mark_written(out, 4 * kWords);
  void* arguments[] = {&out};
  Result result;
  result.report =
      machine->launch(*program, "run", {.grid = {}, .block = {threads, 1, 1}, .dynamic_shared_bytes = 256}, arguments);
  result.out.assign(out, out + kWords);
  return result;
}

/// The first words of the output, plainly translated and optimised; nothing must be found.
void expect(const std::string& text, const std::vector<std::uint32_t>& expected, unsigned threads = 1) {
  for (const bool optimise : {false, true}) {
    CAPTURE(optimise);
    const Result result = run(text, threads, optimise);
    CHECK_MESSAGE(result.report.clean(), result.report.text());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(result.out[i] == expected[i]);
    }
  }
}

void expect_error(const std::string& text, attune::ErrorCode code, const std::string& message) {
  try {
    emulator::Program::load(text);
    FAIL("loaded");
  } catch (const attune::Error& error) {
    CHECK(error.code() == code);
    CHECK_MESSAGE(std::string(error.what()).find(message) != std::string::npos, std::string(error.what()));
  }
}

}  // namespace

TEST_CASE("translate: what is not known is refused with its name and line") {
  const auto unsupported = attune::ErrorCode::unsupported;
  const auto invalid = attune::ErrorCode::invalid_argument;
  expect_error(run_text("", ".local .b8 big[600000];\nret;"), unsupported, "more than 512 KiB of local memory");
  expect_error(run_text("", ".param .b8 big[600000];\nret;"), unsupported, "more than 256 KiB of .param variables");
  expect_error(run_text(".shared .b8 big[20000000];", "mov.u32 %r1, big;\nret;"), unsupported, "of shared memory");
  expect_error(run_text(".global .b8 big[2000000000];", "ret;"), unsupported, "more than 1 GiB of global variables");
  expect_error(run_text("", "frobnicate.u32 %r1, %r2;\nret;"), unsupported,
               "ptx:13: frobnicate.u32: unknown instruction");
  expect_error(run_text("", "add.wide.s32 %r1, %r2, %r3;"), unsupported,
               "ptx:13: add.wide.s32: unknown modifier .wide");
  expect_error(run_text("", "fma.rn.ftz.sat.relu.f32 %f1, %f2, %f3, %f4;"), unsupported, "unknown modifier .relu");
  expect_error(run_text("", "fma.f32 %f1, %f2, %f3, %f4;"), unsupported, "the rounding mode is missing");
  expect_error(run_text("", "cvt.s32.f32 %r1, %f2;"), unsupported, "rounding mode is missing");
  expect_error(run_text("", "shfl.up.b32 %r1, %r2, 1, 0;"), unsupported, "only shfl.sync exists");
  expect_error(run_text("", "ld.global.gpu.u32 %r1, [%out];"), unsupported, "a scope without");
  expect_error(run_text("", "atom.global.inc.s32 %r1, [%out], 1;"), unsupported, "unknown operation");
  expect_error(run_text("", "mov.u32 %r1, %pm0;"), unsupported, "%pm0");
  expect_error(run_text("", "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;"),
               unsupported, "unknown shape");
  expect_error(run_text("", "add.s64 %rd1, %rd2, %r3;"), invalid, "%r3 has 32 bits where 64 are needed");
  expect_error(run_text("", "add.s32 %rd1, %r2, %r3;"), invalid, "%rd1 has 64 bits, the result 32");
  expect_error(run_text("", "add.s32 %r1, %r2;"), invalid, "operands are missing");
  expect_error(run_text("", "add.s32 %r1, %p1, %r2;"), invalid, "predicates and numbers do not mix");
  expect_error(run_text("", "ld.param.u64 %rd1, [out+4];"), invalid, "beyond the parameters");
  expect_error(run_text(".shared .b32 tile[4];", "ld.global.u32 %r1, [tile];"), invalid, "another state space");
}

TEST_CASE("translate: loops, jumps through tables, divergent paths") {
  expect(run_text("", R"(
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
  outer:
    mov.u32 %r3, 0;
  inner:
    add.u32 %r2, %r2, %r3;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 4;
    @%p1 bra inner;
    add.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 5;
    @%p1 bra.uni outer;
    st.global.u32 [%out], %r2;
    st.global.u32 [%out+4], %r1;
    ret;)"),
         {30, 5});
  expect(run_text("", R"(
  targets: .branchtargets zero, one, two;
    mov.u32 %r2, 100;
    shl.b32 %r3, %lane, 2;
    cvt.u64.u32 %rd1, %r3;
    add.u64 %rd2, %out, %rd1;
    brx.idx %lane, targets;
  zero:
    add.u32 %r2, %r2, 1;
  one:
    add.u32 %r2, %r2, 1;
    bra done;
  two:
    mov.u32 %r2, 7;
  done:
    st.global.u32 [%rd2], %r2;)"),
         {102, 101, 7}, 3);
}

TEST_CASE("translate: a register that nothing has written reads as zero, and paths merge") {
  expect(run_text("", R"(
    setp.eq.u32 %p1, %lane, 5;
    @%p1 bra skip;
    mov.u32 %r3, 9;
  skip:
    add.u32 %r4, %r3, %r5;
    st.global.u32 [%out], %r4;
    ret;)"),
         {9});
}

TEST_CASE("translate: guarded exits, stores and calls") {
  expect(run_text(R"(
    .func (.param .b32 result) square(.param .b32 x) {
      .reg .b32 %r<3>;
      ld.param.b32 %r1, [x];
      mul.lo.u32 %r2, %r1, %r1;
      st.param.b32 [result], %r2;
      ret;
    })",
                  R"(
    mul.wide.u32 %rd1, %lane, 4;
    add.u64 %rd2, %out, %rd1;
    setp.gt.u32 %p1, %lane, 2;
    @%p1 exit;
    setp.eq.u32 %p2, %lane, 1;
    mov.u32 %r3, 1;
    { .param .b32 a; .param .b32 r;
      add.u32 %r4, %lane, 10;
      st.param.b32 [a], %r4;
      @%p2 call.uni (r), square, (a);
      @%p2 ld.param.b32 %r3, [r];
    }
    @!%p2 add.u32 %r3, %r3, 4;
    st.global.u32 [%rd2], %r3;
    ret;)"),
         {5, 121, 5, 0}, 6);
}

TEST_CASE("translate: calls with register parameters, structures, local memory and pointers to functions") {
  const std::string functions = R"(
    .func (.reg .u32 sum) add3(.reg .u32 a, .reg .u32 b, .reg .u32 c) {
      add.u32 sum, a, b;
      add.u32 sum, sum, c;
      ret;
    }
    .func (.param .align 8 .b8 pair[16]) swap(.param .align 8 .b8 in[16]) {
      .local .align 8 .b8 scratch[16];
      .reg .b64 %rd<5>;
      ld.param.v2.u64 {%rd1, %rd2}, [in];
      st.local.u64 [scratch], %rd2;
      st.local.u64 [scratch+8], %rd1;
      ld.local.u64 %rd3, [scratch];
      ld.local.u64 %rd4, [scratch+8];
      st.param.u64 [pair], %rd3;
      st.param.u64 [pair+8], %rd4;
      ret;
    }
    .func (.param .b32 r) twice(.param .b32 x) {
      .reg .b32 %r1;
      ld.param.u32 %r1, [x];
      shl.b32 %r1, %r1, 1;
      st.param.b32 [r], %r1;
      ret;
    }
    .func (.param .b32 r) negate(.param .b32 x) {
      .reg .b32 %r1;
      ld.param.u32 %r1, [x];
      neg.s32 %r1, %r1;
      st.param.b32 [r], %r1;
      ret;
    }
    .global .u64 table[2] = {twice, negate};)";
  expect(run_text(functions, R"(
    .local .align 4 .b32 own[4];
    mov.u32 %r1, 42;
    st.local.u32 [own+4], %r1;
    mov.u32 %r2, 7;
    call (%r3), add3, (%r1, %r2, 1);
    st.global.u32 [%out], %r3;
    { .param .align 8 .b8 a[16]; .param .align 8 .b8 r[16];
      st.param.u64 [a], 5;
      st.param.u64 [a+8], 6;
      call (r), swap, (a);
      ld.param.u32 %r4, [r];
      ld.param.u32 %r5, [r+8];
    }
    st.global.v2.u32 [%out+8], {%r4, %r5};
    mov.u64 %rd1, own;
    cvta.local.u64 %rd2, %rd1;
    ld.u32 %r6, [%rd2+4];
    st.global.u32 [%out+16], %r6;
  prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
    mov.u32 %r9, 0;
  next:
    mul.wide.u32 %rd3, %r9, 8;
    mov.u64 %rd4, table;
    add.u64 %rd4, %rd4, %rd3;
    ld.global.u64 %rd5, [%rd4];
    { .param .b32 a; .param .b32 r;
      st.param.b32 [a], 21;
      call (r), %rd5, (a), prototype;
      ld.param.b32 %r7, [r];
    }
    mul.wide.u32 %rd6, %r9, 4;
    add.u64 %rd6, %rd6, %out;
    st.global.u32 [%rd6+20], %r7;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p1, %r9, 2;
    @%p1 bra next;
    ret;)"),
         {50, 0, 6, 5, 42, 42, static_cast<std::uint32_t>(-21)});
  expect_error(run_text(R"(
    .func again(.param .b32 x);
    .func again(.param .b32 x) {
      .param .b32 a;
      st.param.b32 [a], 1;
      call again, (a);
      ret;
    })",
                        "ret;"),
               attune::ErrorCode::unsupported, "again may call itself");
}

TEST_CASE("translate: a wild pointer to a function traps") {
  const Result result = run(run_text("", R"(
  prototype: .callprototype _ ();
    mov.u64 %rd1, 4660;
    call %rd1, prototype;
    ret;)"));
  REQUIRE(result.report.findings.size() == 1);
  CHECK(result.report.findings[0].kind == emulator::FindingKind::trap);
}

TEST_CASE("translate: kernel parameters, by name, by address and generically") {
  const std::string text = module_text(R"(
    .visible .entry run(.param .u8 small, .param .u64 out, .param .align 16 .b8 pack[24], .param .b16 last)
    .maxntid 64, 2, 1
    .minnctapersm 3
    {
      .reg .b64 %rd<9>;
      .reg .b32 %r<9>;
      ld.param.u64 %rd1, [out];
      mov.b64 %rd2, pack;
      ld.param.v2.u32 {%r1, %r2}, [%rd2+8];
      mov.b64 %rd3, pack;
      cvta.param.u64 %rd4, %rd3;
      ld.u32 %r3, [%rd4+16];
      ld.param.u8 %r4, [small];
      ld.param.s16 %r5, [last];
      st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
      st.global.u32 [%rd1+16], %r5;
      ret;
    })");
  const auto program = emulator::Program::load(text);
  REQUIRE(program->kernels().size() == 1);
  const emulator::KernelInfo& info = program->kernels()[0];
  CHECK(info.name == "run");
  CHECK(info.parameter_bytes == std::vector<std::size_t>{1, 8, 24, 2});
  CHECK(info.parameter_offsets == std::vector<std::size_t>{0, 8, 16, 40});
  CHECK(info.max_threads == 128);
  CHECK(info.static_shared_bytes == 0);
  const auto machine = emulator::Machine::create();
  auto* out = static_cast<std::uint32_t*>(machine->allocate(64));
  std::uint8_t small = 200;
  std::uint32_t pack[6] = {1, 2, 3, 4, 5, 6};
  std::int16_t last = -2;
  void* arguments[] = {&small, &out, pack, &last};
  const emulator::Report report = machine->launch(*program, "run", {.grid = {}, .block = {}}, arguments);
  CHECK_MESSAGE(report.clean(), report.text());
  CHECK(std::vector<std::uint32_t>(out, out + 5) ==
        std::vector<std::uint32_t>{3, 4, 5, 200, static_cast<std::uint32_t>(-2)});
}

TEST_CASE("translate: shared memory lies in one order, dynamic shared memory after it") {
  const std::string text = module_text(R"(
    .shared .align 4 .b8 common[6];
    .shared .align 16 .b8 first[20];
    .extern .shared .align 64 .b8 dynamic[];
    .func touch() {
      .reg .b32 %r1;
      mov.u32 %r1, 5;
      st.shared.u32 [common], %r1;
      ret;
    }
    .visible .entry run(.param .u64 out) {
      .reg .b64 %rd<9>; .reg .b32 %r<9>;
      .shared .b32 own;
      ld.param.u64 %rd1, [out];
      mov.u32 %r1, common;
      mov.u32 %r2, first;
      mov.u32 %r3, own;
      mov.u64 %rd2, dynamic;
      cvt.u32.u64 %r4, %rd2;
      st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
      call touch;
      ld.shared.u32 %r5, [%r1];
      st.shared.u32 [dynamic+4], %r5;
      cvta.shared.u64 %rd3, %rd2;
      ld.u32 %r6, [%rd3+4];
      st.global.u32 [%rd1+16], %r6;
      ret;
    }
    .visible .entry other() {
      .reg .b32 %r1;
      .shared .b64 mine;
      mov.u32 %r1, mine;
      ret;
    })");
  const auto program = emulator::Program::load(text);
  const std::uint32_t base = emulator::kSharedReserved;
  expect(text, {base, base + 16, base + 36, base + 64, 5});
  REQUIRE(program->kernels().size() == 2);
  CHECK(program->kernels()[0].static_shared_bytes == 64);
  CHECK(program->kernels()[1].static_shared_bytes == 16);
}

TEST_CASE("translate: values of global and constant variables") {
  expect(run_text(R"(
    .global .u32 zero;
    .global .align 8 .u32 numbers[4] = {1, 2, 3};
    .const .f32 half = 0f3F000000;
    .global .u64 pointer = generic(numbers)+8;)",
                  R"(
    ld.global.u32 %r1, [zero];
    ld.global.u32 %r2, [numbers+8];
    ld.global.u32 %r3, [numbers+12];
    ld.const.f32 %f1, [half];
    ld.global.u64 %rd1, [pointer];
    ld.u32 %r4, [%rd1];
    st.global.v4.b32 [%out], {%r1, %r2, %r3, %f1};
    st.global.u32 [%out+16], %r4;
    atom.global.add.u32 %r5, [zero], 3;
    ld.global.u32 %r6, [zero];
    st.global.u32 [%out+20], %r5;
    st.global.u32 [%out+24], %r6;
    ret;)"),
         {0, 3, 0, 0x3F000000, 3, 0, 3});
}

TEST_CASE("translate: loads and stores of every width") {
  expect(run_text("", R"(
    mov.u32 %r1, 0x80FF7F01;
    st.global.u32 [%out+128], %r1;
    ld.global.s8 %r2, [%out+130];
    ld.global.u8 %r3, [%out+131];
    ld.global.s16 %r4, [%out+130];
    ld.global.u16 %rs1, [%out+128];
    ld.global.s8 %rd1, [%out+131];
    cvt.u32.u16 %r5, %rs1;
    cvt.u32.u64 %r6, %rd1;
    st.global.v4.u32 [%out], {%r2, %r3, %r4, %r5};
    st.global.u32 [%out+16], %r6;
    st.global.u8 [%out+20], %r1;
    st.global.u16 [%out+24], %rd1;
    ld.global.nc.L1::no_allocate.v4.u8 {%rs2, %rs3, _, %rs4}, [%out+128];
    cvt.u32.u16 %r7, %rs2;
    cvt.u32.u16 %r8, %rs3;
    cvt.u32.u16 %r9, %rs4;
    st.volatile.global.u32 [%out+28], %r7;
    st.release.gpu.global.u32 [%out+32], %r8;
    st.relaxed.sys.global.u32 [%out+36], %r9;
    ret;)"),
         {0xFFFFFFFF, 0x80, 0xFFFF80FF, 0x7F01, 0xFFFFFF80, 0x01, 0xFF80, 0x01, 0x7F, 0x80});
}

TEST_CASE("translate: atomics, scalar and wide") {
  expect(run_text("", R"(
    atom.global.add.u32 %r1, [%out], 5;
    atom.global.cas.b32 %r2, [%out], 5, 9;
    atom.global.exch.b32 %r3, [%out], 4;
    red.global.max.s32 [%out], 100;
    st.global.u32 [%out+4], %r1;
    st.global.u32 [%out+8], %r2;
    st.global.u32 [%out+12], %r3;
    mov.f32 %f1, 0f3F800000;
    atom.global.add.v2.f32 {%f2, %f3}, [%out+64], {%f1, %f1};
    red.global.add.v4.f32 [%out+80], {%f1, %f1, %f1, %f1};
    { .reg .b128 %big, %old;
      mov.b128 %big, {%rd1, %rd1};
      atom.global.exch.b128 %old, [%out+96], %big;
    }
    ret;)"),
         {100, 0, 5, 9});
}

TEST_CASE("translate: instructions are counted by the block") {
  const Result result = run(run_text("",
                                     "mov.u32 %r1, 3;\nloop:\nadd.s32 %r1, %r1, -1;\nsetp.ne.s32 %p1, %r1, 0;\n"
                                     "@%p1 bra loop;\nret;"),
                            2);
  CHECK(result.report.instructions == 2 * (3 + 3 * 3 + 1));
}

TEST_CASE("translate: positions name the instruction, its PTX line and its CUDA line") {
  const Result result = run(module_text(R"(.file 1 "kernel.cu"
.visible .entry run(.param .u64 out) {
  .reg .pred %p1;
  .loc 1 17 0
  setp.eq.s32 %p1, 0, 0;
  @%p1   trap;
  ret;
})"));
  REQUIRE(result.report.findings.size() == 1);
  const emulator::Finding& finding = result.report.findings[0];
  CHECK(finding.kind == emulator::FindingKind::trap);
  CHECK(finding.at.ptx_line == 9);
  CHECK(finding.at.instruction == "trap");
  CHECK(finding.at.file == "kernel.cu");
  CHECK(finding.at.line == 17);
}

TEST_CASE("translate: long operand lists are shortened in messages") {
  const Result result = run(
      run_text("", "{ .reg .b32 %w<8>;\nst.global.v8.b32 [0], {%w0, %w1, %w2,\n %w3, %w4,  %w5, %w6, %w7}; }\nret;"));
  REQUIRE(result.report.findings.size() == 1);
  CHECK(result.report.findings[0].at.instruction == "st.global.v8.b32 [0], {%w0, %w1, ... %w7}");
}

TEST_CASE("translate: printf") {
  const Result result = run(run_text(R"(
    .extern .func (.param .b32 count) vprintf(.param .b64 format, .param .b64 arguments);
    .global .align 1 .b8 text[9] = {120, 32, 61, 32, 37, 100, 10, 0};)",
                                     R"(
    .local .align 8 .b8 values[8];
    mov.u32 %r1, 41;
    st.local.u32 [values], %r1;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    mov.u64 %rd3, values;
    cvta.local.u64 %rd4, %rd3;
    { .param .b64 f; .param .b64 a; .param .b32 r;
      st.param.b64 [f], %rd2;
      st.param.b64 [a], %rd4;
      call.uni (r), vprintf, (f, a);
      ld.param.b32 %r2, [r];
    }
    ret;)"));
  CHECK_MESSAGE(result.report.clean(), result.report.text());
  CHECK(result.report.output == "x = 41\n");
}

namespace {

/// A product into %w0 to %w3 of zeros, with code before its fence, while it is pending, and after it.
std::string product_text(const std::string& before, const std::string& pending, const std::string& after) {
  return run_text(".shared .align 1024 .b8 tile[2048];",
                  R"(
    .reg .f32 %w<4>;
    mov.u32 %r1, tile;
    shl.b32 %r2, %lane, 4;
    add.u32 %r3, %r1, %r2;
    mov.u32 %r4, 0;
    st.shared.v4.u32 [%r3], {%r4, %r4, %r4, %r4};
    fence.proxy.async;
    bar.sync 0;
    shr.u32 %r5, %r1, 4;
    cvt.u64.u32 %rd1, %r5;
    or.b64 %rd2, %rd1, 0x1000080000;
    setp.eq.u32 %p1, %lane, 500;
    setp.eq.u32 %p2, %lane, 0;
)" + before + "\nwgmma.fence.sync.aligned;\n" +
                      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%w0, %w1, %w2, %w3}, %rd2, %rd2, 0, 1, 1, "
                      "0, 0;\nwgmma.commit_group.sync.aligned;\n" +
                      pending + "\nwgmma.wait_group.sync.aligned 0;\n" + after + "\nret;");
}

}  // namespace

TEST_CASE("translate: registers of a pending product may not be touched, nor seem to be") {
  const std::string store = "@%p2 st.global.f32 [%out], %w0; @%p2 st.global.f32 [%out+4], %w3;";
  expect(
      product_text("mov.f32 %w0, 0f3F800000;", "@%p1 mov.f32 %w0, 0f3F800000; @%p1 st.global.f32 [%out], %w1;", store),
      {0, 0}, 128);
  expect(product_text("", "", "add.f32 %w0, %w1, 0f40000000; mov.f32 %w3, %w0;" + store), {0x40000000, 0x40000000},
         128);
  for (const std::string touch : {"mov.f32 %w2, 0f3F800000;", "add.f32 %f1, %w2, %w2;", "@%p2 add.f32 %f1, %w2, %w2;",
                                  "@!%p1 mov.f32 %w2, %f1;"}) {
    for (const bool optimise : {false, true}) {
      CAPTURE(touch);
      const Result result = run(product_text("", touch, store), 128, optimise);
      REQUIRE(result.report.findings.size() == 1);
      CHECK(result.report.findings[0].kind == emulator::FindingKind::register_hazard);
      CHECK(touch.find(result.report.findings[0].at.instruction) != std::string::npos);
      CHECK(result.report.findings[0].count == (touch.starts_with("@%p2") ? 1 : 128));
    }
  }
}
