// The parts of an sm90 kernel's text, one function and file each.
#pragma once

#include "codegen/kernel_spec.h"
#include "codegen/layout.h"
#include "codegen/schedule.h"
#include "codegen/writer.h"

namespace attune::codegen {

/// Concatenates templates and what they need, each once, with #line directives.
std::string assemble_templates(const std::vector<std::string>& names);

/// What follows counts lines as the emitted file does.
void mark_own_lines(Writer& out);

/// Where a product's left operand is read from: registers, or shared memory K-major, or of either order.
enum class OperandA { registers, shared, shared_any };
/// A wrapper of one wgmma shape: D[64 x n] (+)= A B, float32 accumulators. accumulate = 0 overwrites D. Operands are
/// K-major (kTranspose = 0) or MN-major (1).
void emit_wgmma(Writer& out, DType dtype, int n, OperandA a);
std::string wgmma_name(DType dtype, int n, OperandA a);

/// "sm_90a  bf16  d128  causal".
std::string problem_words(const KernelSpec& spec);

void emit_header_comment(Writer& out, const KernelSpec& spec);
void emit_constants(Writer& out, const KernelSpec& spec);
/// wgmma wrappers of the shapes this kernel issues, and issue_qk / issue_pv built from them.
void emit_products(Writer& out, const KernelSpec& spec);
void emit_producer(Writer& out, const KernelSpec& spec, const Schedule& schedule);
/// One consumer function; `name` and `program` differ where warpgroups differ.
void emit_consumer(Writer& out, const KernelSpec& spec, const Program& program, const std::string& name);
void emit_kernel(Writer& out, const KernelSpec& spec, bool two_consumers);

/// Name of issue_qk's instance for a width: "issue_qk" for the full block, "issue_qk_n64" for a narrow one.
std::string product_name(const KernelSpec& spec, Product product, int width);

inline const char* element_name(DType dtype) { return dtype == DType::bf16 ? "Bf16" : "Fp16"; }

}  // namespace attune::codegen
