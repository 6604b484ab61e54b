// What timed launches read and write: a problem's tensors on the device, in so many sets that a launch does not find
// its inputs in L2.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/device.h"
#include "runtime/tensor_map.h"

namespace attune::cli {

/// Makes the plan for a problem.
using Planner = std::function<Plan(const Problem&)>;

class BenchTensors {
 public:
  virtual ~BenchTensors() = default;
  BenchTensors(const BenchTensors&) = delete;
  BenchTensors& operator=(const BenchTensors&) = delete;

  /// Allocates what launches of the plan take besides the tensors. Waits for the stream. Throws Error(out_of_memory).
  virtual void make_room_for(const Plan& plan) = 0;
  /// Queues a launch on the next set in turn.
  void launch(const Plan& plan);
  /// Launches once and waits. Names of the outputs in which elements were not written, of those that are looked at:
  /// the ends of each output, and places between them.
  std::vector<std::string> unwritten_by(const Plan& plan);

 protected:
  struct Set {
    std::array<runtime::DeviceBuffer, runtime::kOperands> operands;  ///< null: the operation has none
    runtime::DeviceBuffer lse;

    void* data(runtime::Operand operand) const { return operands[static_cast<std::size_t>(operand)].data(); }
  };

  /// Random numbers in every tensor that the operation reads, but in O.
  BenchTensors(runtime::Device& device, const Problem& problem, runtime::Stream stream);

  virtual void launch(const Plan& plan, const Set& set) const = 0;

  runtime::Device& device() const { return device_; }
  const Problem& problem() const { return problem_; }
  runtime::Stream stream() const { return stream_; }
  const std::vector<Set>& sets() const { return sets_; }
  /// Of the forward pass: reads Q, K and V, writes O and LSE.
  ForwardArgs forward_args(const Set& set) const;

 private:
  Set allocated() const;
  void fill_inputs();
  bool is_written(const runtime::DeviceBuffer& output) const;

  runtime::Device& device_;
  Problem problem_;
  runtime::Stream stream_;
  std::vector<Set> sets_;
  std::size_t next_ = 0;
};

/// For launches on a stream of the device, both of which must outlive it: as many sets as it takes to exceed L2 three
/// times, within 40% of the free memory. A backward problem's O and LSE are the results of its forward pass, for which
/// `planner` makes the plan. Throws Error(out_of_memory), and what `planner` throws.
std::unique_ptr<BenchTensors> make_bench_tensors(runtime::Device& device, const Problem& problem,
                                                 runtime::Stream stream, const Planner& planner);

}  // namespace attune::cli
