// What a call that must be refused says.
#pragma once

#include <doctest/doctest.h>

#include <attune/error.h>

#include <string>

namespace attune::emulator::tests {

/// The message of the error that a call throws.
template <typename Function>
std::string refusal(ErrorCode code, Function function) {
  try {
    function();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL_CHECK("not refused");
  return {};
}

}  // namespace attune::emulator::tests
