// What the command's exit status says.
#pragma once

#include <attune/error.h>

namespace attune::cli {

enum class ExitCode : int {
  ok = 0,
  failure = 1,
  usage = 2,
  unavailable = 3,  ///< no usable GPU, or what was asked for is not supported here
  bad_store = 4,    ///< the cache or a pack is invalid
  partly_tuned = 5,
  interrupted = 130,
};

ExitCode exit_code_of(ErrorCode code) noexcept;

}  // namespace attune::cli
