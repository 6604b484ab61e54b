// Configs across the search space, not the heuristic's alone: whatever the tuner may crown must be right.
#include <set>

#include "codegen/schedule.h"
#include "codegen/space.h"
#include "runtime/compiler.h"
#include "runtime/plan_state.h"
#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

// Configs spread over the space, and each value of each tunable at least once where the space has it.
std::vector<codegen::Config> spread(const std::vector<codegen::Config>& all, std::size_t count) {
  std::vector<codegen::Config> picked;
  std::set<std::string> kernels, values;
  for (const codegen::Config& config : all) {
    bool fresh = false;
    const std::string text = codegen::kernel_part(config);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      fresh = values.insert(text.substr(at, end - at)).second || fresh;
      at = end + 1;
    }
    if (fresh && kernels.insert(text).second) picked.push_back(config);
  }
  for (std::size_t i = 0; i < count && !all.empty(); ++i) {
    const codegen::Config& config = all[i * all.size() / count];
    if (kernels.insert(codegen::kernel_part(config)).second) picked.push_back(config);
  }
  return picked;
}

// Of the candidates with at least so many thread blocks in a cluster.
void check_configs(const Problem& problem, std::size_t count, int cluster = 1) {
  const Arch arch = runtime::arch_of(device()->properties());
  std::vector<codegen::Config> all = codegen::candidates(arch, problem);
  std::erase_if(all, [&](const codegen::Config& config) { return config.cluster < cluster; });
  std::vector<codegen::Config> configs = spread(all, count);
  // Only large problems would have none; some that skip blocks deadlock without.
  for (std::size_t i = 1; i < configs.size(); i += 2) {
    codegen::Config later = configs[i];
    later.early_copies = later.first_turn = false;
    if (codegen::simulate(codegen::specialise(arch, problem, later)).empty()) configs[i] = later;
  }
  REQUIRE(!configs.empty());
  in_parallel(configs.size(), [&](std::size_t i) { builder().build(codegen::specialise(arch, problem, configs[i])); });
  // The second one makes speculation fail, so that the exact path runs.
  Attention usual(problem), wide(problem, {.q_scale = 20});
  const auto context = std::make_shared<runtime::PlanContext>(device());
  int checked = 0, rejected = 0;
  double worst = 0;
  for (const codegen::Config& config : configs) {
    CAPTURE(codegen::to_string(config));
    try {
      const runtime::Build build = builder().build(codegen::specialise(arch, problem, config));
      if (!build.info.rejected.empty()) {
        ++rejected;
        continue;
      }
      const Plan plan = runtime::make_plan(context, problem, runtime::plan_source(build, config, Origin::override));
      worst = std::max(worst, check_right(plan, usual).relative);
      worst = std::max(worst, check_right(plan, wide).relative);
      check_right(plan, usual);  // a counter or a barrier left in another state shows in the next launch
      ++checked;
    } catch (const Error& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
  CHECK(checked > 0);
  report({{"test", "configs"},
          {"problem", to_string(problem)},
          {"cluster", cluster},
          {"checked", checked},
          {"rejected", rejected},
          {"max_relative", worst}});
}

Problem problem(int head_dim, bool causal, std::int64_t seqlen_q, std::int64_t seqlen_k, DType dtype = DType::bf16) {
  return {.dtype = dtype,
          .head_dim = head_dim,
          .head_dim_v = head_dim,
          .heads = 12,
          .heads_kv = 4,
          .causal = causal,
          .batch = 2,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k};
}

TEST_CASE("configs: head dim 64") {
  check_configs(problem(64, false, 1024, 1024), 24);
  check_configs(problem(64, true, 1000, 1100), 24);
}
TEST_CASE("configs: head dim 128") {
  check_configs(problem(128, false, 1024, 1024), 32);
  check_configs(problem(128, true, 1024, 1024), 32);
  check_configs(problem(128, true, 1100, 900), 16);
  check_configs(problem(128, false, 700, 1000, DType::fp16), 16);
}
TEST_CASE("configs: head dim 256") {
  check_configs(problem(256, false, 512, 512), 16);
  check_configs(problem(256, true, 512, 512), 16);
}

// Enough tiles for clusters to be candidates; 9 tiles of 128 rows leave one for half a cluster.
Problem many_tiles(int head_dim, bool causal, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Problem p = problem(head_dim, causal, seqlen_q, seqlen_k);
  p.batch = 4;
  return p;
}
TEST_CASE("configs: clusters, head dim 128") {
  check_configs(many_tiles(128, false, 1100, 1300), 16, 2);
  check_configs(many_tiles(128, true, 1024, 1024), 16, 2);
  check_configs(many_tiles(128, true, 1100, 1300), 8, 2);
}
TEST_CASE("configs: clusters, head dim 256") {
  check_configs(many_tiles(256, false, 1100, 1300), 8, 2);
  check_configs(many_tiles(256, true, 1024, 1024), 8, 2);
  check_configs(many_tiles(256, true, 1300, 1100), 8, 2);
}

// NVRTC keeps what it compiles where there is a driver, but not what ptxas said of it.
TEST_CASE("configs: a kernel is judged by the compiler's log each time it is compiled") {
  const codegen::KernelSpec spec =
      codegen::specialise(runtime::arch_of(device()->properties()), many_tiles(128, true, 1024, 1024),
                          codegen::parse_config("block_n=176,softmax=exact,order=qk_pv,grid=dynamic"));
  const std::string source = codegen::emit(spec).source;
  const auto compile = [&] { return runtime::Compiler::get()->compile(source, codegen::compile_options(spec), false); };
  const runtime::CompileResult first = compile(), second = compile();
  CHECK(first.log.find("registers") != std::string::npos);
  CHECK(second.log.find("registers") != std::string::npos);  // the log as a whole tells the time, too
  CHECK(first.registers > 0);
  CHECK(second.registers == first.registers);
  CHECK(second.cubin == first.cubin);
}

}  // namespace
}  // namespace attune::gpu
