// The C interface from end to end.
#include <attune/attune_c.h>

#include <array>

#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

std::string text_of(const attune_plan* plan, attune_info what) {
  std::size_t length = 0;
  REQUIRE(attune_plan_info(plan, what, nullptr, 0, &length) == ATTUNE_OK);
  std::vector<char> text(length + 1);
  REQUIRE(attune_plan_info(plan, what, text.data(), text.size(), nullptr) == ATTUNE_OK);
  return text.data();
}

TEST_CASE("C: plan, launch, describe, override") {
  const Problem problem{.head_dim = 64,
                        .head_dim_v = 64,
                        .heads = 4,
                        .heads_kv = 2,
                        .causal = true,
                        .batch = 2,
                        .seqlen_q = 200,
                        .seqlen_k = 300};
  Attention attention(problem);

  attune_runtime_options options;
  ATTUNE_INIT_RUNTIME_OPTIONS(&options);
  options.use_cache = 0;
  options.on_warning = [](const char*, void* count) { ++*static_cast<int*>(count); };
  int warnings = 0;
  options.on_warning_user = &warnings;
  attune_runtime* runtime = nullptr;
  REQUIRE_MESSAGE(attune_runtime_create(&options, &runtime) == ATTUNE_OK, std::string(attune_last_error()));

  attune_problem c;
  ATTUNE_INIT_PROBLEM(&c);
  c.head_dim = 64;
  c.heads = 4;
  c.heads_kv = 2;
  c.causal = 1;
  c.batch = 2;
  c.seqlen_q = 200;
  c.seqlen_k = 300;
  attune_plan* plan = nullptr;
  REQUIRE_MESSAGE(attune_plan_create(runtime, &c, nullptr, &plan) == ATTUNE_OK, std::string(attune_last_error()));
  CHECK(warnings == 1);
  CHECK(text_of(plan, ATTUNE_INFO_PROBLEM) == to_string(problem));
  CHECK(text_of(plan, ATTUNE_INFO_ORIGIN) == "heuristic");
  CHECK(nlohmann::json::parse(text_of(plan, ATTUNE_INFO_JSON))["threads"].get<int>() >= 128);
  std::array<char, 5> cut{};
  CHECK(attune_plan_info(plan, ATTUNE_INFO_ORIGIN, cut.data(), cut.size(), nullptr) == ATTUNE_OK);
  CHECK(std::string(cut.data()) == "heur");

  attune_forward_args args;
  ATTUNE_INIT_FORWARD_ARGS(&args);
  args.q = attention.args().q;
  args.k = attention.args().k;
  args.v = attention.args().v;
  args.o = attention.args().o;
  args.lse = attention.args().lse;
  REQUIRE_MESSAGE(attune_plan_launch(plan, &args) == ATTUNE_OK, std::string(attune_last_error()));
  const Difference d = attention.compare();
  CHECK(d.max_abs < tolerance(problem.dtype).max_abs);
  CHECK(d.lse < tolerance(problem.dtype).lse);

  args.k = nullptr;
  CHECK(attune_plan_launch(plan, &args) == ATTUNE_INVALID_ARGUMENT);
  CHECK(std::string(attune_last_error()).starts_with("k: null"));

  attune_plan* other = nullptr;
  REQUIRE_MESSAGE(attune_plan_with_config(runtime, &c, text_of(plan, ATTUNE_INFO_CONFIG).c_str(), &other) == ATTUNE_OK,
                  std::string(attune_last_error()));
  CHECK(text_of(other, ATTUNE_INFO_ORIGIN) == "override");
  CHECK(text_of(other, ATTUNE_INFO_CONFIG) == text_of(plan, ATTUNE_INFO_CONFIG));
  attune_plan_destroy(other);
  attune_runtime_destroy(runtime);

  // A plan outlives its runtime.
  args.k = attention.args().k;
  attention.poison();
  CHECK(attune_plan_launch(plan, &args) == ATTUNE_OK);
  CHECK(attention.compare().max_abs < tolerance(problem.dtype).max_abs);
  attune_plan_destroy(plan);
}

}  // namespace
}  // namespace attune::gpu
