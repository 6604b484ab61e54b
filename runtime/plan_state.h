// What stands behind attune::Plan: loaded kernels and everything that a launch would otherwise have to compute.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/builder.h"
#include "runtime/device.h"
#include "runtime/workspace_pool.h"

namespace attune::runtime {

/// What the plans of one device share. Safe from any thread.
class PlanContext {
 public:
  explicit PlanContext(std::shared_ptr<Device> device, bool check_pointers = false);

  Device& device() const { return *device_; }
  bool check_pointers() const { return check_pointers_; }
  /// Allocates the pool when a plan first needs it. Throws Error(out_of_memory).
  WorkspacePool& workspaces();

 private:
  std::shared_ptr<Device> device_;
  bool check_pointers_;
  std::mutex mutex_;  // guards workspaces_ while it is made
  std::unique_ptr<WorkspacePool> workspaces_;
};

/// A cubin and what launching it needs, wherever it came from.
struct PlanSource {
  codegen::Config config;  ///< launch part included
  codegen::KernelSpec spec;
  codegen::LaunchShape shape;
  std::string cubin;
  std::string build_key;  ///< empty if unknown
  Origin origin = Origin::heuristic;
  std::optional<double> expected_seconds;
  std::string errors;
};

/// The source of a build. Throws Error(compile_failed) if the build was rejected, Error(cache) if its metadata make no
/// sense.
PlanSource plan_source(const Build& build, const codegen::Config& config, Origin origin);

/// Loads the kernels for a problem. Checks before the driver sees it that the cubin is for this device and holds the
/// kernels, that they serve the problem, and that the grids are legal. Throws Error(invalid_argument),
/// Error(unsupported) (another architecture, too much shared memory), Error(not_found), Error(driver),
/// Error(out_of_memory). Not under stream capture.
Plan make_plan(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source);

/// Whether a kernel's speed depends on the scores, so that another one may do better on peaked ones.
bool speculates(const codegen::Config& config);
/// A plan that launches `plan`'s kernel, which speculates, and while speculation fails too often that of `exact`, the
/// same problem's plan for peaked scores. Throws Error(out_of_memory), Error(driver).
Plan adaptive_plan(const Plan& plan, const Plan& exact);

/// What plans of every operation have in common. A launch of another operation's arguments is refused.
class PlanState {
 public:
  virtual ~PlanState() = default;
  PlanState(const PlanState&) = delete;
  PlanState& operator=(const PlanState&) = delete;

  virtual void launch(const ForwardArgs& args) const;
  virtual void launch(const BackwardArgs& args) const;
  virtual std::size_t workspace_bytes() const = 0;
  const Problem& problem() const { return problem_; }
  const PlanInfo& info() const { return info_; }

 protected:
  PlanState(std::shared_ptr<PlanContext> context, const Problem& problem, const PlanSource& source);
  struct Like {
    const PlanState& plan;
  };
  /// For a plan that is made of others: what is known of one of them, but no kernel.
  explicit PlanState(Like first);

  const PlanContext& context() const { return *context_; }
  PlanContext& context() { return *context_; }
  Device& device() const { return context_->device(); }
  const codegen::LaunchShape& shape() const { return shape_; }
  /// The kernel of that name, in the loaded module.
  Function function(const std::string& entry, int shared_bytes) { return module_->function(entry, shared_bytes); }
  /// For PlanInfo::blocks.
  void set_blocks(std::int64_t blocks) { info_.blocks = blocks; }
  /// For PlanInfo::peaked_config.
  void set_peaked_config(const std::string& config) { info_.peaked_config = config; }

  /// `given`, or the default scale if it is 0. Throws Error(invalid_argument) for a scale that is not allowed.
  float checked_scale(float given) const;
  /// PlanContext::check_pointers(): throws Error(invalid_argument) if the memory is the host's or another device's.
  /// Null is allowed.
  void check_owner(const char* name, const void* pointer) const;

 private:
  // The order is that of destruction, backwards: the module goes before the device.
  std::shared_ptr<PlanContext> context_;
  Problem problem_;
  codegen::LaunchShape shape_;
  std::unique_ptr<Module> module_;
  PlanInfo info_;
  float default_scale_ = 0;
};

/// Throws Error(invalid_argument) unless the address is a multiple of `alignment`.
void check_alignment(const char* name, const void* pointer, std::size_t alignment);

/// How many blocks of `block` rows cover `rows` rows.
constexpr std::int64_t blocks_over(std::int64_t rows, int block) { return (rows + block - 1) / block; }

}  // namespace attune::runtime
