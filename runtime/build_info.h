// The JSON document beside each cubin in the cache (cache::Kernel::metadata): what the build is and how to
// launch it.
#pragma once

#include <string>
#include <string_view>

#include "codegen/kernel_spec.h"

namespace attune::runtime {

/// Everything that launching a cubin needs, and what is known about it.
struct BuildInfo {
  std::string spec;  ///< codegen::to_string(KernelSpec)
  codegen::LaunchShape shape;
  int registers = 0, spill_stores = 0, spill_loads = 0, stack = 0;
  std::string nvrtc;  ///< version of the compiler
  double compile_ms = 0;
  std::string rejected;  ///< why it must not be served (spills, serialised wgmma); empty: it may

  bool operator==(const BuildInfo&) const;
};

/// {"format":1,"spec":"...","entry":"...","threads":384,...}; unknown members are ignored when read.
std::string to_json(const BuildInfo& info);
/// Throws Error(cache) if the text is not such a document or a number is out of range.
BuildInfo parse_build_info(std::string_view json);

}  // namespace attune::runtime
