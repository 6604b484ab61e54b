// Stands in for cli/emulator/ in builds without the CPU emulator.
#include "base/error.h"
#include "cli/emulator.h"

namespace attune::cli {

bool has_emulator() { return false; }

void require_emulator() {
  fail(ErrorCode::unsupported,
       "emulator: this build has no CPU emulator, which `attune emulate`, `--device cpu` and `--emulate` need (CMake's "
       "ATTUNE_EMULATOR=ON adds it)");
}

ExitCode verify_on_emulator(const EmulatedVerifyRequest&, Output&) {
  require_emulator();
  return ExitCode::unavailable;
}

ExitCode emulate(const EmulateRequest&, Output&) {
  require_emulator();
  return ExitCode::unavailable;
}

EmulatedOutcome try_on_emulator(const codegen::KernelSpec&, const std::stop_token&) {
  require_emulator();
  return {};
}

}  // namespace attune::cli
