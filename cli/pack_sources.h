// Where the entries of a new pack come from.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/problem_flags.h"
#include "runtime/builder.h"
#include "runtime/pack.h"

namespace attune::cli {

struct PackMeasurement {
  double median = 0;  ///< seconds; 0: never measured
  std::string errors, environment;
};

/// A pack that is being put together.
class PackDraft {
 public:
  PackDraft();

  /// A build for a problem, after those that are there already. Measurements may be missing. False if the pack has an
  /// entry of this problem, arch and config. Throws Error(compile_failed) for a rejected build.
  bool add(const Problem& problem, const codegen::Config& config, const runtime::Build& build,
           const PackMeasurement& measured = {});
  void add_quarantine(const cache::Quarantine& entry);

  const Manifest& manifest() const { return manifest_; }
  /// Throws Error(pack), Error(io).
  void write(const std::string& directory) const { write_pack(directory, manifest_, cubins_); }

 private:
  Manifest manifest_;
  std::map<std::string, std::string> cubins_;
};

/// Adds the winners of the cache for the problems that are `wanted`, each with up to `alternates` more configs of its
/// tie set. Kernels that the cache has lost are compiled again. Throws Error(not_found) if nothing was tuned that fits.
void add_winners(cache::Store& store, const std::function<bool(const Problem&)>& wanted, const std::string& identity,
                 int alternates, PackDraft& draft, Output& output);

}  // namespace attune::cli
