// Any text gives a tree or an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <attune/error.h>

#include "runtime/emulator/ptx/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    attune::emulator::ptx::parse({reinterpret_cast<const char*>(data), size});
  } catch (const attune::Error&) {  // text that is no PTX; what else is thrown is a fault
  }
  return 0;
}
