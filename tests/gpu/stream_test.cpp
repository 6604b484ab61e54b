// Streams, graphs and workspaces.
#include "tests/gpu/graph.h"

namespace attune::gpu {
namespace {

Problem problem() {
  return {.head_dim = 128,
          .head_dim_v = 128,
          .heads = 16,
          .heads_kv = 16,
          .causal = true,
          .batch = 2,
          .seqlen_q = 1500,
          .seqlen_k = 1500};
}

// A dynamic grid, which counts tiles in a workspace; the plain one has none.
Plan dynamic_plan(Runtime& runtime) { return runtime.plan(problem(), {.config = "grid=dynamic"}); }

TEST_CASE("streams: a captured launch is replayed, also on another stream") {
  for (const char* config : {"", "grid=dynamic"}) {
    const Plan plan = shared_runtime().plan(problem(), {.config = config});
    StreamOwner a, b;
    Attention attention(problem());
    ForwardArgs args = attention.args();
    args.stream = a.stream;
    const Graph graph(a.stream, [&] {
      plan.launch(args);
      plan.launch(args);
    });
    for (const runtime::Stream stream : {a.stream, b.stream, a.stream}) {
      attention.poison();
      graph.launch(stream);
      device()->synchronize();
      const Difference d = attention.compare({.first = 0, .step = 7});
      CHECK(d.max_abs < tolerance(problem().dtype).max_abs);
      CHECK(d.lse < tolerance(problem().dtype).lse);
    }
  }
}

TEST_CASE("streams: two replays of one captured graph and eager launches at once") {
  const Plan plan = dynamic_plan(shared_runtime());
  StreamOwner a, b, c;
  Attention first(problem(), {.seed = 1}), second(problem(), {.seed = 2}), third(problem(), {.seed = 3});
  ForwardArgs x = first.args(), y = second.args(), z = third.args();
  x.stream = a.stream;
  y.stream = b.stream;
  z.stream = c.stream;
  const Graph graph_x(a.stream, [&] { plan.launch(x); });
  const Graph graph_y(b.stream, [&] { plan.launch(y); });
  for (int i = 0; i < 20; ++i) {
    graph_x.launch(a.stream);
    graph_y.launch(b.stream);
    plan.launch(z);
  }
  device()->synchronize();
  for (const Attention* attention : {&first, &second, &third}) {
    CHECK(attention->compare({.first = 0, .step = 7}).max_abs < tolerance(problem().dtype).max_abs);
  }
}

TEST_CASE("streams: many launches on several streams at once, dynamic grid") {
  const Plan plan = dynamic_plan(shared_runtime());
  std::vector<std::unique_ptr<StreamOwner>> streams;
  std::vector<std::unique_ptr<Attention>> cases;
  for (unsigned i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<StreamOwner>());
    cases.push_back(std::make_unique<Attention>(problem(), Attention::Options{.seed = i + 1}));
  }
  for (int round = 0; round < 25; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      ForwardArgs args = cases[i]->args();
      args.stream = streams[i]->stream;
      plan.launch(args);
    }
  }
  device()->synchronize();
  for (const auto& attention : cases) {
    CHECK(attention->compare({.first = 0, .step = 7}).max_abs < tolerance(problem().dtype).max_abs);
  }
}

TEST_CASE("streams: a workspace of the caller's is left zero") {
  const Plan plan = dynamic_plan(shared_runtime());
  REQUIRE(plan.workspace_bytes() == 8);
  runtime::DeviceBuffer workspace(*device(), 64);
  device()->fill8(workspace.data(), 0, 64, nullptr);
  device()->synchronize();
  Attention attention(problem());
  ForwardArgs args = attention.args();
  args.workspace = workspace.data();
  args.workspace_bytes = 8;
  for (int i = 0; i < 3; ++i) plan.launch(args);
  device()->synchronize();
  std::uint64_t words[8];
  device()->copy_to_host(words, workspace.data(), 64);
  for (const std::uint64_t word : words) CHECK(word == 0);
  CHECK(attention.compare({.first = 0, .step = 7}).max_abs < tolerance(problem().dtype).max_abs);
}

TEST_CASE("streams: under capture an unprepared plan is refused, and the capture goes on") {
  Runtime fresh(quiet_options(), device());
  StreamOwner owner;
  Attention attention(problem());
  ForwardArgs args = attention.args();
  args.stream = owner.stream;
  const Plan ready = fresh.plan(problem());
  Problem other = problem();
  other.seqlen_k = 1499;
  ErrorCode code = ErrorCode::internal;
  const Graph graph(owner.stream, [&] {
    try {
      fresh.plan(other, {.stream = owner.stream});
    } catch (const Error& error) {
      code = error.code();
    }
    fresh.plan(problem(), {.stream = owner.stream}).launch(args);
  });
  CHECK(code == ErrorCode::not_prepared);
  graph.launch(owner.stream);
  device()->synchronize();
  CHECK(attention.compare({.first = 0, .step = 7}).max_abs < tolerance(problem().dtype).max_abs);
}

TEST_CASE("streams: loading a kernel does not break another thread's capture") {
  Runtime fresh(quiet_options(), device());
  StreamOwner owner;
  Attention attention(problem());
  ForwardArgs args = attention.args();
  args.stream = owner.stream;
  const Plan plan = shared_runtime().plan(problem());
  Problem other = problem();
  other.seqlen_q = 100;
  const Graph graph(owner.stream, [&] {
    fresh.plan(other);  // says nothing about the stream, as another thread would
    plan.launch(args);
  });
  graph.launch(owner.stream);
  device()->synchronize();
  CHECK(attention.compare({.first = 0, .step = 7}).max_abs < tolerance(problem().dtype).max_abs);
}

}  // namespace
}  // namespace attune::gpu
