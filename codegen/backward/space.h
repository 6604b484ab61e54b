// The backward pass's part of the search space; codegen/space.h leads here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/space.h"

namespace attune::codegen::backward {

std::optional<std::string> violates(const Arch& arch, const KernelSpec& spec);

}  // namespace attune::codegen::backward
