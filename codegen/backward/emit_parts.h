// The parts of a backward build's text, one function and file each.
#pragma once

#include <string>

#include "codegen/backward/layout.h"
#include "codegen/backward/schedule.h"
#include "codegen/kernel_spec.h"
#include "codegen/writer.h"

namespace attune::codegen::backward {

EmittedKernel emit(const KernelSpec& spec);

/// wgmma wrappers of the shapes that the kernel issues, and issue_* built from them.
void emit_products(Writer& out, const KernelSpec& spec);
/// The thread that loads.
void emit_producer(Writer& out, const KernelSpec& spec);
/// The warps that add dQ to its sums.
void emit_add_dq(Writer& out, const KernelSpec& spec);
/// The consumers: one function where both warpgroups run the same code, else one each.
void emit_consumers(Writer& out, const KernelSpec& spec);

/// Prepare::inside: rows of O and dO that a lane of a warp which prepares tiles has under way together, by what the
/// producers' registers allow.
int rows_at_once(const Tunables& tunables);
/// The call that prepares tiles, for the whole life of a warp that does nothing else.
std::string prepare_ahead_call(const KernelSpec& spec);

/// DqPath::pass: constants, producers and consumers of both kinds of thread block, and the main kernel.
void emit_passes(Writer& out, const KernelSpec& spec, const LaunchShape& shape);
/// One thread's part of emit_producer() alone: K and V of a block, then Q and dO tile by tile. With `parts`: of a share
/// of the query heads.
void emit_key_producer(Writer& out, bool inside, bool parts = false);

/// The main kernel's declaration, up to the opening brace, and its address of shared memory.
/// With `dq`: it takes a map of dQ, too.
void open_main(Writer& out, const LaunchShape& shape, bool dq = false);
/// What a thread block of keys does where there are no queries.
void emit_no_queries(Writer& out, const std::string& block_at);

/// In a loop: a warp of a persistent kernel takes the next `block` of keys from the producer, or leaves the loop when
/// there is none. With `keep` its slot is given back later.
void emit_take_item(Writer& out, bool keep = false);

/// Whether both warpgroups run the same code, at other addresses.
bool consumers_are_alike(const KernelSpec& spec);

/// Names of issue_* for a number of columns.
inline std::string issue_gradient_name(int columns) { return fmt::format("issue_gradient_n{}", columns); }
inline std::string issue_dq_name(int columns) { return fmt::format("issue_dq_n{}", columns); }

}  // namespace attune::codegen::backward
