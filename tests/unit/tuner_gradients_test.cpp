// The bounds of gradients: what passes, and what is found.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "runtime/element.h"
#include "tuner/measure/gradient_accuracy.h"

namespace attune::tuner {
namespace {

constexpr int kColumns = 64;

// Gradients as a kernel gets them right: what is rounded on the way is off by some 0.2%, the result is rounded.
GradientRows right(DType dtype = DType::bf16, std::size_t rows = 100) {
  GradientRows g{.name = "dQ",
                 .dtype = dtype,
                 .columns = kColumns,
                 .got = {},
                 .exact = {},
                 .kernels = {},
                 .alone = std::vector<bool>(rows)};
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < rows * kColumns; ++i) {
    g.exact.push_back(normal(random));
    g.kernels.push_back(g.exact.back() * (1 + 2e-3 * normal(random)));
    const double got = g.kernels.back() + 1e-6 * normal(random);
    g.got.push_back(static_cast<double>(runtime::to_float(dtype, runtime::to_element(dtype, static_cast<float>(got)))));
  }
  return g;
}

TEST_CASE("gradients: errors like those of the unavoidable roundings pass") {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const GradientError error = compare(sums_of(right(dtype)), {});
    CHECK(error.wrong.value_or("") == "");
    CHECK(error.rel_l2 == doctest::Approx(error.usual_l2).epsilon(0.05));
    CHECK(error.share == doctest::Approx(0.5).epsilon(0.1));
  }
}

TEST_CASE("gradients: what is wrong everywhere, in a row, or not a number") {
  GradientRows g = right();
  for (double& value : g.got) value *= 1.02;
  CHECK(compare(sums_of(g), {}).wrong.value_or("").starts_with("error of dQ: "));

  g = right(DType::bf16, 1000);  // too many rows for one of them to show in the whole
  for (std::size_t i = 7 * kColumns; i < 8 * kColumns; ++i) g.got[i] *= 0.95;
  CHECK(compare(sums_of(g), {}).wrong.value_or("").starts_with("error of a row of dQ: "));

  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    g = right();
    g.got[1234] = bad;
    const GradientError error = compare(sums_of(g), {});
    CHECK(error.wrong.value_or("").starts_with("dQ: not a number"));
    CHECK(error.share > 1);
  }
}

TEST_CASE("gradients: rows that must be zero") {
  Problem p{.op = Op::backward, .heads = 4, .heads_kv = 2, .causal = true, .batch = 1, .seqlen_q = 5, .seqlen_k = 3};
  const std::vector<bool> queries = alone_of_queries(p, {});
  REQUIRE(queries.size() == 20);
  for (std::size_t i = 0; i < queries.size(); ++i) CHECK(queries[i] == (i % 5 < 2));
  CHECK(alone_of_queries(p, {.first = 1, .step = 2}) ==
        std::vector<bool>{true, false, true, false, true, false, true, false});
  CHECK(alone_of_keys(p, {}) == std::vector<bool>(6, false));
  p.seqlen_q = 0;
  CHECK(alone_of_keys(p, {.first = 0, .step = 1, .count = 2}) == std::vector<bool>(4, true));
  p.seqlen_q = 5, p.seqlen_k = 0, p.causal = false;
  CHECK(alone_of_queries(p, {}) == std::vector<bool>(20, true));
}

TEST_CASE("gradients: where nothing contributes there must be zeros, and where all cancels nearly so") {
  GradientRows g = right();
  for (std::size_t i = 0; i < kColumns; ++i) g.got[i] = g.exact[i] = g.kernels[i] = 0;
  g.alone[0] = true;
  CHECK(compare(sums_of(g), {}).wrong.value_or("") == "");
  g.got[3] = 1e-7;
  CHECK(compare(sums_of(g), {}).wrong.has_value());

  // Exactly 0, but of terms that are not: float32 leaves a little.
  g.alone[0] = false;
  for (std::size_t i = 0; i < g.exact.size(); ++i) {
    g.exact[i] = 0;
    g.kernels[i] = 1e-12;
    g.got[i] = 3e-6;
  }
  CHECK(compare(sums_of(g), {}).wrong.value_or("") == "");
  for (double& value : g.got) value = 3e-4;
  CHECK(compare(sums_of(g), {}).wrong.has_value());
  CHECK(compare(sums_of(g), {.amplitude = 100}).wrong.value_or("") == "");
}

TEST_CASE("gradients: bounds grow with what the scores are made of") {
  const Problem problem{.op = Op::backward, .head_dim = 128};
  const GradientBounds plain = gradient_bounds(problem, {.name = "plain"});
  const GradientBounds wide = gradient_bounds(problem, {.name = "wide", .sd = 30});
  const GradientBounds shifted = gradient_bounds(problem, {.name = "shifted", .shift = 40});
  CHECK(plain.d_q.score < wide.d_q.score);
  CHECK(plain.d_k.amplitude == 1);
  CHECK(wide.d_k.amplitude == 30);
  CHECK(wide.d_q.amplitude == 1);
  CHECK(shifted.d_q.amplitude > 100);
  CHECK(shifted.d_v.amplitude == 1);
}

TEST_CASE("gradients: a judgement of three tensors names the first that is wrong and keeps every error") {
  GradientCase all{right(), right(), right()};
  all.d_k.name = "dK";
  all.d_v.name = "dV";
  for (double& value : all.d_k.got) value *= 1.05;
  for (double& value : all.d_v.got) value *= 1.1;
  const CaseResult result = judge(all, {});
  CHECK(result.accuracy.op == Op::backward);
  CHECK(result.wrong.value_or("").starts_with("error of dK: "));
  CHECK(result.accuracy.dk_rel_l2 == doctest::Approx(0.05).epsilon(0.02));
  CHECK(result.accuracy.dv_rel_l2 == doctest::Approx(0.1).epsilon(0.02));
  CHECK(result.accuracy.dq_usual_l2 < 0.005);
  CHECK(result.share_of_bounds > 10);
  CHECK(result.accuracy.rows == 300);
}

}  // namespace
}  // namespace attune::tuner
