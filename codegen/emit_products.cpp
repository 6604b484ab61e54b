#include <set>

#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

std::string register_list(int first, int count) {
  std::string list;
  for (int i = 0; i < count; i++) list += fmt::format("{}%{}", i == 0 ? "" : ", ", first + i);
  return list;
}

std::string wgmma_name(const KernelSpec& spec, int n, bool from_registers) {
  return fmt::format("wgmma_m64n{}k16_{}_{}", n, to_string(spec.dtype), from_registers ? "rs" : "ss");
}

// D[64 x n] (+)= A B, float32 accumulators. accumulate = 0 overwrites D. B is K-major (transpose_b = 0) or MN-major
// (1).
void emit_wgmma(Writer& out, const KernelSpec& spec, int n, bool from_registers) {
  const int r = n / 2;
  const char* type = spec.dtype == DType::bf16 ? "bf16" : "f16";
  const std::string name = wgmma_name(spec, n, from_registers);
  out.line(from_registers ? "template <int kTransposeB, int kSize>" : "template <int kSize>");
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
  else
    out.line(": \"l\"(a), \"l\"(b), \"r\"(accumulate));");
  out.close("");
  out.close();
  out.line("");
}

void emit_issue_qk(Writer& out, const KernelSpec& spec, int width) {
  const bool registers = spec.config.q == QSource::registers;
  out.line("// S = Q K^T for one block of {} keys. K-major operands: 32 bytes a k-step inside a 64-column chunk.",
           width);
  out.open(fmt::format("ATTUNE_DEVICE void {}(float (&s)[kScores], {}, uint64_t k) {{",
                       product_name(spec, Product::qk, width),
                       registers ? "const uint32_t (&q)[kQRegisters]" : "uint64_t q"));
  out.line("#pragma unroll");
  out.open("for (int step = 0; step < kQkSteps; step++) {");
  out.line("const uint64_t k_step = k + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4);");
  if (registers) {
    out.line("{}<0>(s, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3], k_step, step > 0);",
             wgmma_name(spec, width, true));
  } else {
    out.line("const uint64_t q_step = q + (((step / 4) * (64 * 128) + (step % 4) * 32) >> 4);");
    out.line("{}(s, q_step, k_step, step > 0);", wgmma_name(spec, width, false));
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
           wgmma_name(spec, spec.head_dim_v, true));
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
  const bool q_in_registers = spec.config.q == QSource::registers;
  std::set<int> qk_widths;
  for (int w = 0; w < spec.config.consumers; w++) qk_widths.insert(first_width(spec, w));
  std::set<int> pv_widths = qk_widths;
  qk_widths.insert(spec.config.block_n);
  pv_widths.insert(spec.config.block_n);

  std::set<std::pair<int, bool>> shapes{{spec.head_dim_v, true}};
  for (int width : qk_widths) shapes.insert({width, q_in_registers});
  for (const auto& [n, registers] : shapes) emit_wgmma(out, spec, n, registers);
  for (int width : qk_widths) emit_issue_qk(out, spec, width);
  for (int width : pv_widths) emit_issue_pv(out, spec, width);
}

}  // namespace attune::codegen
