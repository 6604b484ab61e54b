// The parts of an sm90 kernel's text, one function and file each.
#pragma once

#include "codegen/kernel_spec.h"
#include "codegen/layout.h"
#include "codegen/schedule.h"
#include "codegen/writer.h"

namespace attune::codegen {

/// Concatenates templates and what they need, each once, with #line directives.
std::string assemble_templates(const std::vector<std::string>& names);

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
