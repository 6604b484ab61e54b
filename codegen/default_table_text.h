// default_table.txt, embedded at build time.
#pragma once

#include <string_view>

namespace attune::codegen {

extern const std::string_view kDefaultTable;

}  // namespace attune::codegen
