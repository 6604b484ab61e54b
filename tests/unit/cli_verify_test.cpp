// The kernels of `attune verify`, and what it says of those that do not build.
#include <doctest/doctest.h>

#include <sstream>

#include "cli/verify_report.h"
#include "cli/verify_subjects.h"
#include "tests/unit/fake_compiler.h"
#include "tests/winning_trial.h"

using namespace attune;

namespace {

struct Fixture {
  std::shared_ptr<tests::FakeCompiler> compiler = std::make_shared<tests::FakeCompiler>();
  cli::ProblemSetFlags problems;
  std::ostringstream out, err;
  cli::Output output{{.out = out, .err = err}};

  cache::Store store = cache::Store::memory_only();

  std::vector<cli::Subject> subjects(std::vector<std::string> configs, bool second_kernels = false) {
    runtime::Builder builder(store, [this] { return compiler; });
    cli::SubjectRequest request{problems, std::move(configs)};
    request.second_kernels = second_kernels;
    return cli::Subjects(request, tests::FakeDevice().properties(), store, builder, output).all();
  }
  void win(const Problem& problem, const codegen::Config& config) {
    const cache::Trial trial = tests::winning_trial(problem, runtime::identity_text(tests::FakeDevice().properties()),
                                                    config, std::string(64, 'a'));  // its code is gone
    store.append_trial(trial);
    store.finish_session(trial.plan_key, trial.session);
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "verify: a kernel that does not compile fails for itself, and the others go on") {
  compiler->fails = 1;
  const std::vector<cli::Subject> all = subjects({"block_n=64", "block_n=96"});
  REQUIRE(all.size() == 2);
  CHECK(all[0].failure.starts_with("file.cuh:1: refused\n"));
  CHECK(all[0].config.block_n == 64);
  CHECK(all[1].failure == "");
  CHECK(!all[1].build.cubin.empty());
  CHECK(err.str().find("file.cuh:1: refused") != std::string::npos);

  cli::VerifyReport report;
  report.add_failure(all[0]);
  report.add(all[1], "small", {});
  report.print(output);
  CHECK(out.str().find("rejected: file.cuh:1: refused") != std::string::npos);
  CHECK(report.finish(output, "complaint") == cli::ExitCode::failure);
  CHECK(output.document()["results"][0]["ok"] == false);
  CHECK(output.document()["results"][0]["reason"] == all[0].failure);
  CHECK(output.document()["results"][1]["ok"] == true);
}

TEST_CASE_FIXTURE(Fixture, "verify: a plan's second kernel, where it would have one") {
  CHECK(subjects({}).size() == 1);
  std::vector<cli::Subject> all = subjects({}, true);
  REQUIRE(all.size() == 2);
  const Problem problem = all[0].problem;
  CHECK(all[0].config.softmax != codegen::Softmax::exact);
  CHECK(all[1].problem == peaked_twin(problem));
  CHECK(all[1].config.softmax == codegen::Softmax::exact);
  CHECK(all[1].origin == "heuristic");
  // Beside a winner there is another winner or none.
  win(problem, {.block_n = 64, .softmax = codegen::Softmax::zero, .order = codegen::Order::pv_qk});
  CHECK(subjects({}, true).size() == 1);
  win(*peaked_twin(problem), {.block_n = 96});
  all = subjects({}, true);
  REQUIRE(all.size() == 2);
  CHECK(all[1].config.block_n == 96);
  // One that does not speculate needs none.
  store = cache::Store::memory_only();
  win(problem, {.block_n = 64});
  CHECK(subjects({}, true).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "verify: builds that spill fail, too") {
  compiler->spill_bytes = 8;
  for (const char* config : {"block_n=64", "default"}) {
    const std::vector<cli::Subject> all = subjects({config});
    REQUIRE(all.size() == 1);
    CHECK(all[0].failure != "");
  }
}
