// The kernels that `attune verify` looks at.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <attune/problem.h>

#include "cli/output.h"
#include "cli/problem_set.h"
#include "codegen/config.h"
#include "runtime/builder.h"
#include "runtime/device.h"

namespace attune::cli {

/// A kernel to be verified for one problem.
struct Subject {
  Problem problem;
  codegen::Config config;
  runtime::Build build;
  std::string origin;
  std::string failure = {};  ///< why there is no build
};

struct SubjectRequest {
  const ProblemSetFlags& problems;
  std::vector<std::string> configs = {};  ///< none: what plan() would give
  std::string pack = {};                  ///< the entries of a pack instead
  bool rebuild_pack = false;              ///< compile its entries for a device that its cubins are not for
  bool second_kernels = false;            ///< beside what plan() would give, what its launches take on peaked scores
};

/// Checks the request as far as that needs no device, so that mistakes come to light before one is looked for.
void check_subjects(const SubjectRequest& request, Output& output);

class Subjects {
 public:
  Subjects(SubjectRequest request, const runtime::DeviceProperties& properties, cache::Store store,
           runtime::Builder& builder, Output& output);

  /// Compiles what is not built. What does not compile, or not cleanly, is there with a failure. Throws
  /// Error(not_found) for a pack with no entry that fits.
  std::vector<Subject> all();

 private:
  /// `build` fills in the build, and the config where that is not known before.
  Subject attempt(const Problem& problem, const codegen::Config& config, const char* origin,
                  const std::function<void(Subject&)>& build);
  Subject built(const Problem& problem, const codegen::Config& config, const char* origin);
  Subject guessed(const Problem& problem);
  Subject planned(const Problem& problem);
  std::optional<Subject> second_of(const Subject& first);
  std::vector<Subject> of_pack();

  SubjectRequest request_;
  Arch arch_;
  std::string identity_;
  cache::Store store_;
  runtime::Builder& builder_;
  Output& output_;
};

}  // namespace attune::cli
