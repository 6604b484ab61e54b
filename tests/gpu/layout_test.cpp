// Strides that callers have: other layouts, padding, Q, K and V packed into one tensor. The gaps hold NaN.
#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

Problem problem(bool causal) {
  return {.head_dim = 72,
          .head_dim_v = 40,
          .heads = 6,
          .heads_kv = 2,
          .causal = causal,
          .batch = 3,
          .seqlen_q = 150,
          .seqlen_k = 333};
}

TEST_CASE("layout: rows, heads and batches with padding") {
  for (const bool causal : {false, true}) {
    const Problem p = problem(causal);
    Attention::Options options;
    options.q = {.batch = 150 * 6 * 80 + 24, .head = 80, .row = 6 * 80 + 8};
    options.q.batch = 150 * options.q.row + 24;
    options.k = {.batch = 333 * 2 * 72 + 2 * 64, .head = 333 * 72 + 64, .row = 72};
    options.v = {.batch = 2 * 400 * 48, .head = 400 * 48, .row = 48};
    options.o = {.batch = 6 * 160 * 48, .head = 160 * 48, .row = 48};
    Attention attention(p, options);
    check_right(shared_runtime().plan(p), attention);
  }
}

TEST_CASE("layout: sequence outermost, [S, B, H, D]") {
  const Problem p = problem(true);
  Attention::Options options;
  options.q = {.batch = 6 * 72, .head = 72, .row = 3 * 6 * 72};
  options.k = {.batch = 2 * 72, .head = 72, .row = 3 * 2 * 72};
  options.v = {.batch = 2 * 40, .head = 40, .row = 3 * 2 * 40};
  options.o = {.batch = 6 * 40, .head = 40, .row = 3 * 6 * 40};
  Attention attention(p, options);
  check_right(shared_runtime().plan(p), attention);
}

TEST_CASE("layout: launches with changing strides") {
  const Problem p = problem(false);
  const Plan plan = shared_runtime().plan(p);
  Attention dense(p);
  Attention padded(p, {.seed = 9, .q = {.batch = 150 * 6 * 96, .head = 96, .row = 6 * 96}});
  for (int i = 0; i < 3; ++i) {
    check_right(plan, dense);
    check_right(plan, padded);
  }
}

TEST_CASE("layout: Q, K and V in one tensor [B, S, 3, H, D]") {
  const std::int64_t s = 260, h = 4, d = 64;
  const Problem p{.head_dim = 64,
                  .head_dim_v = 64,
                  .heads = 4,
                  .heads_kv = 4,
                  .causal = true,
                  .batch = 2,
                  .seqlen_q = s,
                  .seqlen_k = s};
  const Strides packed{.batch = s * 3 * h * d, .head = d, .row = 3 * h * d};
  // The tensors of a case with these strides, then copied to their places in one buffer.
  Attention attention(p, {.q = packed, .k = packed, .v = packed});
  runtime::DeviceBuffer together(*device(), static_cast<std::size_t>(2 * packed.batch) * 2);
  ForwardArgs args = attention.args();
  std::vector<std::uint16_t> mixed(static_cast<std::size_t>(2 * packed.batch), kPoison);
  const void* parts[] = {args.q, args.k, args.v};
  for (int part = 0; part < 3; ++part) {
    const std::size_t count = static_cast<std::size_t>(packed.batch + (s - 1) * packed.row + h * d);
    std::vector<std::uint16_t> one(count);
    device()->copy_to_host(one.data(), parts[part], count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      if (one[i] != kPoison) mixed[i + static_cast<std::size_t>(part * h * d)] = one[i];
    }
  }
  device()->copy_to_device(together.data(), mixed.data(), mixed.size() * 2);
  args.q = together.data();
  args.k = static_cast<std::uint16_t*>(together.data()) + h * d;
  args.v = static_cast<std::uint16_t*>(together.data()) + 2 * h * d;
  shared_runtime().plan(p).launch(args);
  const Difference difference = attention.compare();
  CHECK(difference.max_abs < tolerance(p.dtype).max_abs);
  CHECK(difference.lse < tolerance(p.dtype).lse);
}

TEST_CASE("layout: offsets beyond 2^31 elements") {
  // Two sequences, the second one 5 GB behind the first.
  const Problem p{
      .head_dim = 128, .head_dim_v = 128, .heads = 2, .heads_kv = 2, .batch = 2, .seqlen_q = 300, .seqlen_k = 300};
  const std::int64_t far = (1ll << 31) + 4096;
  Attention dense(p);
  const Plan plan = shared_runtime().plan(p);
  plan.launch(dense.args());
  const auto expected = dense.output();

  const std::size_t sequence = 300 * 2 * 128;
  runtime::DeviceBuffer q(*device(), (far + sequence) * 2), k(*device(), (far + sequence) * 2),
      v(*device(), (far + sequence) * 2), o(*device(), (far + sequence) * 2);
  ForwardArgs args = dense.args();
  const auto scatter = [&](const runtime::DeviceBuffer& to, const void* from) {
    for (int b = 0; b < 2; ++b) {
      device()->copy_on_device(static_cast<std::uint16_t*>(to.data()) + b * far,
                               static_cast<const std::uint16_t*>(from) + b * sequence, sequence * 2, nullptr);
    }
    return to.data();
  };
  args.q = scatter(q, dense.args().q);
  args.k = scatter(k, dense.args().k);
  args.v = scatter(v, dense.args().v);
  args.o = o.data();
  args.q_strides = args.k_strides = args.v_strides = args.o_strides = {.batch = far, .head = 128, .row = 256};
  device()->synchronize();
  plan.launch(args);
  device()->synchronize();
  for (int b = 0; b < 2; ++b) {
    std::vector<std::uint16_t> got(sequence);
    device()->copy_to_host(got.data(), static_cast<std::uint16_t*>(o.data()) + b * far, sequence * 2);
    CHECK(std::equal(got.begin(), got.end(), expected.begin() + static_cast<std::ptrdiff_t>(b * sequence)));
  }
}

}  // namespace
}  // namespace attune::gpu
