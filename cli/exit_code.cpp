#include "cli/exit_code.h"

namespace attune::cli {

ExitCode exit_code_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return ExitCode::usage;
    case ErrorCode::unsupported:
    case ErrorCode::no_device: return ExitCode::unavailable;
    case ErrorCode::cache:
    case ErrorCode::pack: return ExitCode::bad_store;
    case ErrorCode::interrupted: return ExitCode::interrupted;
    default: return ExitCode::failure;
  }
}

}  // namespace attune::cli
