#include "tuner/measure/measured_case.h"

#include <algorithm>
#include <cmath>

#include "runtime/element.h"
#include "runtime/tensor_map.h"
#include "tuner/measure/backward_case.h"
#include "tuner/measure/forward_case.h"

namespace attune::tuner {

std::unique_ptr<MeasuredCase> make_case(Workbench& bench, const Problem& problem, const Scores& scores,
                                        std::uint64_t seed, Compared compared) {
  if (problem.op == Op::backward) return std::make_unique<BackwardCase>(bench, problem, scores, seed, compared);
  return std::make_unique<ForwardCase>(bench, problem, scores, seed, compared);
}

std::uint64_t case_bytes(const Problem& problem) {
  return problem.op == Op::backward ? BackwardCase::bytes_of(problem) : Tensors::bytes_of(problem);
}

std::vector<runtime::RowSample> sampled_rows(std::int64_t rows) {
  const std::int64_t spread = std::max<std::int64_t>(rows / 7, 1) | 1;
  std::vector<runtime::RowSample> samples{{0, spread, 7}};
  if (rows > 64) samples.push_back({63, 1, 2});
  if (rows > 3) samples.push_back({rows - 3, 1, 3});
  return samples;
}

void plant_outliers(runtime::Device& device, const Problem& problem, const void* q, const Strides& q_strides, void* k,
                    const Strides& k_strides, double score) {
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  const int group = problem.heads / problem.heads_kv;
  const auto number = [&](std::uint16_t bits) { return static_cast<double>(runtime::to_float(problem.dtype, bits)); };
  std::vector<std::uint16_t> row(dim);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    for (int head = 0; head < problem.heads_kv; ++head) {
      for (const Outlier& outlier : outliers_of(problem)) {
        const std::int64_t q_at = batch * q_strides.batch + head * group * q_strides.head + outlier.row * q_strides.row;
        const std::int64_t k_at = batch * k_strides.batch + head * k_strides.head + outlier.key * k_strides.row;
        device.copy_to_host(row.data(), static_cast<const std::uint16_t*>(q) + q_at, 2 * dim);
        double squares = 0;
        for (const std::uint16_t bits : row) squares += number(bits) * number(bits);
        const double factor = squares > 0 ? score * std::sqrt(static_cast<double>(problem.head_dim)) / squares : 0;
        for (std::uint16_t& bits : row)
          bits = runtime::to_element(problem.dtype, static_cast<float>(factor * number(bits)));
        device.copy_to_device(static_cast<std::uint16_t*>(k) + k_at, row.data(), 2 * dim);
      }
    }
  }
}

void plant_outliers(Workbench& bench, const Problem& problem, const void* q, void* k, double score) {
  bench.wait();
  plant_outliers(bench.device(), problem, q, runtime::default_strides(problem, runtime::Operand::q), k,
                 runtime::default_strides(problem, runtime::Operand::k), score);
}

}  // namespace attune::tuner
