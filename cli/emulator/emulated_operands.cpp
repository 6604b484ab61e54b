#include "cli/emulator/emulated_operands.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/element.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/measured_case.h"

namespace attune::cli {
namespace {

using runtime::Operand;

std::size_t extent(const runtime::TensorShape& s, const Strides& strides) {
  if (s.batch == 0 || s.heads == 0 || s.rows == 0) return 0;
  return static_cast<std::size_t>((s.batch - 1) * strides.batch + (s.heads - 1) * strides.head +
                                  (s.rows - 1) * strides.row + s.head_dim);
}

}  // namespace

EmulatedOperands::EmulatedOperands(runtime::CpuDevice& device, const Problem& problem,
                                   std::initializer_list<Operand> operands, const AllStrides& strides)
    : device_(&device), problem_(problem) {
  for (const Operand operand : operands) {
    const auto i = static_cast<std::size_t>(operand);
    strides_[i] = runtime::resolve_strides(problem, operand, strides[i]);
    memory_[i] =
        runtime::DeviceBuffer(device, extent(runtime::shape_of(problem, operand), strides_[i]) * sizeof(std::uint16_t));
  }
}

std::uint16_t* EmulatedOperands::elements(Operand operand) const {
  return static_cast<std::uint16_t*>(memory_[static_cast<std::size_t>(operand)].data());
}

template <typename Visit>
void EmulatedOperands::for_each_row(Operand operand, const Visit& visit) const {
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

void EmulatedOperands::fill_inputs(const tuner::Scores& scores, unsigned seed) {
  const tuner::LeadingColumns leading = tuner::leading_columns(problem_, scores);
  const auto unless_zero = [](float value) { return value != 0 ? std::optional(value) : std::nullopt; };
  fill(Operand::q, scores.sd, unless_zero(leading.q), seed);
  fill(Operand::k, 1, unless_zero(leading.k), seed);
  fill(Operand::v, 1, {}, seed);
  if (scores.outlier != 0) {
    tuner::plant_outliers(*device_, problem_, elements(Operand::q), strides(Operand::q), elements(Operand::k),
                          strides(Operand::k), scores.outlier);
  }
}

void EmulatedOperands::fill(Operand operand, double amplitude, std::optional<float> leading, unsigned seed) {
  std::mt19937 random(seed * runtime::kOperands + static_cast<unsigned>(operand));
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

void EmulatedOperands::write(Operand operand, const std::vector<double>& values) {
  std::size_t next = 0;
  std::vector<std::uint16_t> row;
  for_each_row(operand, [&](std::uint16_t* to, std::size_t count) {
    row.resize(count);
    for (std::uint16_t& element : row)
      element = runtime::to_element(problem_.dtype, static_cast<float>(values[next++]));
    device_->copy_to_device(to, row.data(), count * sizeof(std::uint16_t));
  });
}

std::vector<double> EmulatedOperands::read(Operand operand) const {
  std::vector<double> values;
  for_each_row(operand, [&](const std::uint16_t* row, std::size_t count) {
    for (std::size_t d = 0; d < count; ++d)
      values.push_back(static_cast<double>(runtime::to_float(problem_.dtype, row[d])));
  });
  return values;
}

void EmulatedOperands::poison(Operand operand) {
  const runtime::DeviceBuffer& memory = memory_[static_cast<std::size_t>(operand)];
  std::fill_n(elements(operand), memory.size() / sizeof(std::uint16_t), runtime::kPoisonElement);
  device_->forget(memory.data(), memory.size());
}

bool EmulatedOperands::gaps_intact(Operand operand) const {
  const std::size_t count = memory_[static_cast<std::size_t>(operand)].size() / sizeof(std::uint16_t);
  std::vector<std::uint16_t> all(elements(operand), elements(operand) + count);
  for_each_row(operand, [&](const std::uint16_t* row, std::size_t columns) {
    std::fill_n(all.begin() + (row - elements(operand)), columns, runtime::kPoisonElement);
  });
  return std::ranges::all_of(all, [](std::uint16_t element) { return element == runtime::kPoisonElement; });
}

}  // namespace attune::cli
