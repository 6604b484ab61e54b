// What the translator hands to exec/: native code of a program and what must be known about it. Holds no LLVM type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulator/include/attune/emulator.h"

namespace attune::emulator {

struct ThreadContext;

/// Special registers by the number that att_special takes.
enum class SpecialRegister : std::uint32_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  warp_size,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  clock,
  clock64,
  clock_hi,
  globaltimer,
  globaltimer_lo,
  globaltimer_hi,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  is_explicit_cluster,
  dynamic_smem_size,
  total_smem_size,
  aggr_smem_size,
  reserved_smem_offset_begin,
  reserved_smem_offset_end,
  current_graph_exec,
  count,
};

/// A module variable of .global or .const: memory of the program instance.
struct GlobalVariable {
  std::string name;
  std::size_t bytes = 0, alignment = 1;
  bool constant = false;
  std::vector<std::uint8_t> initial;  ///< zeros after it
  struct Address {
    std::size_t offset;
    std::string symbol;
    std::int64_t addend;
    std::uint64_t value = 0;  ///< what stands there
  };
  std::vector<Address> addresses;
};

struct KernelCode {
  KernelInfo info;
  /// The translated entry. Reads its parameters from ThreadContext::parameters.
  void (*entry)(ThreadContext*) = nullptr;
  std::size_t parameter_bytes = 0;  ///< of the whole buffer
  std::size_t local_bytes = 0;      ///< a thread's local frame, the most over all calls
  std::size_t stack_bytes = 0;  ///< native stack that the entry and what it calls need, with room for att_ functions
  int slots = 0;                ///< 32-bit register slots for wgmma operands
  int min_blocks_per_sm = 0, max_registers = 0;
  Dim3 required_cluster{0, 0, 0};
  bool uses_wgmma = false;
};

/// Where an instruction stands; ProgramImage::position() makes text of it when a finding needs it.
struct Site {
  std::int32_t line = 0, column = 0;  ///< in the PTX text, 1-based
  std::int32_t location = -1;         ///< index into ProgramImage::locations, or -1
};
struct SourceLine {
  std::string file;
  int line = 0;
  std::string inlined_file;
  int inlined_line = 0;
};

/// A translated program. Immutable; owns the native code.
struct ProgramImage {
  std::vector<KernelCode> kernels;
  std::vector<GlobalVariable> globals;
  /// Where each global lies, in the order of `globals`; translated code has these addresses built in. One set a
  /// program, as in a CUDA module.
  std::vector<std::uint8_t*> global_addresses;
  std::vector<Site> sites;
  std::vector<SourceLine> locations;
  std::vector<std::string> lines;  ///< of the PTX text
  bool checks = true;
  std::shared_ptr<void> code;  ///< keeps the native code and the globals' memory alive

  /// Gives all globals their initial values.
  void reset_globals() const;
  /// Of an index into `sites`.
  SourcePosition position(std::uint32_t site) const;
};

}  // namespace attune::emulator
