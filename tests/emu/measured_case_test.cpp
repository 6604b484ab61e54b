// The measuring process's cases on the CPU device: right kernels pass, wrong ones do not, whatever is compared.
#include <doctest/doctest.h>

#include "base/error.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/ptx_compiler.h"
#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"
#include "tuner/measure/shape_bench.h"

namespace attune::emulator {
namespace {

struct Fixture {
  std::shared_ptr<runtime::CpuDevice> device = std::make_shared<runtime::CpuDevice>();
  Arch arch = parse_arch("sm_90a");
  Problem problem;
  codegen::KernelSpec spec;
  std::unique_ptr<tuner::Workbench> bench;

  void prepare(const char* text, const char* config) {
    problem = parse_problem(text);
    spec = codegen::specialise(arch, problem, codegen::parse_config(config));
    const auto compiler = tests::ptx_compiler();
    bench = std::make_unique<tuner::Workbench>(
        device, nullptr,
        compiler->compile(std::string(tuner::helpers_source()), tuner::helpers_options(arch.name), false).cubin);
    runtime::Builder builder(cache::Store::memory_only(), [] { return tests::ptx_compiler(); });
    for (const std::string& reference : tuner::reference_specs(arch, problem))
      bench->add_reference(reference, builder.build(codegen::parse_kernel_spec(reference)).cubin);
  }

  std::string code(const std::string& from = "", const std::string& to = "") const {
    std::string source = codegen::emit(spec).source;
    if (!from.empty()) {
      const std::size_t at = source.find(from);
      REQUIRE(at != std::string::npos);
      source.replace(at, from.size(), to);
    }
    return tests::ptx_compiler()->compile(source, codegen::compile_options(spec), false).cubin;
  }

  Plan plan(const std::string& ptx) {
    runtime::PlanSource source;
    source.config = spec.config;
    source.spec = spec;
    source.shape = codegen::launch_shape(spec);
    source.cubin = ptx;
    return runtime::make_plan(bench->plans(), problem, std::move(source));
  }

  tuner::CaseResult judge(const Plan& p, const tuner::Scores& scores, tuner::Compared compared) {
    const auto made = tuner::make_case(*bench, problem, scores, 7, compared);
    made->poison();
    made->launch(p);
    tuner::CaseResult result = made->compare();
    CHECK(made->unwritten() == 0);
    CHECK(made->damage().value_or("") == "");
    return result;
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "measured case: backward") {
  if (!attune::tests::nvrtc()) return;
  prepare("op=backward,head_dim=16,heads=2,heads_kv=1,causal=1,batch=1,seqlen_q=40,seqlen_k=34",
          "family=sm90_backward,block_m=64");
  const Plan right = plan(code());
  // dQ without its scale, in one column of two.
  const Plan wrong = plan(code("x.x * scale, x.y * scale", "x.x * scale, x.y"));
  for (const tuner::Scores& scores : {tuner::Scores{.name = "plain"},
                                      {.name = "sd 30", .sd = 30},
                                      {.name = "shifted", .shift = -12},
                                      {.name = "outliers", .outlier = 50}}) {
    CAPTURE(scores.name);
    const tuner::CaseResult all = judge(right, scores, tuner::Compared::all);
    CHECK(all.wrong.value_or("") == "");
    CHECK(all.accuracy.op == Op::backward);
    CHECK(all.accuracy.rows == 2 * 40 + 2 * 34);
    CHECK(all.share_of_bounds > 0.1);
  }
  CHECK(judge(wrong, {.name = "plain"}, tuner::Compared::all).wrong.value_or("").find("dQ") != std::string::npos);
  const tuner::CaseResult sampled = judge(right, {.name = "plain"}, tuner::Compared::sampled);
  CHECK(sampled.wrong.value_or("") == "");
  CHECK(sampled.accuracy.dq_rel_l2 > 0);
  CHECK(sampled.accuracy.dv_rel_l2 > 0);
  CHECK(judge(wrong, {.name = "plain"}, tuner::Compared::sampled).wrong.value_or("").find("dQ") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "measured case: backward without keys or without queries") {
  if (!attune::tests::nvrtc()) return;
  for (const char* lengths : {"seqlen_q=20,seqlen_k=0", "seqlen_q=0,seqlen_k=20"}) {
    CAPTURE(lengths);
    prepare((std::string("op=backward,head_dim=16,heads=2,heads_kv=1,batch=1,") + lengths).c_str(),
            "family=sm90_backward,block_m=64");
    const tuner::CaseResult all = judge(plan(code()), {.name = "plain"}, tuner::Compared::all);
    CHECK(all.wrong.value_or("") == "");
    CHECK(all.accuracy.rows > 0);
  }
}

TEST_CASE_FIXTURE(Fixture, "measured case: forward") {
  if (!attune::tests::nvrtc()) return;
  prepare("head_dim=16,heads=2,heads_kv=1,causal=1,batch=1,seqlen_q=70,seqlen_k=50",
          "consumers=1,block_n=64,ping_pong=0,grid=dynamic");
  const Plan right = plan(code());
  for (const tuner::Compared compared : {tuner::Compared::all, tuner::Compared::sampled}) {
    const tuner::CaseResult result = judge(right, {.name = "plain"}, compared);
    CHECK(result.wrong.value_or("") == "");
    CHECK(result.accuracy.o_rel_l2 > 0);
  }
}

TEST_CASE_FIXTURE(Fixture, "measured case: the check at full size of a backward kernel") {
  if (!attune::tests::nvrtc()) return;
  prepare("op=backward,head_dim=16,heads=1,batch=1,seqlen_q=67,seqlen_k=40", "family=sm90_backward");
  tuner::ShapeBench shape(*bench, problem);
  shape.load(1, spec, spec.config, code());
  shape.load(2, spec, spec.config, code("x.x * scale, x.y * scale", "x.x * scale, x.y"));
  const tuner::Judgement judgement = shape.check(1);
  CHECK(judgement.wrong.value_or("") == "");
  CHECK(judgement.cases == 1);
  CHECK(judgement.accuracy.rows > 0);
  CHECK(shape.check(2).wrong.has_value());
}

}  // namespace attune::emulator
