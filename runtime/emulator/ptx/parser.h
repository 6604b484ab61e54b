// PTX text to the tree of ast.h.
#pragma once

#include <string_view>

#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator::ptx {

/// Throws Error(invalid_argument): "ptx:12:7: expected ';', found '%r1'". Bounded in depth and size: hostile text gives
/// an error, never a crash. Throws Error(unsupported) for an ISA version or target that the emulator does not serve.
Module parse(std::string_view text);

}  // namespace attune::emulator::ptx
