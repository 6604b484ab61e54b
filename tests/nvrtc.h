// NVRTC in tests: what needs it is skipped aloud where it is missing.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include <attune/error.h>

#include "runtime/compiler.h"

namespace attune::tests {

/// Whether nvrtc() was asked for in vain; main() then exits with 77, which ctest reports as skipped.
inline bool nvrtc_was_missing = false;

/// Null where this machine has none: the test ends there. A failure where ATTUNE_REQUIRE_NVRTC is set, as `./dev test`
/// does.
inline std::shared_ptr<const runtime::Compiler> nvrtc() {
  try {
    return runtime::Compiler::get();
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::unsupported);
    nvrtc_was_missing = true;
    const std::string why = error.what();
    if (std::getenv("ATTUNE_REQUIRE_NVRTC") != nullptr) FAIL_CHECK("no NVRTC here: " << why);
    MESSAGE("no NVRTC here: " << why);
    return nullptr;
  }
}

}  // namespace attune::tests
