#include <set>

#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

constexpr OperandA operand_a(bool from_registers) { return from_registers ? OperandA::registers : OperandA::shared; }

void emit_issue_qk(Writer& out, const KernelSpec& spec, int width) {
  const int steps = (spec.head_dim + 15) / 16, held = q_steps_in_registers(spec);
  out.line("// S = Q K^T for one block of {} keys. K-major operands: 32 bytes a k-step inside a 64-column chunk.",
           width);
  out.open(fmt::format("ATTUNE_DEVICE void {}(float (&s)[kScores], {}{}uint64_t k) {{",
                       product_name(spec, Product::qk, width), held > 0 ? "const uint32_t (&q)[kQRegisters], " : "",
                       held < steps ? "uint64_t q_base, " : ""));
  out.line("#pragma unroll");
  out.open("for (int step = 0; step < kQkSteps; step++) {");
  out.line("const uint64_t k_step = k + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4);");
  const std::string from_registers =
      fmt::format("{}<0>(s, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3], k_step, step > 0);",
                  wgmma_name(spec.dtype, width, OperandA::registers));
  if (held == steps) {
    out.line("{}", from_registers);
  } else {
    if (held > 0) {
      out.open("if (step < kQRegisters / 4) {");
      out.line("{}", from_registers);
      out.line("continue;");
      out.close();
    }
    out.line("const uint64_t q_step = q_base + (((step / 4) * (64 * 128) + (step % 4) * 32) >> 4);");
    out.line("{}(s, q_step, k_step, step > 0);", wgmma_name(spec.dtype, width, OperandA::shared));
  }
  out.close();
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

void emit_issue_pv(Writer& out, const KernelSpec& spec, int width) {
  out.line("// O (+)= P V for one block of {} keys. V is MN-major: a k-step is 16 rows of 128 bytes.", width);
  out.open(fmt::format(
      "ATTUNE_DEVICE void {}(float (&o)[kOutputs], const uint32_t (&p)[kPacked], uint64_t v, int accumulate) {{",
      product_name(spec, Product::pv, width)));
  out.line("#pragma unroll");
  out.line("for (int step = 0; step < {}; step++)", width / 16);
  out.line("  {}<1>(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3], v + ((step * 2048) >> 4),",
           wgmma_name(spec.dtype, spec.head_dim_v, OperandA::registers));
  out.line("      step > 0 ? 1 : accumulate);");
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

}  // namespace

std::string product_name(const KernelSpec& spec, Product product, int width) {
  const char* base = product == Product::qk ? "issue_qk" : "issue_pv";
  return width == spec.config.block_n ? base : fmt::format("{}_n{}", base, width);
}

void emit_products(Writer& out, const KernelSpec& spec) {
  const int steps = (spec.head_dim + 15) / 16, held = q_steps_in_registers(spec);
  std::set<int> qk_widths;
  for (int w = 0; w < spec.config.consumers; w++) qk_widths.insert(first_width(spec, w));
  std::set<int> pv_widths = qk_widths;
  qk_widths.insert(spec.config.block_n);
  pv_widths.insert(spec.config.block_n);

  std::set<std::pair<int, bool>> shapes{{spec.head_dim_v, true}};
  for (int width : qk_widths) {
    if (held > 0) shapes.insert({width, true});
    if (held < steps) shapes.insert({width, false});
  }
  for (const auto& [n, registers] : shapes) emit_wgmma(out, spec.dtype, n, operand_a(registers));
  for (int width : qk_widths) emit_issue_qk(out, spec, width);
  for (int width : pv_widths) emit_issue_pv(out, spec, width);
}

}  // namespace attune::codegen
