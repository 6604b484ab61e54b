#include "runtime/emulator/ptx/parser.h"

#include <doctest/doctest.h>

#include <string>

#include <attune/error.h>

namespace attune::emulator::ptx {
namespace {

constexpr const char* kHeader = ".version 9.0\n.target sm_90a\n.address_size 64\n";

Module parse_module(const std::string& text) { return parse(kHeader + text); }

/// Of the only function, whose body begins in line 5.
Function parse_body(const std::string& body) {
  Module module = parse_module(".entry k(.param .u64 k_param_0) {\n" + body + "\n}\n");
  REQUIRE(module.functions.size() == 1);
  return std::move(module.functions.front());
}

std::string message_of(const std::string& text, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    parse(text);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

std::string text_of(const Operand& operand) {
  std::string out;
  switch (operand.kind) {
    case OperandKind::reg: out = "r:" + operand.name; break;
    case OperandKind::special: out = "s:" + operand.name; break;
    case OperandKind::immediate:
      out = (operand.is_float ? "f" + std::to_string(operand.float_bits) + ":" : "i:") + std::to_string(operand.bits);
      break;
    case OperandKind::symbol: out = "n:" + operand.name; break;
    case OperandKind::address: out = "a"; break;
    case OperandKind::vector: out = "v"; break;
    case OperandKind::pair: out = "p"; break;
    case OperandKind::sink: out = "_"; break;
  }
  if (operand.negated) out = "!" + out;
  if (operand.minus) out = "-" + out;
  if (!operand.items.empty()) {
    out += "(";
    for (const Operand& item : operand.items) out += (out.back() == '(' ? "" : " ") + text_of(item);
    out += ")";
  }
  if (operand.addend != 0) out += (operand.addend > 0 ? "+" : "") + std::to_string(operand.addend);
  return out;
}

std::string text_of(const Instruction& instruction) {
  std::string out;
  if (!instruction.guard.predicate.empty()) {
    out = (instruction.guard.negated ? "@!" : "@") + instruction.guard.predicate + " ";
  }
  out += instruction.opcode;
  for (const std::string& modifier : instruction.modifiers) out += "." + modifier;
  for (const Operand& operand : instruction.operands) out += " " + text_of(operand);
  return out;
}

/// The registers that the operand tests use.
constexpr const char* kRegisters =
    ".reg .pred %p<8>, p, q; .reg .b32 %r<30>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .v2 .f32 pair;"
    ".shared .align 16 .b8 buffer[256];\n";

std::string instruction_text(const std::string& text) {
  const Function function = parse_body(kRegisters + text);
  REQUIRE(function.body.size() >= 1);
  return text_of(function.body.front().instruction);
}

TEST_CASE("types") {
  CHECK(byte_size(Type::none) == 0);
  CHECK(byte_size(Type::pred) == 1);
  CHECK(byte_size(Type::b128) == 16);
  CHECK(byte_size(Type::bf16x2) == 4);
  CHECK(byte_size(Type::e4m3x2) == 2);
  CHECK(type_of("f32") == Type::f32);
  CHECK(type_of("s64") == Type::s64);
  CHECK(!type_of(""));
  CHECK(!type_of("f33"));
  for (int i = 1; i <= static_cast<int>(Type::s16x2); ++i)
    CHECK(type_of(type_name(static_cast<Type>(i))) == static_cast<Type>(i));
}

TEST_CASE("header: versions and targets") {
  const Module module = parse_module("");
  CHECK(module.version_major == 9);
  CHECK(module.version_minor == 0);
  CHECK(module.target == "sm_90a");
  CHECK(module.lines.size() == 4);
  CHECK(module.lines[1] == ".target sm_90a");
  for (const char* version : {"7.8", "8.0", "8.7", "9.0", "9.3"}) {
    CHECK_NOTHROW(parse(std::string(".version ") + version + "\n.target sm_90, debug\n.address_size 64"));
  }
  CHECK(parse(".version 8.7 .target sm_80 .address_size 64").target == "sm_80");
  CHECK(parse("// a comment\n/* and\none more */ .version 7.8 .target sm_89 .address_size 64").target == "sm_89");

  const auto unsupported = [](const std::string& text) { return message_of(text, ErrorCode::unsupported); };
  CHECK(unsupported(".version 7.7\n") == "ptx:1:10: PTX ISA version 7.7 (supported: 7.8 to 9.x)");
  CHECK(unsupported(".version 10.0\n") == "ptx:1:10: PTX ISA version 10.0 (supported: 7.8 to 9.x)");
  for (const char* target : {"sm_100", "sm_100a", "sm_100f", "sm_120a", "sm_89a", "sm_75", "sm_90b", "sm_9", "sm_",
                             "compute_90", "sm_90000000000"}) {
    CHECK(unsupported(std::string(".version 9.0\n.target ") + target + "\n.address_size 64") ==
          std::string("ptx:2:9: target '") + target +
              "' (supported: sm_90a, and what also runs there: sm_80 to sm_90)");
  }
  CHECK(unsupported(".version 9.0\n.target sm_90, map_f64_to_f32") == "ptx:2:16: target option 'map_f64_to_f32'");
  CHECK(unsupported(".version 9.0\n.target sm_90\n.address_size 32") == "ptx:3:15: address size 32 (supported: 64)");
}

TEST_CASE("module variables") {
  const Module module = parse_module(R"(
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 8 .u64 a = 5, b;
.weak .const .v4 .f32 c = {1.0, 0f40000000, -0f40400000, -4};
.common .global .s16 d[2][3] = {{1, -2}, {3}};
.global .attribute(.managed) .b8 e[] = {1, 0x22, 0b11, 017, 5U};
.global .f64 f = 0d3FF8000000000000;
.global .align 4 .u32 zero;
.const .s32 run[2][2] = {1, 2, 3, 4};
)");
  const auto& v = module.variables;
  REQUIRE(v.size() == 9);
  CHECK(v[0].is_extern);
  CHECK(v[0].is_array);
  CHECK(v[0].elements == 0);
  CHECK(v[0].alignment == 16);
  CHECK(v[0].space == Space::shared);
  CHECK(v[1].visible);
  CHECK(v[1].initial == std::vector<std::uint8_t>{5, 0, 0, 0, 0, 0, 0, 0});
  CHECK(v[2].name == "b");
  CHECK(v[2].initial.empty());
  CHECK(v[3].space == Space::constant);
  CHECK(v[3].vector == 4);
  CHECK(v[3].initial == std::vector<std::uint8_t>{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0xc0, 0, 0, 0x80, 0xc0});
  CHECK(v[4].elements == 6);
  CHECK(v[4].initial == std::vector<std::uint8_t>{1, 0, 0xfe, 0xff, 0, 0, 3, 0});
  CHECK(v[5].elements == 5);
  CHECK(v[5].initial == std::vector<std::uint8_t>{1, 0x22, 3, 15, 5});
  CHECK(v[6].initial == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 0xf8, 0x3f});
  CHECK(v[7].initial.empty());
  CHECK(v[8].initial.size() == 16);
}

TEST_CASE("addresses in initial values") {
  const Module module = parse_module(R"(
.global .b8 target[16];
.func f() { ret; }
.global .u64 table[4] = {target, f, generic(target)+8, 7};
.const .u64 pointer = generic(target + 4);
.global .u64 later = target-2;
)");
  const auto& table = module.variables[1];
  REQUIRE(table.addresses.size() == 3);
  CHECK(table.initial.size() == 32);
  CHECK(table.initial[24] == 7);
  CHECK(table.addresses[0].symbol == "target");
  CHECK(!table.addresses[0].generic);
  CHECK(table.addresses[1].symbol == "f");
  CHECK(table.addresses[1].offset == 8);
  CHECK(table.addresses[2].addend == 8);
  CHECK(table.addresses[2].generic);
  CHECK(module.variables[2].addresses[0].addend == 4);
  CHECK(module.variables[3].addresses[0].addend == -2);
}

TEST_CASE("functions and their directives") {
  const Module module = parse_module(R"(
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.func (.reg .b32 r) g(.reg .b64 x, .param .align 16 .b8 y[32]);
.visible .entry k(
  .param .align 64 .b8 k_param_0[128],
  .param .u64 .ptr .global .align 16 k_param_1, .param .f32 k_param_2
)
.maxntid 128, 2
.reqntid 64, 1, 1
.minnctapersm 2
.maxnreg 168
.explicitcluster
.reqnctapercluster 2, 1, 1
.maxclusterrank 8
.pragma "nounroll";
{ ret; }
.weak .func (.reg .b32 r) g(.reg .b64 x, .param .align 16 .b8 y[32]) .noreturn { mov.b32 r, 1; ret; }
.entry empty() .blocksareclusters { }
.entry bare { }
)");
  REQUIRE(module.functions.size() == 6);
  const Function& print = module.functions[0];
  CHECK(print.is_declaration);
  CHECK(print.results.size() == 1);
  CHECK(print.parameters[1].name == "vprintf_param_1");
  const Function& k = module.functions[2];
  CHECK(k.is_entry);
  CHECK(!k.is_declaration);
  CHECK(k.parameters[0].elements == 128);
  CHECK(k.parameters[0].alignment == 64);
  CHECK(k.parameters[1].type == Type::u64);
  CHECK(k.parameters[1].alignment == 0);
  CHECK(k.max_threads == std::array{128, 2, 1});
  CHECK(k.required_threads == std::array{64, 1, 1});
  CHECK(k.min_blocks_per_sm == 2);
  CHECK(k.max_registers == 168);
  CHECK(k.explicit_cluster);
  CHECK(k.required_cluster == std::array{2, 1, 1});
  CHECK(k.max_cluster_rank == 8);
  const Function& g = module.functions[3];
  CHECK(g.no_return);
  CHECK(g.results[0].space == Space::reg);
  CHECK(text_of(g.body[0].instruction) == "mov.b32 r:r i:1");
  CHECK(module.functions[4].blocks_are_clusters);
}

TEST_CASE("registers and names of inner blocks") {
  const Function f = parse_body(R"(
.reg .pred p; .reg .b32 %r<4>, x; .local .align 16 .b8 depot[48];
{ .reg .pred p; .reg .b32 %t<2>; .param .b32 x;
  st.param.b32 [x+0], %r1; mov.b32 %t1, %r3; @p bra DONE; { .reg .b32 %t<9>; mov.b32 %t8, %r0; bra DONE; } DONE: }
{ .reg .pred p; @!p bra DONE; DONE: bra OUTER; }
OUTER: mov.b32 x, %r2; @p ret; mov.u64 %r0, depot;
)");
  std::vector<std::string> names;
  for (const Variable& r : f.registers)
    names.push_back(r.name + (r.is_array ? "<" + std::to_string(r.elements) + ">" : ""));
  CHECK(names == std::vector<std::string>{"p", "%r<4>", "x", "p#1", "%t#1.<2>", "%t#2.<9>", "p#3"});
  CHECK(f.variables[1].name == "x#1");
  std::vector<std::string> body;
  for (const Statement& s : f.body)
    body.push_back(s.kind == Statement::Kind::label ? s.label + ":" : text_of(s.instruction));
  CHECK(body == std::vector<std::string>{"st.param.b32 a(n:x#1) r:%r1", "mov.b32 r:%t#1.1 r:%r3", "@p#1 bra n:DONE#1",
                                         "mov.b32 r:%t#2.8 r:%r0", "bra n:DONE#1", "DONE#1:", "@!p#3 bra n:DONE#3",
                                         "DONE#3:", "bra n:OUTER", "OUTER:", "mov.b32 r:x r:%r2", "@p ret",
                                         "mov.u64 r:%r0 n:depot"});
}

TEST_CASE("a range whose prefix ends in a digit keeps its members apart") {
  const Function f = parse_body(".reg .b32 %r<5>, %v2<13>;\nadd.s32 %r4, %v20, %v212;");
  CHECK(f.registers[1].name == "%v2#0.");
  CHECK(text_of(f.body[0].instruction) == "add.s32 r:%r4 r:%v2#0.0 r:%v2#0.12");
}

TEST_CASE("operands") {
  CHECK(instruction_text("mov.u32 %r1, %tid.x;") == "mov.u32 r:%r1 s:%tid.x");
  CHECK(instruction_text("mov.u32 %r1, %cluster_ctarank;") == "mov.u32 r:%r1 s:%cluster_ctarank");
  CHECK(instruction_text("mov.u32 %r1, %envreg12;") == "mov.u32 r:%r1 s:%envreg12");
  CHECK(instruction_text("add.s32 %r1, %r2, -1;") == "add.s32 r:%r1 r:%r2 i:18446744073709551615");
  CHECK(instruction_text("and.b32 %r1, 0x1F, 0b101U;") == "and.b32 r:%r1 i:31 i:5");
  CHECK(instruction_text("and.b32 %r1, 017, 0xffU;") == "and.b32 r:%r1 i:15 i:255");
  CHECK(instruction_text("mov.u64 %rd1, 0xffffffffffffffff;") == "mov.u64 r:%rd1 i:18446744073709551615");
  CHECK(instruction_text("mov.f32 %f1, 0f3F800000;") == "mov.f32 r:%f1 f32:1065353216");
  CHECK(instruction_text("mov.f32 %f1, -0f3F800000;") == "mov.f32 r:%f1 f32:3212836864");
  CHECK(instruction_text("mov.f64 %rd1, 0d3ff0000000000000;") == "mov.f64 r:%rd1 f64:4607182418800017408");
  CHECK(instruction_text("mov.f64 %rd1, 1.5e1;") == "mov.f64 r:%rd1 f64:4624633867356078080");
  CHECK(instruction_text("mov.u32 %r1, WARP_SZ;") == "mov.u32 r:%r1 i:32");
  CHECK(instruction_text("neg.s32 %r1, -%r2;") == "neg.s32 r:%r1 -r:%r2");
  CHECK(instruction_text("shfl.sync.idx.b32 %r2|%p2, %r3, 0, 31, -1;") ==
        "shfl.sync.idx.b32 p(r:%r2 r:%p2) r:%r3 i:0 i:31 i:18446744073709551615");
  CHECK(instruction_text("elect.sync _|p, 0xffffffff;") == "elect.sync p(_ r:p) i:4294967295");
  CHECK(instruction_text("@!%p1 setp.lt.and.s32 p|q, %r1, %r2, !%p3;") ==
        "@!%p1 setp.lt.and.s32 p(r:p r:q) r:%r1 r:%r2 !r:%p3");
  CHECK(instruction_text("ld.shared.v4.u32 {%r1, %r2, _, %r4}, [buffer+16];") ==
        "ld.shared.v4.u32 v(r:%r1 r:%r2 _ r:%r4) a(n:buffer)+16");
  CHECK(instruction_text("ld.global.u32 %r1, [%rd1+-8];") == "ld.global.u32 r:%r1 a(r:%rd1)-8");
  CHECK(instruction_text("ld.global.u32 %r1, [%rd1-8];") == "ld.global.u32 r:%r1 a(r:%rd1)-8");
  CHECK(instruction_text("ld.u32 %r1, [4096];") == "ld.u32 r:%r1 a(i:4096)");
  CHECK(instruction_text("ld.param.u64 %rd1, [k_param_0];") == "ld.param.u64 r:%rd1 a(n:k_param_0)");
  CHECK(instruction_text("mov.u64 %rd1, buffer+8;") == "mov.u64 r:%rd1 n:buffer+8");
  CHECK(instruction_text("mov.b64 %rd1, {%r1, 0};") == "mov.b64 r:%rd1 v(r:%r1 i:0)");
  CHECK(instruction_text("mov.f32 pair.y, pair.r;") == "mov.f32 r:pair.y r:pair.x");
  CHECK(instruction_text("mov.v2.f32 pair, {%f1, %f2};") == "mov.v2.f32 v(r:pair.x r:pair.y) v(r:%f1 r:%f2)");
  CHECK(instruction_text("fence.proxy.async.shared::cta;") == "fence.proxy.async.shared::cta");
  CHECK(
      instruction_text("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                       " [%r1], [%rd1, {%r2, %r3}], [%r4], %rd2;") ==
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " a(r:%r1) a(r:%rd1 v(r:%r2 r:%r3)) a(r:%r4) r:%rd2");
  CHECK(instruction_text(
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, p, 1, -1, 0, 1;") ==
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 v(r:%f1 r:%f2 r:%f3 r:%f4) r:%rd1 r:%rd2 r:p i:1"
        " i:18446744073709551615 i:0 i:1");
  CHECK(instruction_text("ret;") == "ret");
}

TEST_CASE("positions, modifiers and lines") {
  const Function f = parse_body(".reg .b32 %r<3>;\n  add.s32 %r1,\n    %r2, 3;");
  const Instruction& add = f.body[0].instruction;
  CHECK(add.at.line == 6);
  CHECK(add.at.column == 3);
  CHECK(add.operands[1].at.line == 7);
  CHECK(add.operands[1].at.column == 5);
  CHECK(add.has("s32"));
  CHECK(!add.has("add"));
}

TEST_CASE("calls") {
  const Module module = parse_module(R"(
.func (.param .b32 r) f(.param .b32 a) { ret; }
.func g() { ret; }
.entry k() {
  .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred p;
  { .param .b32 in; .param .b32 out;
    call.uni (out), f, (in);
    proto: .callprototype (.param .b32 _) _ (.param .b32 _);
    @p call (out), %rd1, (in), proto;
  }
  { proto: .callprototype _ ();
    call %rd1, (), proto; }
  call g; call.uni g, (); call g, (%r1, 5, 0f00000000); 
  list: .calltargets f, g;
  call (%r1), %rd1, (%r2), list;
  call %rd1, list;
  ret;
})");
  const Function& k = module.functions[2];
  REQUIRE(k.body.size() == 9);
  const auto& first = k.body[0];
  CHECK(first.kind == Statement::Kind::call);
  CHECK(first.instruction.has("uni"));
  CHECK(first.call->results[0].name == "out#1");
  CHECK(first.call->callee.name == "f");
  CHECK(first.call->arguments[0].name == "in#1");
  CHECK(k.body[1].call->prototype == "proto#1");
  CHECK(k.body[1].call->callee.kind == OperandKind::reg);
  CHECK(k.body[1].instruction.guard.predicate == "p");
  CHECK(k.body[2].call->prototype == "proto#2");
  CHECK(k.body[5].call->arguments.size() == 3);
  CHECK(k.body[6].call->prototype == "list");
  CHECK(k.body[7].call->prototype == "list");
  REQUIRE(k.prototypes.size() == 2);
  CHECK(k.prototypes[0].results.size() == 1);
  REQUIRE(k.call_targets.size() == 1);
  CHECK(k.call_targets[0].targets == std::vector<std::string>{"f", "g"});
}

TEST_CASE("indirect branches") {
  const Function f = parse_body(
      ".reg .b32 %r<2>;\n{ LIST: .branchtargets A, B, OUT;\nbrx.idx %r1, LIST;\nA: bra.uni B;\nB: }\nOUT: ret;");
  CHECK(f.body[0].kind == Statement::Kind::branch_targets);
  CHECK(f.body[0].label == "LIST#1");
  CHECK(f.body[0].targets == std::vector<std::string>{"A#1", "B#1", "OUT"});
  CHECK(text_of(f.body[1].instruction) == "brx.idx r:%r1 n:LIST#1");
}

TEST_CASE("source lines, sections and pragmas") {
  const Module module = parse_module(R"(
.file 2 "other.cuh", 17, 99
.entry k() {
  .reg .b32 %r<3>;
  mov.u32 %r1, 0;
  .loc 1 52 3
  mov.u32 %r1, 1;
  mov.u32 %r1, 2;
  .pragma "nounroll";
  .loc 2 7 1, function_name $L__info_string0, inlined_at 1 53 9
  mov.u32 %r1, 3;
  .loc 1 0 3
  mov.u32 %r1, 4;
  .loc 1 60 1, function_name $L__info_string0+12, inlined_at 1 61 9
  ret;
}
.file 1 "kernel.cu"
.section .debug_str { $L__info_string0: .b8 102, 0 { } .b32 $L__tmp0-5 }
)");
  const Function& k = module.functions[0];
  std::vector<std::string> lines;
  for (const Statement& s : k.body) {
    const int loc = s.instruction.loc;
    lines.push_back(loc < 0 ? "-"
                            : k.locations[static_cast<std::size_t>(loc)].file + ":" +
                                  std::to_string(k.locations[static_cast<std::size_t>(loc)].line));
  }
  CHECK(lines ==
        std::vector<std::string>{"-", "kernel.cu:52", "kernel.cu:52", "other.cuh:7", "other.cuh:7", "kernel.cu:60"});
  const auto inlined = [&](std::size_t statement) {
    const Location& at = k.locations[static_cast<std::size_t>(k.body[statement].instruction.loc)];
    return at.inlined_file + ":" + std::to_string(at.inlined_line);
  };
  CHECK(inlined(1) == ":0");
  CHECK(inlined(3) == "kernel.cu:53");
  CHECK(inlined(5) == "kernel.cu:61");
}

struct Fault {
  const char* text;
  const char* message;
};

TEST_CASE("errors of a module") {
  CHECK(message_of("") == "ptx:1:1: expected '.version', found end of text");
  CHECK(message_of("\n  int main()") == "ptx:2:3: expected '.version', found 'int'");
  CHECK(message_of(".version nine") == "ptx:1:10: expected a version such as '9.0', found 'nine'");
  CHECK(message_of(".version 9.0.1") == "ptx:1:13: expected '.target', found '.1'");
  CHECK(message_of(".version 9.0\n.target 90") == "ptx:2:9: expected a target such as 'sm_90a', found '90'");
  CHECK(message_of(".version 9.0\n.target sm_90a\n.entry k() {}") ==
        "ptx:3:1: expected '.address_size', found '.entry'");
  // The text begins in line 4.
  const Fault faults[] = {
      {"ret;", "4:1: expected a directive such as '.entry', '.func' or '.global', found 'ret'"},
      {".bogus 5;", "4:1: expected a directive such as '.entry', '.func' or '.global', found '.bogus'"},
      {".visible .file 1 \"x\"", "4:10: expected '.entry', '.func' or a state space, found '.file'"},
      {".global .u33 x;", "4:9: expected a type, a vector size or '.align', found '.u33'"},
      {".global x;", "4:9: expected a type, found 'x'"},
      {".global .u32 5;", "4:14: expected a name, found '5'"},
      {".global .u32 .f32 x;", "4:14: expected a name, found '.f32'"},
      {".global .u32 x", "4:15: expected '=', ',' or ';', found end of text"},
      {".global .u32 x;\n.global .u32 x;", "5:14: 'x' is already declared in line 4"},
      {".global .align 3 .u32 x;", "4:16: alignment is 3 (allowed: powers of two)"},
      {".global .align 0 .u32 x;", "4:16: alignment is 0 (allowed: 1 to 1048576)"},
      {".global .pred x;", "4:15: predicates are registers of one element"},
      {".global .b8 x[99999999999][99999999999];", "4:13: 'x' has more than 2^40 bytes"},
      {".global .b64 x[][18446744073709551615];", "4:14: 'x' has more than 2^40 bytes"},
      {".global .b8 x[4][];", "4:18: expected array size, found ']'"},
      {".global .b8 x[];", "4:13: 'x' has no size, and is neither .extern nor initialised"},
      {".global .b8 x[1][1][1][1][1][1][1][1][1];", "4:38: more than 8 dimensions"},
      {".global .b8 x[2] = {1, 2, 3};", "4:27: more initial values than 'x' has elements"},
      {".global .b8 x[2] = {{1}, 2};", "4:21: expected an initial value, found '{'"},
      {".global .b8 x[2][2] = {1, {2}};", "4:27: a nested list must begin a new row of 'x'"},
      {".global .b8 x[2] = 5;", "4:20: expected '{', found '5'"},
      {".global .b8 x[2] = {1 2};", "4:23: expected ',' or '}', found '2'"},
      {".global .b8 x = ;", "4:17: expected an initial value, found ';'"},
      {".global .u32 x = 0d0000000000000000;", "4:18: '0d0000000000000000' does not fit type .u32"},
      {".global .b8 x[1099511627776] = {1};.global .b8 y[2][1073741824] = {{1}, {2}};",
       "4:74: more than 67108864 bytes of initial values"},
      {".global .u64 x = nothing;", "4:14: the initial value of 'x' names 'nothing', which is not declared"},
      {".global .u64 x = generic(5);", "4:26: expected a variable's name, found '5'"},
      {".shared .u32 x = 5;", "4:16: expected ';': only .global and .const have initial values, found '='"},
      {".entry 5", "4:8: expected a function name, found '5'"},
      {".entry k(.param .u32 x", "4:23: expected ',' or ')', found end of text"},
      {".entry k(.u32 x)", "4:10: expected '.param' or '.reg', found '.u32'"},
      {".entry k(.param .u32 x, .param .u32 x)", "4:37: 'x' is already declared in line 4"},
      {".entry k(.param .b8 x[])", "4:21: 'x' has no size"},
      {".func f(.reg .b32 x[2])", "4:19: a register parameter is one scalar"},
      {".entry k() .maxntid 0, 1, 1 {}", "4:21: thread count is 0 (allowed: 1 to 1073741824)"},
      {".entry k() .maxntid 1, 1, 1, 1 {}", "4:30: expected at most three numbers, found '1'"},
      {".entry k() .bogus {}", "4:12: expected '{', ';' or a directive such as '.maxntid', found '.bogus'"},
      {".entry k() ret;", "4:12: expected '{', ';' or a directive such as '.maxntid', found 'ret'"},
      {".entry k() {} .entry k() {}", "4:22: 'k' is already declared in line 4"},
      {".global .u32 k; .entry k() {}", "4:24: 'k' is already declared in line 4"},
      {".extern .func f() { }", "4:19: an .extern function has no body"},
      {".entry k() {\n ret;", "4:12: expected '}' at the end of this function, found end of text"},
      {".file \"x\"", "4:7: expected file number, found string 'x'"},
      {".file 1 x", "4:9: expected a file name in quotes, found 'x'"},
      {".file 1 \"x", "4:9: expected '\"' at the end of this string"},
      {".section .debug_str\n{ {", "5:1: expected '}' at the end of this section, found end of text"},
      {"/* never closed", "4:1: expected '*/' after '/*', found end of text"},
      {"\x01", "4:1: unexpected character '\\x01'"},
      {"#include <x>", "4:1: unexpected character '#'"},
      {". global", "4:2: expected a name after '.' or '::'"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(fault.text);
    CHECK(message_of(std::string(kHeader) + fault.text) == std::string("ptx:") + fault.message);
  }
  const Fault unsupported[] = {
      {".global .u32 x = mask(0xff) y;", "4:18: an initial value with mask()"},
      {".global .b8 y; .global .u32 x = y;",
       "4:33: an address as initial value of type .u32 (supported: 64-bit types)"},
      {".alias f, g;", "4:1: directive '.alias'"},
      {".texref x;", "4:1: directive '.texref'"},
      {".global .attribute(.unified(1,2)) .u32 x;", "4:20: attribute '.unified'"},
      {".entry k() { .global .u32 x; }", "4:14: '.global' in a function"},
      {".entry k() { .reg .v2 .b32 x<3>; }", "4:28: a range of vector registers"},
      {".entry k() { .shared .u32 x = 4; }", "4:29: an initial value of a variable in a function"},
  };
  for (const Fault& fault : unsupported) {
    CAPTURE(fault.text);
    CHECK(message_of(std::string(kHeader) + fault.text, ErrorCode::unsupported) == std::string("ptx:") + fault.message);
  }
}

TEST_CASE("errors of a body") {
  const Fault faults[] = {
      // In line 6, after the registers.
      {"mov.b32 %r1 %r2;", "6:13: expected ',' or ';', found '%r2'"},
      {"mov.b32 %r1, ;", "6:14: expected an operand, found ';'"},
      {"mov.b32 %r30, 1;", "6:9: unknown register '%r30'"},
      {"mov.b32 %r01, 1;", "6:9: unknown register '%r01'"},
      {"mov.b32 %r1, nothing;", "6:14: unknown name 'nothing'"},
      {"mov.b32 %r1, {%r2, nothing};", "6:20: unknown name 'nothing'"},
      {"mov.b32 %r1, %tid;", "6:18: expected '.x', '.y' or '.z' after '%tid', found ';'"},
      {"mov.b32 %r1, %tid.q;", "6:18: expected '.x', '.y' or '.z' after '%tid', found '.q'"},
      {"mov.f32 %f1, pair.z;", "6:18: expected a component of 'pair', found '.z'"},
      {"mov.f32 %f1, {pair};", "6:15: expected a scalar in a vector"},
      {"bra NOWHERE;", "6:5: there is no label 'NOWHERE'"},
      {"bra buffer;", "6:5: there is no label 'buffer'"},
      {"{ INNER: } bra INNER;", "6:16: there is no label 'INNER'"},
      {"L: L: ret;", "6:4: label 'L' already stands in line 6"},
      {"@5 ret;", "6:2: expected a predicate, found '5'"},
      {"@%p9 ret;", "6:2: expected a predicate, found '%p9'"},
      {"setp.eq.s32 p|5, %r1, %r2;", "6:15: expected a register or '_' beside '|'"},
      {"setp.eq.and.s32 p, %r1, %r2, !5;", "6:31: expected a predicate, found '5'"},
      {"mov.b32 %r1, -buffer;", "6:15: expected a number or a register after '-'"},
      {"ld.b32 %r1, [%r2;", "6:17: expected '+', ',' or ']', found ';'"},
      {"ld.b32 %r1, [%r2+%r3];", "6:18: expected offset, found '%r3'"},
      {"ld.b32 %r1, [!%p1, 3;", "6:21: expected ',' or ']', found ';'"},
      {"ld.b32 %r1, [_];", "6:14: expected a register, a variable or a number as address"},
      {"ld.v2.b32 {%r1, [%r2]}, [%r3];", "6:17: expected an operand, found '['"},
      {"ld.v2.b32 {}, [%r3];", "6:12: expected an operand, found '}'"},
      {"mov.f32 %f1, 0f3F80;", "6:14: expected 8 hexadecimal digits after '0f', found '0f3F80'"},
      {"mov.f64 %rd1, 0d3F8000000000000000;",
       "6:15: expected 16 hexadecimal digits after '0d', found '0d3F8000000000000000'"},
      {"mov.b64 %rd1, 18446744073709551616;", "6:15: malformed or too large number '18446744073709551616'"},
      {"mov.b32 %r1, 089;", "6:14: malformed or too large number '089'"},
      {"mov.b32 %r1, 12abc;", "6:14: malformed or too large number '12abc'"},
      {"mov.b32 %r1, 0x;", "6:14: malformed or too large number '0x'"},
      {"mov.f32 %f1, 1e;", "6:14: malformed floating-point number '1e'"},
      {"call nothing;", "6:6: 'nothing' is not a function declared above"},
      {"call buffer;", "6:6: 'buffer' is not a function declared above"},
      {"call 5;", "6:6: expected a function, found '5'"},
      {"call k;", "6:6: 'k' is not a function declared above"},
      {"call (%r1) f;", "6:12: expected ',', found 'f'"},
      {"call f, [%r1];", "6:9: expected '(' or a prototype's name, found '['"},
      {"call %rd1, (%r1), nothing;", "6:1: there is no label 'nothing'"},
      {"call f, ([%r1]);", "6:10: expected an argument, found '['"},
      {"L: .branchtargets nothing;", "6:19: there is no label 'nothing'"},
      {"L: .calltargets nothing;", "6:17: unknown name 'nothing'"},
      {"L: .callprototype (.param .b32 _) f ();", "6:35: expected '_', found 'f'"},
      {".reg .b32 %r1;", "6:11: '%r1' is already declared in line 5"},
      {".reg .b32 %x2, %x<5>;", "6:16: '%x2' is already declared in line 6"},
      {".reg .b32 %r<3>;", "6:11: '%r' is already declared in line 5"},
      {".reg .b32 %x<0>;", "6:14: register count is 0 (allowed: 1 to 1048576)"},
      {".reg .b32 %x<1048570>;", "6:11: more than 1048576 registers in a function"},
      {".reg .b32 %x<5;", "6:15: expected '>', found ';'"},
      {".shared .b8 x[];", "6:13: 'x' has no size"},
      {".bogus;", "6:1: expected an instruction, a label or a directive such as '.reg', found '.bogus'"},
      {"5: ret;", "6:1: expected an instruction, a label or a directive, found '5'"},
      {".loc 1 5", "7:1: expected column, found '}'"},
      {".loc 1 5 3, bogus 1", "6:13: expected 'function_name' or 'inlined_at', found 'bogus'"},
      {".pragma nounroll;", "6:9: expected a string, found 'nounroll'"},
  };
  for (const Fault& fault : faults) {
    CAPTURE(fault.text);
    const std::string text = std::string(kHeader) + ".func f(); .entry k() {\n" + kRegisters + fault.text + "\n}\n";
    CHECK(message_of(text) == std::string("ptx:") + fault.message);
  }
}

TEST_CASE("limits") {
  const auto body = [](const std::string& text) {
    return std::string(kHeader) + ".entry k() { .reg .b32 r;\n" + text + "\n}";
  };
  CHECK(message_of(body(std::string(1000, '{'))) == "ptx:5:64: more than 64 nested blocks");
  std::string many;
  for (int i = 0; i < 300; ++i) many += "r, ";
  CHECK(message_of(body("mov.b32 r, {" + many + "r};")).find(": more than 256 elements in a vector") !=
        std::string::npos);
  CHECK(message_of(body("mov.b32 " + many + "r;")).find(": more than 64 operands") != std::string::npos);
  std::string modifiers;
  for (int i = 0; i < 70; ++i) modifiers += ".x";
  CHECK(message_of(body("mov" + modifiers + " r;")).find(": more than 64 modifiers") != std::string::npos);
  CHECK(message_of(std::string(std::size_t{17} << 20, ' ')) == "ptx: 17825792 bytes of text (allowed: up to 16777216)");
  const std::string longest(100, 'x');
  CHECK(message_of(longest) == "ptx:1:1: expected '.version', found '" + longest.substr(0, 60) + "...'");
}

}  // namespace
}  // namespace attune::emulator::ptx
