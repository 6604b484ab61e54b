#include <set>

#include "codegen/backward/emit_parts.h"
#include "codegen/emit_parts.h"

namespace attune::codegen::backward {
namespace {

// Columns of the accumulators of S and dP: queries of a warpgroup.
int score_columns(const Tunables& t) { return t.split == Split::columns ? t.block_m / 2 : t.block_m; }

void emit_issue_scores(Writer& out, const KernelSpec& spec) {
  out.line("// S^T = K Q^T, or dP^T = V dO^T. K-major operands: 32 bytes a k-step inside a 64-column chunk.");
  out.line("template <int kSteps>");
  out.open("ATTUNE_DEVICE void issue_scores(float (&d)[kScores], uint64_t keys, uint64_t queries) {");
  out.line("#pragma unroll");
  out.line("for (int step = 0; step < kSteps; step++)");
  out.line("  {}<0, 0>(d, keys + (((step / 4) * (kBlockN * 128) + (step % 4) * 32) >> 4),",
           wgmma_name(spec.dtype, score_columns(spec.config.backward), OperandA::shared_any));
  out.line("      queries + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4), step > 0);");
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

void emit_issue_scores_rs(Writer& out, const KernelSpec& spec) {
  out.line("// dP^T = V dO^T with V in registers.");
  out.open("ATTUNE_DEVICE void issue_dp(float (&d)[kScores], const uint32_t (&v)[4 * kVSteps], uint64_t queries) {");
  out.line("#pragma unroll");
  out.line("for (int step = 0; step < kVSteps; step++)");
  out.line("  {}<0>(d, v[4 * step], v[4 * step + 1], v[4 * step + 2], v[4 * step + 3],",
           wgmma_name(spec.dtype, score_columns(spec.config.backward), OperandA::registers));
  out.line("      queries + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4), step > 0);");
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

void emit_issue_gradient(Writer& out, const KernelSpec& spec, int columns) {
  const bool registers = spec.config.backward.split != Split::columns;
  out.line("// dV += P^T dO, or dK += dS^T Q{}, {} columns. MN-major operands: a k-step is 16 rows of 128 bytes.",
           spec.config.backward.dq == DqPath::pass ? ", or dQ += dS K" : "", columns);
  out.open(fmt::format("ATTUNE_DEVICE void {}(float (&d)[{}], {}, uint64_t queries, int accumulate) {{",
                       issue_gradient_name(columns), columns / 2,
                       registers ? "const uint32_t (&a)[kPacked]" : "uint64_t a"));
  out.line("#pragma unroll");
  out.line("for (int step = 0; step < kBlockM / 16; step++)");
  if (registers)
    out.line("  {}<1>(d, a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3],",
             wgmma_name(spec.dtype, columns, OperandA::registers));
  else
    out.line("  {}<1, 1>(d, a + ((step * 2048) >> 4),", wgmma_name(spec.dtype, columns, OperandA::shared_any));
  out.line("      queries + ((step * 2048) >> 4), step > 0 ? 1 : accumulate);");
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

void emit_issue_dq(Writer& out, const KernelSpec& spec, int width) {
  const bool transposed = backward::layout_of(spec).transposed_dq;
  out.line("// {}, {} columns. K-major dS, MN-major K.", transposed ? "dQ^T = K^T dS^T" : "dQ = dS K", width);
  out.open(fmt::format("ATTUNE_DEVICE void {}(float (&d)[{}], uint64_t ds, uint64_t keys) {{", issue_dq_name(width),
                       width / 2));
  out.line("#pragma unroll");
  out.open("for (int step = 0; step < kBlockN / 16; step++) {");
  out.line("const uint64_t ds_step = ds + (((step / 4) * (kBlockM * 128) + (step % 4) * 32) >> 4);");
  out.line("const uint64_t keys_step = keys + ((step * 2048) >> 4);");
  out.line("{}<{}>(d, {}, step > 0);", wgmma_name(spec.dtype, width, OperandA::shared_any),
           transposed ? "1, 0" : "0, 1", transposed ? "keys_step, ds_step" : "ds_step, keys_step");
  out.close();
  out.line("wgmma_commit_group();");
  out.close();
  out.line("");
}

}  // namespace

void emit_products(Writer& out, const KernelSpec& spec) {
  const Tunables& t = spec.config.backward;
  const Layout l = backward::layout_of(spec);
  std::set<int> gradients, dqs;
  if (t.split != Split::columns) {
    gradients = {spec.head_dim, spec.head_dim_v};
  } else {
    for (const auto& owned : {l.dk, l.dv})
      for (const Columns& columns : owned) gradients.insert(columns.count);
  }
  for (const DqPart& part : l.dq) dqs.insert(part.width);
  gradients.erase(0);
  dqs.erase(0);

  std::set<int> shared(dqs), registers;
  shared.insert(score_columns(t));
  (t.split == Split::columns ? shared : registers).insert(gradients.begin(), gradients.end());
  if (t.v_in_registers) registers.insert(score_columns(t));
  for (int n : shared) emit_wgmma(out, spec.dtype, n, OperandA::shared_any);
  for (int n : registers) emit_wgmma(out, spec.dtype, n, OperandA::registers);
  emit_issue_scores(out, spec);
  if (t.v_in_registers) emit_issue_scores_rs(out, spec);
  for (int columns : gradients) emit_issue_gradient(out, spec, columns);
  for (int width : dqs) emit_issue_dq(out, spec, width);
}

}  // namespace attune::codegen::backward
