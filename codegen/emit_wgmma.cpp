#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

std::string register_list(int first, int count) {
  std::string list;
  for (int i = 0; i < count; i++) list += fmt::format("{}%{}", i == 0 ? "" : ", ", first + i);
  return list;
}

}  // namespace

std::string wgmma_name(DType dtype, int n, OperandA a) {
  return fmt::format("wgmma_m64n{}k16_{}_{}", n, to_string(dtype), a == OperandA::registers ? "rs" : "ss");
}

void emit_wgmma(Writer& out, DType dtype, int n, OperandA a) {
  const int r = n / 2;
  const char* type = dtype == DType::bf16 ? "bf16" : "f16";
  const std::string name = wgmma_name(dtype, n, a);
  const bool from_registers = a == OperandA::registers;
  out.line(from_registers              ? "template <int kTransposeB, int kSize>"
           : a == OperandA::shared_any ? "template <int kTransposeA, int kTransposeB, int kSize>"
                                       : "template <int kSize>");
  if (from_registers)
    out.open(
        fmt::format("ATTUNE_DEVICE void {}(float (&d)[kSize], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, "
                    "uint64_t b, int accumulate) {{",
                    name));
  else
    out.open(fmt::format("ATTUNE_DEVICE void {}(float (&d)[kSize], uint64_t a, uint64_t b, int accumulate) {{", name));
  out.line("static_assert(kSize >= {});", r);
  out.open("asm volatile(");
  out.line("\"{{\\n\"");
  out.line("\".reg .pred scale_d;\\n\"");
  out.line("\"setp.ne.b32 scale_d, %{}, 0;\\n\"", from_registers ? r + 5 : r + 2);
  out.line("\"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} \"", n, type, type);
  for (int at = 0; at < r; at += 16) {
    const int count = std::min(16, r - at);
    out.line("\"{}{}{}\"", at == 0 ? "{" : "", register_list(at, count), at + count == r ? "}, " : ", ");
  }
  if (from_registers)
    out.line("\"{{%{}, %{}, %{}, %{}}}, %{}, scale_d, 1, 1, %{};\\n\"", r, r + 1, r + 2, r + 3, r + 4, r + 6);
  else if (a == OperandA::shared_any)
    out.line("\"%{}, %{}, scale_d, 1, 1, %{}, %{};\\n\"", r, r + 1, r + 3, r + 4);
  else
    out.line("\"%{}, %{}, scale_d, 1, 1, 0, 0;\\n\"", r, r + 1);
  out.line("\"}}\\n\"");
  for (int at = 0; at < r; at += 4) {
    std::string outputs;
    for (int i = at; i < std::min(at + 4, r); i++) outputs += fmt::format("{}\"+f\"(d[{}])", i == at ? "" : ", ", i);
    out.line("{}{}{}", at == 0 ? ": " : "  ", outputs, at + 4 >= r ? "" : ",");
  }
  if (from_registers)
    out.line(": \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b), \"r\"(accumulate), \"n\"(kTransposeB));");
  else if (a == OperandA::shared_any)
    out.line(": \"l\"(a), \"l\"(b), \"r\"(accumulate), \"n\"(kTransposeA), \"n\"(kTransposeB));");
  else
    out.line(": \"l\"(a), \"l\"(b), \"r\"(accumulate));");
  out.close("");
  out.close();
  out.line("");
}

}  // namespace attune::codegen
