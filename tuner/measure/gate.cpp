#include "tuner/measure/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "runtime/plan_state.h"
#include "runtime/tensor_map.h"

namespace attune::tuner {
namespace {

// Prepared inputs beyond this are thrown away and made again when they are needed.
constexpr std::uint64_t kCaseBytes = 2ull << 30;

double widened(std::uint16_t bits, DType dtype) {
  if (dtype == DType::bf16) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t rounded(double value, DType dtype) {
  if (dtype == DType::bf16) {
    const auto single = static_cast<float>(value);
    std::uint32_t word = 0;
    std::memcpy(&word, &single, sizeof word);
    return static_cast<std::uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  // Towards zero, and within the normal numbers: an input need not be rounded to nearest.
  const double magnitude = std::min(std::abs(value), 65504.0);
  int exponent = 0;
  const double mantissa = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  if (magnitude == 0 || exponent < -13) return 0;
  const auto fraction = static_cast<int>(mantissa * 2048) - 1024;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | fraction);
}

}  // namespace

void add(Judgement& judgement, const CaseResult& result, const std::string& where) {
  judgement.accuracy = judgement.cases == 0 ? result.accuracy : worse_of(judgement.accuracy, result.accuracy);
  if (result.share_of_bounds > judgement.share_of_bounds) {
    judgement.share_of_bounds = result.share_of_bounds;
    judgement.worst_case = where;
  }
  ++judgement.cases;
}

void Gate::plant_outliers(const Problem& problem, const Tensors& tensors, double score) {
  bench_.wait();
  runtime::Device& device = bench_.device();
  const Strides q_strides = runtime::default_strides(problem, runtime::Operand::q);
  const Strides k_strides = runtime::default_strides(problem, runtime::Operand::k);
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  const int group = problem.heads / problem.heads_kv;
  std::vector<std::uint16_t> row(dim);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    for (int head = 0; head < problem.heads_kv; ++head) {
      for (const Outlier& outlier : outliers_of(problem)) {
        const std::int64_t q_at = batch * q_strides.batch + head * group * q_strides.head + outlier.row * q_strides.row;
        const std::int64_t k_at = batch * k_strides.batch + head * k_strides.head + outlier.key * k_strides.row;
        device.copy_to_host(row.data(), static_cast<const std::uint16_t*>(tensors.q()) + q_at, 2 * dim);
        double squares = 0;
        for (const std::uint16_t bits : row) squares += std::pow(widened(bits, problem.dtype), 2);
        const double factor = squares > 0 ? score * std::sqrt(static_cast<double>(problem.head_dim)) / squares : 0;
        for (std::uint16_t& bits : row) bits = rounded(factor * widened(bits, problem.dtype), problem.dtype);
        device.copy_to_device(static_cast<std::uint16_t*>(tensors.k()) + k_at, row.data(), 2 * dim);
      }
    }
  }
}

Gate::Case& Gate::prepare(const Problem& problem, const Scores& scores) {
  const std::string key = to_string(problem) + "|" + scores.name;
  if (const auto it = cases_.find(key); it != cases_.end()) return it->second;
  if (bytes_ > kCaseBytes) {
    cases_.clear();
    bytes_ = 0;
  }
  Case c;
  c.tensors = std::make_unique<Tensors>(bench_, problem, 7);
  const LeadingColumns leading = leading_columns(problem, scores);
  c.tensors->fill(scores.sd, {problem.head_dim, leading.q, leading.q != 0},
                  {problem.head_dim, leading.k, leading.k != 0});
  if (scores.outlier != 0 && problem.seqlen_k > 0) plant_outliers(problem, *c.tensors, scores.outlier);
  c.exact = std::make_unique<ExactRows>(bench_, problem, c.tensors->args(), runtime::RowSample{});
  c.bounds = bounds_for(problem, score_magnitude(problem, scores), c.exact->lse_magnitude(), kLargestNormal);
  bytes_ += c.tensors->bytes() + c.exact->bytes();
  return cases_.emplace(key, std::move(c)).first->second;
}

std::optional<std::string> Gate::run(const Plan& plan, Case& c, Judgement& judgement, const std::string& where) {
  c.tensors->poison();
  plan.launch(c.tensors->args());
  c.exact->compare(*c.tensors);
  const CaseResult result = tuner::judge(accumulate(c.exact->errors()), c.bounds);
  add(judgement, result, where);
  if (result.wrong) return result.wrong;
  if (!c.tensors->guards_intact()) return "memory behind O or LSE was written";
  if (!bench_.counter_is_zero()) return "the tile counter was not left zero";
  return {};
}

Judgement Gate::judge(const codegen::KernelSpec& spec, const std::string& cubin) {
  Judgement judgement;
  bench_.reset_counter();
  for (const GateShape& shape : gate_shapes(spec)) {
    runtime::PlanSource source;
    source.config = gate_config(spec);
    source.spec = spec;
    source.shape = codegen::launch_shape(spec);
    source.cubin = cubin;
    const Plan plan = runtime::make_plan(bench_.plans(), shape.problem, std::move(source));
    for (const Scores& scores : shape.scores) {
      const std::string where = case_text(shape.problem, scores);
      judgement.wrong = run(plan, prepare(shape.problem, scores), judgement, where);
      if (!judgement.wrong) continue;
      judgement.wrong = fmt::format("{}: {}", where, *judgement.wrong);
      bench_.reset_counter();
      return judgement;
    }
  }
  if (judgement.cases == 0) judgement.wrong = "no small problem fits this kernel";
  return judgement;
}

}  // namespace attune::tuner
