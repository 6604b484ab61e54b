// PTX tree to native code, by way of LLVM IR and ORC. LLVM headers appear in translate/ alone.
#pragma once

#include <memory>

#include "runtime/emulator/exec/code.h"
#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator {

/// Throws Error(unsupported) for an instruction outside what is known ("ptx:120: fma.rn.bf16x4: ..."),
/// Error(invalid_argument) for operands that do not fit.
std::shared_ptr<const ProgramImage> translate(const ptx::Module& module, const ProgramOptions& options);

}  // namespace attune::emulator
