// Stands in for cli/emulator/ in builds without the CPU emulator.
#include "base/error.h"
#include "cli/emulator.h"

namespace attune::cli {

bool has_emulator() { return false; }

void require_emulator() {
  fail(ErrorCode::unsupported,
       "device: 'cpu' needs the CPU emulator, which this build does not have (allowed: the ordinal of a GPU; CMake's "
       "ATTUNE_EMULATOR=ON builds it)");
}

ExitCode verify_on_emulator(const EmulatedVerifyRequest&, Output&) {
  require_emulator();
  return ExitCode::unavailable;
}

EmulatedOutcome try_on_emulator(const codegen::KernelSpec&, const std::stop_token&) {
  require_emulator();
  return {};
}

}  // namespace attune::cli
