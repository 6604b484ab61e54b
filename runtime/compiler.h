// NVRTC, opened at run time: source text to a device's code, with what the log tells about it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::runtime {

struct CompileResult {
  std::string cubin;     ///< bytes that the device loads: a cubin, or what another device's compiler makes instead
  std::string ptx;       ///< empty unless asked for
  std::string log;       ///< of NVRTC and ptxas, complete
  int registers = 0;     ///< a thread, as ptxas states them
  int spill_stores = 0;  ///< bytes; one total a kernel
  int spill_loads = 0;   ///< bytes
  int stack = 0;         ///< bytes of local memory a thread
  std::vector<std::string> serialised;  ///< codes of wgmma serialisation in the log (C7507, C7510 to C7520 but C7519),
                                        ///< in their order, once each
  double milliseconds = 0;
};

/// What the log says; cubin, ptx and milliseconds are left alone. Public for tests.
void parse_log(std::string_view log, CompileResult* result);

/// Why a build must not be served, in words ("24 bytes of spill stores, 24 bytes of spill loads"), or
/// nothing. Any spill and any serialised wgmma rejects.
std::optional<std::string> rejection(const CompileResult& result);
/// The kind of such a reason, also where other words stand around it: "spills", "serialised wgmma"; "build error" for a
/// reason that is none of rejection()'s.
const char* rejection_cause(std::string_view reason) noexcept;

/// One diagnostic of NVRTC. The file and line are the template's, thanks to #line in the emitted source.
struct Diagnostic {
  std::string file = {};
  int line = 0;
  bool error = true;  ///< false: a warning
  std::string message = {};
};
std::vector<Diagnostic> parse_diagnostics(std::string_view log);

/// The options that the build key hashes and compile() takes: `options` and, unless it is there already,
/// --ptxas-options=-v, without which spills could not be seen.
std::vector<std::string> checked_options(std::vector<std::string> options);

/// An opened NVRTC. Immutable and safe from any thread: compiles run at the same time and scale over threads.
class Compiler {
 public:
  /// The first toolkit of find_toolkits() whose NVRTC opens and is 12.8 or newer, opened once a process.
  /// Throws Error(unsupported) with toolkit_help() if there is none.
  static std::shared_ptr<const Compiler> get();
  /// A certain library. Throws Error(unsupported) if it does not open, lacks functions or is too old.
  static std::shared_ptr<const Compiler> open(const std::string& library);

  virtual ~Compiler() = default;
  /// Version and build, e.g. "13.0.88" where the build is known, else "13.0"; in the build key.
  virtual const std::string& version() const = 0;
  /// Path of the library, for `doctor`; not in any key.
  virtual const std::string& nvrtc_path() const = 0;

  /// What stands for these options in the build key, and is what compile() really uses.
  virtual std::vector<std::string> effective_options(std::vector<std::string> options) const {
    return checked_options(std::move(options));
  }

  /// Compiles to a cubin; for a virtual architecture (compute_90a), where none can be made, to PTX alone, if that is
  /// asked for. Throws Error(compile_failed) whose message starts with the first error, template file and line
  /// ("templates/forward/softmax.cuh:120: ..."), followed by the log. A build that must be rejected for its spills is
  /// still returned: rejection() tells.
  virtual CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                                bool want_ptx = false) const = 0;
};

}  // namespace attune::runtime
