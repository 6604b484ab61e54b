// From a kernel spec to a cubin: emit, look in the cache, else compile once among all processes and store.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/store.h"
#include "codegen/kernel_spec.h"
#include "runtime/build_info.h"
#include "runtime/compiler.h"

namespace attune::runtime {

struct Build {
  std::string key;    ///< build key
  BuildInfo info;     ///< info.rejected says why it must not be served, if so
  std::string cubin;  ///< empty if the build was rejected before and the cache remembers that alone
  bool from_cache = false;
  std::string log;  ///< of the compile; empty if from the cache
};

/// Throws Error(compile_failed) with the reason if the build was rejected.
void require_accepted(const Build& build);

/// Safe from any thread; different specs compile at the same time.
class Builder {
 public:
  /// `compiler` is called when a build key is needed, which names NVRTC's version; the default opens NVRTC.
  explicit Builder(cache::Store store, std::function<std::shared_ptr<const Compiler>()> compiler = Compiler::get);

  /// The build of a spec. Rejected builds are returned too; the cache remembers the reason, so that they are not
  /// compiled again. Throws Error(compile_failed), remembered for ten minutes; Error(unsupported) without
  /// NVRTC; Error(invalid_argument) if the emitter refuses the spec. A faulty cache never throws: it is a
  /// miss.
  Build build(const codegen::KernelSpec& spec);

  /// The build of a key that the cache holds; needs no compiler. Nothing if it is not there or was damaged.
  std::optional<Build> find(const std::string& key);

  /// The key that build() would use. Throws Error(unsupported) without NVRTC.
  std::string key(const codegen::KernelSpec& spec);

 private:
  struct Failure {
    std::chrono::steady_clock::time_point when;
    std::string message;
  };

  Build compile(const std::string& key, const codegen::KernelSpec& spec, const codegen::EmittedKernel& kernel,
                const std::vector<std::string>& options, const Compiler& compiler);
  void throw_remembered_failure(const std::string& key);
  void remember_failure(const std::string& key, const std::string& message);

  cache::Store store_;
  std::function<std::shared_ptr<const Compiler>()> compiler_;
  std::mutex mutex_;  // guards failures_
  std::map<std::string, Failure> failures_;
};

}  // namespace attune::runtime
