#include "cli/emulator/emulated_tensors.h"

#include <algorithm>
#include <cmath>

#include "runtime/element.h"

namespace attune::cli {
namespace {

using runtime::Operand;

constexpr std::size_t kCounterBytes = 8;
// Stands for what must be exact and is not, as in tuner::RowError.
constexpr double kNotANumber = 1e300;

double difference(double value, double exact) {
  const double d = std::abs(value - exact);
  return d <= kNotANumber ? d : kNotANumber;
}

}  // namespace

EmulatedTensors::EmulatedTensors(runtime::CpuDevice& device, const Problem& problem, const Options& options)
    : device_(&device),
      problem_(problem),
      options_(options),
      operands_(device, problem, {Operand::q, Operand::k, Operand::v, Operand::o}, options.strides),
      lse_(device, static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q) * sizeof(float)),
      counter_(device, kCounterBytes) {
  operands_.fill_inputs(options.scores, options.seed);
  device.fill8(counter_.data(), 0, kCounterBytes, nullptr);
  reset();
  exact_ = runtime::host_attention(problem, args(), options.rows);
}

ForwardArgs EmulatedTensors::args() const {
  ForwardArgs args;
  args.q = operands_.elements(Operand::q);
  args.k = operands_.elements(Operand::k);
  args.v = operands_.elements(Operand::v);
  args.o = operands_.elements(Operand::o);
  args.lse = options_.lse ? static_cast<float*>(lse_.data()) : nullptr;
  args.q_strides = operands_.strides(Operand::q);
  args.k_strides = operands_.strides(Operand::k);
  args.v_strides = operands_.strides(Operand::v);
  args.o_strides = operands_.strides(Operand::o);
  args.workspace = counter_.data();
  args.workspace_bytes = kCounterBytes;
  return args;
}

void EmulatedTensors::reset() {
  operands_.poison(Operand::o);
  std::fill_n(static_cast<float*>(lse_.data()), lse_.size() / sizeof(float), std::nanf(""));
  device_->forget(lse_.data(), lse_.size());
}

float EmulatedTensors::lse_at(std::int64_t pair, std::int64_t row) const {
  return static_cast<const float*>(lse_.data())[pair * problem_.seqlen_q + row];
}

tuner::Bounds EmulatedTensors::bounds() const {
  double lse_magnitude = 0;
  for (const double lse : exact_.lse) {
    if (std::isfinite(lse)) lse_magnitude = std::max(lse_magnitude, std::abs(lse));
  }
  return tuner::bounds_for(problem_, tuner::score_magnitude(problem_, options_.scores), lse_magnitude,
                           tuner::kLargestNormal);
}

tuner::Accuracy EmulatedTensors::accuracy() const {
  const std::int64_t rows = runtime::Reference::rows_in(problem_, options_.rows);
  const auto dim_v = static_cast<std::size_t>(problem_.head_dim_v);
  const Strides& o = operands_.strides(Operand::o);
  std::vector<tuner::RowError> errors;
  errors.reserve(exact_.lse.size());
  for (std::size_t at = 0; at < exact_.lse.size(); ++at) {
    const std::int64_t pair = static_cast<std::int64_t>(at) / rows;
    const std::int64_t row = options_.rows.first + static_cast<std::int64_t>(at) % rows * options_.rows.step;
    const std::uint16_t* const written =
        operands_.elements(Operand::o) + pair / problem_.heads * o.batch + pair % problem_.heads * o.head + row * o.row;
    const bool masked = std::isinf(exact_.lse[at]);
    tuner::RowError error;
    for (std::size_t d = 0; d < dim_v; ++d) {
      const double value = static_cast<double>(runtime::to_float(problem_.dtype, written[d]));
      const double exact = exact_.o[at * dim_v + d];
      const double off = masked ? (value == 0 ? 0 : kNotANumber) : difference(value, exact);
      error.squares += off < 1e150 ? off * off : kNotANumber;
      error.exact_squares += exact * exact;
      error.largest = std::max(error.largest, off);
    }
    if (options_.lse) {
      const double lse = static_cast<double>(lse_at(pair, row));
      error.lse = masked ? (lse == exact_.lse[at] ? 0 : kNotANumber) : difference(lse, exact_.lse[at]);
    }
    errors.push_back(error);
  }
  return tuner::accumulate(errors);
}

std::optional<std::string> EmulatedTensors::damage() const {
  std::uint64_t counter = 0;
  device_->copy_to_host(&counter, counter_.data(), sizeof counter);
  if (counter != 0) return "the tile counter was not left zero";
  if (!operands_.gaps_intact(Operand::o)) return "memory between the rows of O was written";
  return {};
}

}  // namespace attune::cli
