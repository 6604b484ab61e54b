// The compiler of the CPU device: NVRTC's front end alone, so that the very source that a GPU gets becomes PTX.
#pragma once

#include <memory>

#include "runtime/compiler.h"

namespace attune::runtime {

/// Results carry the PTX as the device's code, so that a Builder's builds can be loaded by a CpuDevice. What ptxas
/// would say (registers, spills) is unknown and stays 0. effective_options() names the virtual architecture, which no
/// build for a GPU does: keys of the two never meet.
std::shared_ptr<const Compiler> ptx_compiler(std::shared_ptr<const Compiler> nvrtc = Compiler::get());

}  // namespace attune::runtime
