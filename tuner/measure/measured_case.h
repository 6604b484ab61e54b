// One set of inputs on the device, with what a kernel must make of them: what the numerics gate, the check at full size
// and the race launch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/reference.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/gate_cases.h"
#include "tuner/measure/workbench.h"

namespace attune::tuner {

/// Rows whose results are compared.
enum class Compared {
  all,      ///< of small problems; the forward pass behind a backward case is the reference's
  sampled,  ///< sampled_rows(); O and LSE of a backward case are only like those of a forward pass
  none,     ///< for timing alone
};

class MeasuredCase {
 public:
  virtual ~MeasuredCase() = default;

  /// Fills the outputs, and guards behind them, with poison.
  virtual void poison() = 0;
  /// Queues one launch.
  virtual void launch(const Plan& plan) = 0;
  /// Compares what the last launch wrote. Waits for the stream.
  virtual CaseResult compare() = 0;
  /// Bytes of the outputs that still hold poison. Waits for the stream.
  virtual std::uint64_t unwritten() = 0;
  /// What was changed besides the outputs, in words. Waits for the stream.
  virtual std::optional<std::string> damage() = 0;
  virtual std::uint64_t bytes() const = 0;
};

/// Throws as Device::allocate and Workbench::reference do.
std::unique_ptr<MeasuredCase> make_case(Workbench& bench, const Problem& problem, const Scores& scores,
                                        std::uint64_t seed, Compared compared);
/// Of one case's tensors, before they are allocated.
std::uint64_t case_bytes(const Problem& problem);

/// Rows of every head that are compared at full size, of `rows`: both ends, the places around tile boundaries, and a
/// spread whose step is odd.
std::vector<runtime::RowSample> sampled_rows(std::int64_t rows);

/// Makes single keys like queries, so that each reaches `score` nats. No launch that uses them may be pending.
void plant_outliers(runtime::Device& device, const Problem& problem, const void* q, const Strides& q_strides, void* k,
                    const Strides& k_strides, double score);
/// The same for dense tensors in the problem's layout; waits for the stream.
void plant_outliers(Workbench& bench, const Problem& problem, const void* q, void* k, double score);

}  // namespace attune::tuner
