#include "cli/emulator/emulated_tensors.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/cpu/element.h"

namespace attune::cli {
namespace {

using runtime::Operand;

constexpr std::size_t kCounterBytes = 8;
constexpr float kLeadingQuery = 4;  // exact in both types
// Stands for what must be exact and is not, as in tuner::RowError.
constexpr double kNotANumber = 1e300;

std::size_t extent(const runtime::TensorShape& s, const Strides& strides) {
  if (s.batch == 0 || s.heads == 0 || s.rows == 0) return 0;
  return static_cast<std::size_t>((s.batch - 1) * strides.batch + (s.heads - 1) * strides.head +
                                  (s.rows - 1) * strides.row + s.head_dim);
}

double difference(double value, double exact) {
  const double d = std::abs(value - exact);
  return d <= kNotANumber ? d : kNotANumber;
}

}  // namespace

EmulatedTensors::EmulatedTensors(runtime::CpuDevice& device, const Problem& problem, const Options& options)
    : device_(&device),
      problem_(problem),
      options_(options),
      lse_(device, static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q) * sizeof(float)),
      counter_(device, kCounterBytes) {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const auto operand = static_cast<Operand>(i);
    strides_[i] = runtime::resolve_strides(problem, operand, options.strides[i]);
    memory_[i] =
        runtime::DeviceBuffer(device, extent(runtime::shape_of(problem, operand), strides_[i]) * sizeof(std::uint16_t));
  }
  const tuner::Scores& scores = options.scores;
  std::optional<float> q_leading, k_leading;
  if (scores.shift != 0) {
    q_leading = kLeadingQuery;
    k_leading = static_cast<float>(scores.shift * std::sqrt(static_cast<double>(problem.head_dim)) / kLeadingQuery);
  }
  fill(Operand::q, scores.sd, q_leading);
  fill(Operand::k, 1, k_leading);
  fill(Operand::v, 1, {});
  if (scores.outlier != 0) plant_outliers(scores.outlier);
  device.fill8(counter_.data(), 0, kCounterBytes, nullptr);
  reset();
  exact_ = runtime::host_attention(problem, args(), options.rows);
}

ForwardArgs EmulatedTensors::args() const {
  ForwardArgs args;
  args.q = elements(Operand::q);
  args.k = elements(Operand::k);
  args.v = elements(Operand::v);
  args.o = elements(Operand::o);
  args.lse = options_.lse ? static_cast<float*>(lse_.data()) : nullptr;
  args.q_strides = strides(Operand::q);
  args.k_strides = strides(Operand::k);
  args.v_strides = strides(Operand::v);
  args.o_strides = strides(Operand::o);
  args.workspace = counter_.data();
  args.workspace_bytes = kCounterBytes;
  return args;
}

void EmulatedTensors::reset() {
  const runtime::DeviceBuffer& o = memory_[static_cast<std::size_t>(Operand::o)];
  std::fill_n(elements(Operand::o), o.size() / sizeof(std::uint16_t), runtime::kPoisonElement);
  device_->forget(o.data(), o.size());
  std::fill_n(static_cast<float*>(lse_.data()), lse_.size() / sizeof(float), std::nanf(""));
  device_->forget(lse_.data(), lse_.size());
}

template <typename Visit>
void EmulatedTensors::for_each_row(Operand operand, const Visit& visit) const {
  const runtime::TensorShape s = runtime::shape_of(problem_, operand);
  const Strides& step = strides(operand);
  for (std::int64_t batch = 0; batch < s.batch; ++batch) {
    for (std::int64_t head = 0; head < s.heads; ++head) {
      for (std::int64_t row = 0; row < s.rows; ++row)
        visit(elements(operand) + batch * step.batch + head * step.head + row * step.row,
              static_cast<std::size_t>(s.head_dim));
    }
  }
}

void EmulatedTensors::fill(Operand operand, double amplitude, std::optional<float> leading) {
  std::mt19937 random(options_.seed * 4 + static_cast<unsigned>(operand));
  std::normal_distribution<double> normal;
  std::vector<std::uint16_t> row;
  for_each_row(operand, [&](std::uint16_t* to, std::size_t count) {
    row.resize(count);
    for (std::uint16_t& element : row) {
      const double value = std::clamp(normal(random), -tuner::kLargestNormal, tuner::kLargestNormal);
      element = runtime::to_element(problem_.dtype, static_cast<float>(amplitude * value));
    }
    if (leading) row.front() = runtime::to_element(problem_.dtype, *leading);
    device_->copy_to_device(to, row.data(), count * sizeof(std::uint16_t));
  });
}

void EmulatedTensors::plant_outliers(double score) {
  const auto dim = static_cast<std::size_t>(problem_.head_dim);
  const int group = problem_.heads / problem_.heads_kv;
  const Strides &q = strides(Operand::q), &k = strides(Operand::k);
  std::vector<std::uint16_t> key(dim);
  for (std::int64_t batch = 0; batch < problem_.batch; ++batch) {
    for (std::int64_t head = 0; head < problem_.heads_kv; ++head) {
      for (const tuner::Outlier& outlier : tuner::outliers_of(problem_)) {
        const std::uint16_t* const row =
            elements(Operand::q) + batch * q.batch + head * group * q.head + outlier.row * q.row;
        double squares = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          const double value = static_cast<double>(runtime::to_float(problem_.dtype, row[d]));
          squares += value * value;
        }
        const double factor = squares > 0 ? score * std::sqrt(static_cast<double>(dim)) / squares : 0;
        for (std::size_t d = 0; d < dim; ++d) {
          const double value = factor * static_cast<double>(runtime::to_float(problem_.dtype, row[d]));
          key[d] = runtime::to_element(problem_.dtype, static_cast<float>(value));
        }
        device_->copy_to_device(elements(Operand::k) + batch * k.batch + head * k.head + outlier.key * k.row,
                                key.data(), dim * sizeof(std::uint16_t));
      }
    }
  }
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
  const Strides& o = strides(Operand::o);
  std::vector<tuner::RowError> errors;
  errors.reserve(exact_.lse.size());
  for (std::size_t at = 0; at < exact_.lse.size(); ++at) {
    const std::int64_t pair = static_cast<std::int64_t>(at) / rows;
    const std::int64_t row = options_.rows.first + static_cast<std::int64_t>(at) % rows * options_.rows.step;
    const std::uint16_t* const written =
        elements(Operand::o) + pair / problem_.heads * o.batch + pair % problem_.heads * o.head + row * o.row;
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
  const std::size_t elements_in_all = memory_[static_cast<std::size_t>(Operand::o)].size() / sizeof(std::uint16_t);
  std::vector<std::uint16_t> all(elements(Operand::o), elements(Operand::o) + elements_in_all);
  for_each_row(Operand::o, [&](const std::uint16_t* row, std::size_t count) {
    std::fill_n(all.begin() + (row - elements(Operand::o)), count, runtime::kPoisonElement);
  });
  if (std::ranges::any_of(all, [](std::uint16_t element) { return element != runtime::kPoisonElement; }))
    return "memory between the rows of O was written";
  return {};
}

}  // namespace attune::cli
