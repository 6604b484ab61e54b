#include "tuner/measure/backward_case.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace attune::tuner {
namespace {

using runtime::GradientRounding;
using runtime::GradientStatistics;
using runtime::Operand;

constexpr std::uint64_t kGuardWords = 16384;  // more than a tile
constexpr std::array kOutputs{Operand::d_q, Operand::d_k, Operand::d_v};

std::uint64_t elements_of(const Problem& p, Operand operand) {
  return static_cast<std::uint64_t>(runtime::shape_of(p, operand).elements());
}

std::uint64_t rows_of(const Problem& p) {
  return static_cast<std::uint64_t>(p.batch) * static_cast<std::uint64_t>(p.heads) *
         static_cast<std::uint64_t>(p.seqlen_q);
}

std::uint64_t tensor_bytes(const Problem& p, Operand operand) {
  const bool output = runtime::is_output(Op::backward, operand);
  return 2 * elements_of(p, operand) + (output ? 4 * kGuardWords : 0);
}

}  // namespace

BackwardCase::Exact::Exact(runtime::Device& device, const Problem& p, Operand gradient,
                           const runtime::RowSample& rows_of)
    : operand(gradient), sample(rows_of) {
  const runtime::TensorShape s = runtime::shape_of(p, operand);
  rows = runtime::rows_of(runtime::to_string(operand), s.rows, sample);
  pairs = s.batch * s.heads;
  columns = s.head_dim;
  const auto all_rows = static_cast<std::size_t>(pairs * rows);
  const std::size_t bytes = all_rows * static_cast<std::size_t>(columns) * sizeof(double);
  exact = runtime::DeviceBuffer(device, bytes);
  kernels = runtime::DeviceBuffer(device, bytes);
  result = runtime::DeviceBuffer(device, all_rows * sizeof(GradientRow));
}

BackwardCase::BackwardCase(Workbench& bench, const Problem& problem, const Scores& scores, std::uint64_t seed,
                           Compared compared)
    : bench_(&bench),
      problem_(problem),
      bounds_(gradient_bounds(problem, scores)),
      lse_(bench.device(), 4 * rows_of(problem)),
      found_(bench.device(), 8) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    tensors_[i] = runtime::DeviceBuffer(bench.device(), tensor_bytes(problem, static_cast<Operand>(i)));
  fill(scores, seed);
  if (compared != Compared::all) {
    imitate_attention(seed);
    if (compared == Compared::none) return;
    const std::vector<runtime::RowSample> queries = sampled_rows(problem.seqlen_q),
                                          keys = sampled_rows(problem.seqlen_k);
    // The last rows take the place of samples that the shorter side lacks: the same rows twice do no harm.
    for (std::size_t i = 0; i < std::max(queries.size(), keys.size()); ++i) {
      add_exact({queries[std::min(i, queries.size() - 1)], keys[std::min(i, keys.size() - 1)]},
                GradientStatistics::given);
    }
    return;
  }
  attend();
  fill_d_lse();
  add_exact({}, GradientStatistics::computed);
}

std::uint64_t BackwardCase::bytes_of(const Problem& p) {
  std::uint64_t all = 4 * rows_of(p);
  for (int i = 0; i < runtime::kOperands; ++i) all += tensor_bytes(p, static_cast<Operand>(i));
  return all;
}

void BackwardCase::fill(const Scores& scores, std::uint64_t seed) {
  const LeadingColumns leading = leading_columns(problem_, scores);
  const runtime::Stream stream = bench_->stream();
  const auto fill_one = [&](Operand operand, float amplitude, Leading first) {
    bench_->helpers().fill_normal(data(operand), elements_of(problem_, operand),
                                  runtime::kOperands * seed + static_cast<std::uint64_t>(operand), amplitude,
                                  problem_.dtype, first, stream);
  };
  fill_one(Operand::q, static_cast<float>(scores.sd), {problem_.head_dim, leading.q, leading.q != 0});
  fill_one(Operand::k, 1, {problem_.head_dim, leading.k, leading.k != 0});
  fill_one(Operand::v, 1, {});
  fill_one(Operand::d_o, 1, {});
  if (scores.outlier != 0 && problem_.seqlen_k > 0)
    plant_outliers(*bench_, problem_, data(Operand::q), data(Operand::k), scores.outlier);
}

// O and LSE by the forward reference.
void BackwardCase::attend() {
  const BackwardArgs a = args();
  bench_->reference(problem_).launch(forward_of(problem_), {.q = a.q, .k = a.k, .v = a.v, .stream = a.stream}, {},
                                     {.o = data(Operand::o), .lse = static_cast<float*>(lse_.data())});
}

// The reference would take long at full size. For scores of variance 1, a row that sees n keys has a sum of about
// n e^0.5 exponentials, and O's elements a variance of about e / n; gradients are defined whatever O and LSE hold.
void BackwardCase::imitate_attention(std::uint64_t seed) {
  std::vector<float> row(static_cast<std::size_t>(problem_.seqlen_q));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::int64_t keys = runtime::visible_keys(problem_, static_cast<std::int64_t>(i));
    row[i] = static_cast<float>(std::log(static_cast<double>(keys)) + 0.5);  // -inf without keys
  }
  std::vector<float> lse;
  for (std::uint64_t pair = 0; pair * row.size() < rows_of(problem_); ++pair)
    lse.insert(lse.end(), row.begin(), row.end());
  bench_->wait();
  bench_->device().copy_to_device(lse_.data(), lse.data(), 4 * lse.size());
  const double keys = std::max<double>(static_cast<double>(problem_.seqlen_k) / (problem_.causal ? 2 : 1), 1);
  bench_->helpers().fill_normal(data(Operand::o), elements_of(problem_, Operand::o),
                                runtime::kOperands * seed + static_cast<std::uint64_t>(Operand::o),
                                static_cast<float>(std::sqrt(std::numbers::e / keys)), problem_.dtype, {},
                                bench_->stream());
}

void BackwardCase::fill_d_lse() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(rows_of(problem_));
  for (float& value : values) value = normal(random);
  d_lse_ = runtime::DeviceBuffer(bench_->device(), 4 * values.size());
  if (!values.empty()) bench_->device().copy_to_device(d_lse_.data(), values.data(), 4 * values.size());
}

BackwardArgs BackwardCase::args() const {
  BackwardArgs args;
  args.q = data(Operand::q);
  args.k = data(Operand::k);
  args.v = data(Operand::v);
  args.o = data(Operand::o);
  args.d_o = data(Operand::d_o);
  args.lse = static_cast<const float*>(lse_.data());
  args.d_lse = static_cast<const float*>(d_lse_.data());
  args.d_q = data(Operand::d_q);
  args.d_k = data(Operand::d_k);
  args.d_v = data(Operand::d_v);
  args.stream = bench_->stream();
  return args;
}

void BackwardCase::add_exact(const runtime::GradientSample& sample, GradientStatistics statistics) {
  runtime::Device& device = bench_->device();
  BackwardArgs inputs = args();
  inputs.workspace_bytes = runtime::ReferenceBackward::workspace_bytes(problem_);
  inputs.workspace = bench_->workspace(inputs.workspace_bytes);
  const auto& [d_q, d_k, d_v] = exact_.emplace_back(std::array{Exact(device, problem_, Operand::d_q, sample.queries),
                                                               Exact(device, problem_, Operand::d_k, sample.keys),
                                                               Exact(device, problem_, Operand::d_v, sample.keys)});
  for (const GradientRounding rounding : {GradientRounding::none, GradientRounding::kernels}) {
    const auto to = [&](const Exact& e) {
      return static_cast<double*>((rounding == GradientRounding::none ? e.exact : e.kernels).data());
    };
    bench_->backward_reference(problem_).launch(problem_, inputs, sample, rounding, statistics,
                                                {.dq_exact = to(d_q), .dk_exact = to(d_k), .dv_exact = to(d_v)});
  }
}

void BackwardCase::poison() {
  for (const Operand operand : kOutputs) {
    const runtime::DeviceBuffer& memory = tensors_[static_cast<std::size_t>(operand)];
    bench_->device().fill32(memory.data(), kPoisonWord, memory.size() / 4, bench_->stream());
  }
}

void BackwardCase::launch(const Plan& plan) {
  BackwardArgs a = args();
  a.workspace_bytes = plan.workspace_bytes();
  a.workspace = bench_->workspace(a.workspace_bytes);
  plan.launch(a);
}

void BackwardCase::compare(const Exact& e) {
  const Strides strides = runtime::default_strides(problem_, e.operand);
  CompareGradientParams p;
  p.got = data(e.operand);
  p.exact = static_cast<const double*>(e.exact.data());
  p.kernels = static_cast<const double*>(e.kernels.data());
  p.result = static_cast<GradientRow*>(e.result.data());
  p.batch = strides.batch;
  p.head = strides.head;
  p.row = strides.row;
  p.heads = runtime::shape_of(problem_, e.operand).heads;
  p.rows = static_cast<std::int32_t>(e.rows);
  p.columns = e.columns;
  p.row_first = static_cast<std::int32_t>(e.sample.first);
  p.row_step = static_cast<std::int32_t>(e.sample.step);
  p.alone = static_cast<std::int32_t>(e.operand == Operand::d_q ? lonely_queries(problem_) : lonely_keys(problem_));
  p.fp16 = problem_.dtype == DType::fp16;
  bench_->helpers().compare_gradient(p, static_cast<std::uint64_t>(e.pairs), bench_->stream());
}

GradientSums BackwardCase::sums_of(const Exact& e) const {
  GradientSums sums{.name = runtime::symbol_of(e.operand), .columns = e.columns};
  sums.rows.resize(e.result.size() / sizeof(GradientRow));
  if (!sums.rows.empty()) bench_->device().copy_to_host(sums.rows.data(), e.result.data(), e.result.size());
  return sums;
}

CaseResult BackwardCase::compare() {
  for (const auto& gradients : exact_)
    for (const Exact& exact : gradients) compare(exact);
  bench_->wait();
  CaseResult all;
  all.accuracy.op = Op::backward;
  for (const auto& [d_q, d_k, d_v] : exact_) {
    const CaseResult result = judge(GradientCaseSums{sums_of(d_q), sums_of(d_k), sums_of(d_v)}, bounds_);
    all.accuracy = worse_of(all.accuracy, result.accuracy);
    all.share_of_bounds = std::max(all.share_of_bounds, result.share_of_bounds);
    if (!all.wrong) all.wrong = result.wrong;
  }
  return all;
}

std::uint64_t BackwardCase::poisoned(bool guards) {
  const runtime::Stream stream = bench_->stream();
  bench_->device().fill8(found_.data(), 0, found_.size(), stream);
  auto* const found = static_cast<std::uint64_t*>(found_.data());
  for (const Operand operand : kOutputs) {
    const std::uint64_t words = elements_of(problem_, operand) / 2;  // head dims are multiples of 8
    const auto* const first = static_cast<const std::uint32_t*>(data(operand));
    bench_->helpers().count_poison(guards ? first + words : first, guards ? kGuardWords : words, PoisonUnit::half,
                                   found, stream);
  }
  bench_->wait();
  std::uint64_t halves = 0;
  bench_->device().copy_to_host(&halves, found, sizeof halves);
  return halves;
}

std::uint64_t BackwardCase::unwritten() { return 2 * poisoned(false); }

std::optional<std::string> BackwardCase::damage() {
  if (poisoned(true) != 2 * kGuardWords * kOutputs.size()) return "memory behind dQ, dK or dV was written";
  return {};
}

std::uint64_t BackwardCase::bytes() const {
  std::uint64_t all = bytes_of(problem_) + d_lse_.size();
  for (const auto& gradients : exact_)
    for (const Exact& exact : gradients) all += exact.bytes();
  return all;
}

}  // namespace attune::tuner
