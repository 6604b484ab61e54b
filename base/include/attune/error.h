// Errors of the C++ API. Every message names the argument, what it was, and what is allowed.
#pragma once

#include <stdexcept>
#include <string>

#include <attune/export.h>

namespace attune {

enum class ErrorCode {
  invalid_argument,  ///< a value the caller passed is not allowed; nothing was launched
  unsupported,       ///< the request is well-formed but this build, architecture or driver cannot do it
  no_device,         ///< no usable GPU or no driver
  not_found,         ///< no kernel, plan, file or symbol of that name
  not_prepared,    ///< the operation would compile or load where that is forbidden (stream capture, miss policy `fail`)
  compile_failed,  ///< NVRTC or ptxas refused the source, or the build was rejected (spills, serialised wgmma)
  driver,          ///< a CUDA driver call failed
  out_of_memory,   ///< device or host memory
  wrong_result,    ///< a kernel's output is outside the numerics gate
  timeout,         ///< a deadline passed (a kernel that does not end, a worker that does not answer)
  cache,           ///< the cache cannot be used
  pack,            ///< a pack is malformed, truncated, unsigned or does not match its digests
  io,              ///< a file could not be read or written
  interrupted,     ///< the user asked to stop
  internal,        ///< a defect of attune
};

/// Stable lower-case name of a code ("invalid_argument", ...), as printed by the CLI under --json.
ATTUNE_API const char* error_code_name(ErrorCode code) noexcept;

class ATTUNE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace attune
