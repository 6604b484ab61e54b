#include "tuner/measure/backward_case.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "runtime/element.h"

namespace attune::tuner {
namespace {

using runtime::GradientRounding;
using runtime::GradientStatistics;
using runtime::Operand;

constexpr std::uint64_t kGuardWords = 16384;  // more than a tile
constexpr std::array kOutputs{Operand::d_q, Operand::d_k, Operand::d_v};

std::uint64_t elements_of(const Problem& p, Operand operand) {
  const runtime::TensorShape s = runtime::shape_of(p, operand);
  return static_cast<std::uint64_t>(s.batch) * static_cast<std::uint64_t>(s.heads) *
         static_cast<std::uint64_t>(s.rows) * static_cast<std::uint64_t>(s.head_dim);
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
      exact_.push_back(exact_of({queries[std::min(i, queries.size() - 1)], keys[std::min(i, keys.size() - 1)]},
                                GradientStatistics::given));
    }
    return;
  }
  attend();
  fill_d_lse();
  exact_.push_back(exact_of({}, GradientStatistics::computed));
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

std::vector<double> BackwardCase::exact_rows(const runtime::DeviceBuffer& values) const {
  std::vector<double> host(values.size() / sizeof(double));
  if (!host.empty()) bench_->device().copy_to_host(host.data(), values.data(), values.size());
  return host;
}

BackwardCase::Exact BackwardCase::exact_of(const runtime::GradientSample& sample, GradientStatistics statistics) {
  const Problem& p = problem_;
  const std::int64_t pairs = p.batch * p.heads, pairs_kv = p.batch * p.heads_kv;
  const std::int64_t queries = runtime::rows_of("queries", p.seqlen_q, sample.queries),
                     keys = runtime::rows_of("keys", p.seqlen_k, sample.keys);
  runtime::Device& device = bench_->device();
  const auto buffer = [&](std::int64_t rows, int columns) {
    return runtime::DeviceBuffer(device, static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 8);
  };
  const runtime::DeviceBuffer d_q = buffer(pairs * queries, p.head_dim), d_k = buffer(pairs_kv * keys, p.head_dim),
                              d_v = buffer(pairs_kv * keys, p.head_dim_v);
  BackwardArgs inputs = args();
  inputs.workspace_bytes = runtime::ReferenceBackward::workspace_bytes(p);
  inputs.workspace = bench_->workspace(inputs.workspace_bytes);
  Exact exact{sample, {}};
  GradientCase& g = exact.gradients;
  g.d_q = {.name = "dQ", .dtype = p.dtype, .columns = p.head_dim, .alone = lonely_queries(p, sample.queries)};
  g.d_k = {.name = "dK", .dtype = p.dtype, .columns = p.head_dim, .alone = lonely_keys(p, sample.keys)};
  g.d_v = {.name = "dV", .dtype = p.dtype, .columns = p.head_dim_v, .alone = g.d_k.alone};
  for (const GradientRounding rounding : {GradientRounding::none, GradientRounding::kernels}) {
    bench_->backward_reference(p).launch(p, inputs, sample, rounding, statistics,
                                         {.dq_exact = static_cast<double*>(d_q.data()),
                                          .dk_exact = static_cast<double*>(d_k.data()),
                                          .dv_exact = static_cast<double*>(d_v.data())});
    bench_->wait();
    const bool rounded = rounding == GradientRounding::kernels;
    (rounded ? g.d_q.kernels : g.d_q.exact) = exact_rows(d_q);
    (rounded ? g.d_k.kernels : g.d_k.exact) = exact_rows(d_k);
    (rounded ? g.d_v.kernels : g.d_v.exact) = exact_rows(d_v);
  }
  return exact;
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

// Row by row: a gradient of full size may be larger than what the host has to spare, and few of its rows are looked at.
std::vector<double> BackwardCase::written_rows(Operand operand, const runtime::RowSample& sample) const {
  const runtime::TensorShape s = runtime::shape_of(problem_, operand);
  const Strides strides = runtime::default_strides(problem_, operand);
  const std::int64_t rows = runtime::rows_of(runtime::to_string(operand), s.rows, sample);
  const auto* const memory = static_cast<const std::uint16_t*>(data(operand));
  std::vector<std::uint16_t> row(static_cast<std::size_t>(s.head_dim));
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(s.batch * s.heads * rows) * row.size());
  for (std::int64_t batch = 0; batch < s.batch; ++batch)
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t at =
            batch * strides.batch + head * strides.head + (sample.first + i * sample.step) * strides.row;
        bench_->device().copy_to_host(row.data(), memory + at, 2 * row.size());
        for (const std::uint16_t bits : row)
          values.push_back(static_cast<double>(runtime::to_float(problem_.dtype, bits)));
      }
  return values;
}

CaseResult BackwardCase::compare() {
  bench_->wait();
  CaseResult all;
  all.accuracy.op = Op::backward;
  for (Exact& exact : exact_) {
    GradientCase& g = exact.gradients;
    g.d_q.got = written_rows(Operand::d_q, exact.sample.queries);
    g.d_k.got = written_rows(Operand::d_k, exact.sample.keys);
    g.d_v.got = written_rows(Operand::d_v, exact.sample.keys);
    const CaseResult result = judge(g, bounds_);
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

std::uint64_t BackwardCase::bytes() const { return bytes_of(problem_) + d_lse_.size(); }

}  // namespace attune::tuner
