#include <doctest/doctest.h>

#include <attune/attune.h>
#include <attune/attune_c.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/driver.h"

namespace attune {
namespace {

std::string last() { return attune_last_error(); }

TEST_CASE("C: version and status names") {
  CHECK(std::string(attune_version()) == version());
  CHECK(std::string(attune_status_name(ATTUNE_OK)) == "ok");
  CHECK(std::string(attune_status_name(ATTUNE_INVALID_ARGUMENT)) == "invalid_argument");
  CHECK(std::string(attune_status_name(ATTUNE_INTERNAL)) == "internal");
  CHECK(std::string(attune_status_name(static_cast<attune_status>(99))) == "unknown");
}

TEST_CASE("C: structs get defaults and their size") {
  attune_problem problem;
  std::memset(&problem, 0xff, sizeof problem);
  ATTUNE_INIT_PROBLEM(&problem);
  CHECK(problem.struct_size == sizeof problem);
  CHECK(problem.head_dim == 128);
  CHECK(problem.head_dim_v == 0);
  CHECK(problem.op == ATTUNE_FORWARD);
  CHECK(problem.deterministic == 0);
  CHECK(problem.scores == ATTUNE_SCORES_ANY);
  attune_runtime_options options;
  ATTUNE_INIT_RUNTIME_OPTIONS(&options);
  CHECK(options.device == -1);
  CHECK(options.use_cache == 1);
  CHECK(options.allow_compiler == 1);
  attune_plan_options plan_options;
  ATTUNE_INIT_PLAN_OPTIONS(&plan_options);
  CHECK(plan_options.tune_seconds > 0);
  CHECK(plan_options.pinned == 0);
  attune_forward_args args;
  ATTUNE_INIT_FORWARD_ARGS(&args);
  CHECK(args.workspace == nullptr);
  attune_backward_args backward;
  std::memset(&backward, 0xff, sizeof backward);
  ATTUNE_INIT_BACKWARD_ARGS(&backward);
  CHECK(backward.struct_size == sizeof backward);
  CHECK(backward.d_lse == nullptr);
  CHECK(backward.d_v_strides.row == 0);
  CHECK(backward.workspace_bytes == 0);
  CHECK(backward.reserved == 0);
}

TEST_CASE("C: a problem of a caller that knows no backward pass keeps its layout") {
  CHECK(offsetof(attune_problem, causal) == 32);
  CHECK(offsetof(attune_problem, op) == 36);  // was reserved, and so zero: forward
  CHECK(offsetof(attune_problem, seqlen_k) == 56);
  CHECK(offsetof(attune_problem, deterministic) == 64);  // where the older struct ended
  attune_problem older;
  std::memset(&older, 0xff, sizeof older);
  attune_problem_init(&older, offsetof(attune_problem, deterministic));
  CHECK(older.struct_size == 64);
  CHECK(older.op == ATTUNE_FORWARD);
  CHECK(older.deterministic == -1);  // not the caller's, so not touched
}

TEST_CASE("C: a newer caller's larger struct is filled with zeros behind what we know") {
  struct Newer {
    attune_problem problem;
    std::int64_t later[2];
  } newer;
  std::memset(&newer, 0xff, sizeof newer);
  attune_problem_init(&newer.problem, sizeof newer);
  CHECK(newer.problem.struct_size == sizeof newer);
  CHECK(newer.later[0] == 0);
  CHECK(newer.later[1] == 0);
}

TEST_CASE("C: null arguments are named") {
  CHECK(attune_runtime_create(nullptr, nullptr) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "runtime: null");
  attune_plan* plan = nullptr;
  attune_problem problem;
  ATTUNE_INIT_PROBLEM(&problem);
  CHECK(attune_plan_create(nullptr, &problem, nullptr, &plan) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "runtime: null");
  CHECK(attune_plan_create(nullptr, &problem, nullptr, nullptr) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "plan: null");
  CHECK(attune_plan_with_config(nullptr, &problem, nullptr, &plan) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "config: null");
  CHECK(attune_plan_with_config(nullptr, &problem, "", &plan) == ATTUNE_INVALID_ARGUMENT);
  CHECK(attune_plan_launch(nullptr, nullptr) == ATTUNE_INVALID_ARGUMENT);
  CHECK(attune_plan_launch_backward(nullptr, nullptr) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "plan: null");
  std::size_t bytes = 0;
  CHECK(attune_plan_workspace_bytes(nullptr, &bytes) == ATTUNE_INVALID_ARGUMENT);
  CHECK(attune_plan_info(nullptr, ATTUNE_INFO_CONFIG, nullptr, 0, nullptr) == ATTUNE_INVALID_ARGUMENT);
  attune_runtime_destroy(nullptr);
  attune_plan_destroy(nullptr);
}

TEST_CASE("C: sizes that no caller can have are refused") {
  attune_runtime* runtime = nullptr;
  attune_runtime_options options;
  ATTUNE_INIT_RUNTIME_OPTIONS(&options);
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{1} << 40}) {
    options.struct_size = size;
    CHECK(attune_runtime_create(&options, &runtime) == ATTUNE_INVALID_ARGUMENT);
    CHECK(last().starts_with("options.struct_size: " + std::to_string(size)));
  }
  std::vector<char> large(sizeof options + 8, '\0');
  auto* newer = reinterpret_cast<attune_runtime_options*>(large.data());
  attune_runtime_options_init(newer, large.size());
  large.back() = 1;
  CHECK(attune_runtime_create(newer, &runtime) == ATTUNE_UNSUPPORTED);
}

TEST_CASE("C: fields out of range are named") {
  attune_runtime* runtime = nullptr;
  attune_runtime_options options;
  ATTUNE_INIT_RUNTIME_OPTIONS(&options);
  options.use_cache = 2;
  CHECK(attune_runtime_create(&options, &runtime) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "use_cache: 2 (allowed: 0 to 1)");
  options.use_cache = 0;
  options.pack_count = 1;
  CHECK(attune_runtime_create(&options, &runtime) == ATTUNE_INVALID_ARGUMENT);
  CHECK(last() == "packs: null");
}

TEST_CASE("C: without a GPU the status says so") {
  if (runtime::Driver::available()) return;
  attune_runtime* runtime = reinterpret_cast<attune_runtime*>(8);
  CHECK(attune_runtime_create(nullptr, &runtime) == ATTUNE_NO_DEVICE);
  CHECK(runtime == nullptr);
  CHECK(last().starts_with("CUDA driver: "));
}

TEST_CASE("C: the last error is the thread's own") {
  CHECK(attune_runtime_create(nullptr, nullptr) == ATTUNE_INVALID_ARGUMENT);
  std::string other = "?";
  std::thread([&] { other = last(); }).join();
  CHECK(other.empty());
  CHECK(last() == "runtime: null");
}

}  // namespace
}  // namespace attune
