// Nothing to attend to, nothing to compute, bad pointers.
#include <thread>

#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

Problem problem(bool causal, std::int64_t seqlen_q, std::int64_t seqlen_k, int head_dim = 64) {
  return {.head_dim = head_dim,
          .head_dim_v = head_dim,
          .heads = 4,
          .heads_kv = 2,
          .causal = causal,
          .batch = 2,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k};
}

TEST_CASE("edge: no keys give O = 0 and LSE = -inf") {
  for (const bool causal : {false, true}) {
    for (const std::int64_t rows : {1, 128, 200}) {
      for (const int head_dim : {64, 128, 256}) {
        const Problem p = problem(causal, rows, 0, head_dim);
        CAPTURE(to_string(p));
        Attention attention(p);
        const Difference d = check_right(shared_runtime().plan(p, {.pinned = true}), attention);
        CHECK(d.max_abs == 0);
        CHECK(d.lse == 0);
      }
    }
  }
}

TEST_CASE("edge: no keys, K and V null") {
  const Problem p = problem(false, 100, 0);
  Attention attention(p);
  ForwardArgs args = attention.args();
  args.k = args.v = nullptr;
  shared_runtime().plan(p).launch(args);
  CHECK(attention.compare().max_abs == 0);
}

TEST_CASE("edge: no queries or no sequences launch nothing") {
  Problem p = problem(true, 0, 100);
  shared_runtime().plan(p).launch({});
  p = problem(true, 100, 100);
  p.batch = 0;
  shared_runtime().plan(p).launch({});
  device()->synchronize();
}

TEST_CASE("edge: rows that the causal mask leaves without a key") {
  for (const auto& [q, k] : {std::pair<std::int64_t, std::int64_t>{300, 100}, {129, 128}, {1000, 1}, {640, 128}}) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem p = problem(true, q, k, head_dim);
      CAPTURE(to_string(p));
      Attention attention(p);
      check_right(shared_runtime().plan(p), attention);
    }
  }
}

TEST_CASE("edge: one query on many keys, many queries on one key") {
  for (const auto& [q, k] : {std::pair<std::int64_t, std::int64_t>{1, 5000}, {5000, 1}, {2, 4096}}) {
    Attention attention(problem(true, q, k, 128));
    check_right(shared_runtime().plan(attention.problem()), attention);
  }
}

std::string refusal(const Plan& plan, const ForwardArgs& args) {
  try {
    plan.launch(args);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("edge: misaligned and null pointers are refused and leave the device well") {
  const Problem p = problem(false, 100, 100);
  Attention attention(p);
  const Plan plan = shared_runtime().plan(p);
  ForwardArgs args = attention.args();
  args.q = static_cast<const char*>(args.q) + 2;
  CHECK(refusal(plan, args).starts_with("q: address"));
  args = attention.args();
  args.o = nullptr;
  CHECK(refusal(plan, args).starts_with("o: null"));
  args = attention.args();
  args.v_strides = {.batch = 6400, .head = 60, .row = 130};
  CHECK(refusal(plan, args).starts_with("v: the row stride of 130"));
  check_right(plan, attention);
}

TEST_CASE("edge: debug mode finds host pointers and other devices' pointers") {
  RuntimeOptions options = quiet_options();
  options.check_pointers = true;
  Runtime careful(options, device());
  const Problem p = problem(false, 100, 100);
  Attention attention(p);
  const Plan plan = careful.plan(p);
  ForwardArgs args = attention.args();
  alignas(16) static char host[16];
  args.k = host;
  CHECK(refusal(plan, args).find("is host memory (allowed: memory of device") != std::string::npos);

  if (runtime::list_devices().size() > 1) {
    const int other = device()->properties().ordinal == 0 ? 1 : 0;
    const auto second = runtime::open_device(other);
    const runtime::DeviceBuffer memory(*second, 1 << 20);
    args.k = memory.data();
    CHECK(refusal(plan, args).find("is another device's memory") != std::string::npos);
  } else {
    MESSAGE("one GPU only: another device's pointer was not tried");
  }
  check_right(plan, attention);
}

TEST_CASE("edge: a thread without a context may launch") {
  const Problem p = problem(true, 100, 100);
  Attention attention(p);
  const Plan plan = shared_runtime().plan(p);
  std::string failure;
  std::thread([&] {
    const auto& driver = runtime::Driver::get();
    driver.cuCtxSetCurrent(nullptr);
    try {
      plan.launch(attention.args());
    } catch (const Error& error) {
      failure = error.what();
    }
  }).join();
  CHECK(failure == "");
  CHECK(attention.compare().max_abs < tolerance(p.dtype).max_abs);
}

}  // namespace
}  // namespace attune::gpu
