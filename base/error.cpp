#include "base/error.h"

namespace attune {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::no_device: return "no_device";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::not_prepared: return "not_prepared";
    case ErrorCode::compile_failed: return "compile_failed";
    case ErrorCode::driver: return "driver";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::wrong_result: return "wrong_result";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::cache: return "cache";
    case ErrorCode::pack: return "pack";
    case ErrorCode::io: return "io";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::internal: return "internal";
  }
  return "internal";
}

}  // namespace attune
