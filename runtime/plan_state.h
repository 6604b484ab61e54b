// What stands behind attune::Plan: a loaded kernel and everything that a launch would otherwise have to compute.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/builder.h"
#include "runtime/device.h"
#include "runtime/tensor_map.h"
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

/// Loads a kernel for a problem. Checks before the driver sees it that the cubin is for this device and holds the
/// kernel, that the kernel serves the problem, and that the grid is legal. Throws Error(invalid_argument),
/// Error(unsupported) (another architecture, too much shared memory), Error(not_found), Error(driver),
/// Error(out_of_memory). Not under stream capture.
Plan make_plan(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source);

class PlanState {
 public:
  PlanState(std::shared_ptr<PlanContext> context, const Problem& problem, PlanSource source);

  void launch(const ForwardArgs& args) const;
  std::size_t workspace_bytes() const { return counter_ ? WorkspacePool::kBytes : 0; }
  const Problem& problem() const { return problem_; }
  const PlanInfo& info() const { return info_; }

 private:
  struct Maps;

  Maps& maps_of_this_thread() const;
  void update_maps(Maps& maps, const ForwardArgs& args) const;
  void update_map(Maps& maps, Operand operand, const void* base, const Strides& strides) const;
  void check_scalars(const ForwardArgs& args) const;
  void check_pointers(const ForwardArgs& args) const;
  unsigned* counter(const ForwardArgs& args) const;

  // The order is that of destruction, backwards: the module goes before the device.
  std::shared_ptr<PlanContext> context_;
  std::unique_ptr<Module> module_;
  Function function_;
  Problem problem_;
  codegen::LaunchShape shape_;
  PlanInfo info_;
  std::uint64_t id_;    // never reused, so a thread's memo cannot meet another plan's
  bool empty_ = false;  // nothing to compute
  bool counter_ = false;
  float default_scale_ = 0;
  Strides default_o_strides_;
  WorkspacePool* workspaces_ = nullptr;
  codegen::ForwardParams params_;                             // all but pointers, strides and scale
  LaunchConfig launch_;                                       // all but the stream
  std::array<std::optional<TensorMap>, kOperands> prebuilt_;  // default strides, another address
};

}  // namespace attune::runtime
