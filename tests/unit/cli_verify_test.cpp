// The kernels of `attune verify`, and what it says of those that do not build.
#include <doctest/doctest.h>

#include <sstream>

#include "cli/verify_report.h"
#include "cli/verify_subjects.h"
#include "tests/unit/fake_compiler.h"

using namespace attune;

namespace {

struct Fixture {
  std::shared_ptr<tests::FakeCompiler> compiler = std::make_shared<tests::FakeCompiler>();
  cli::ProblemSetFlags problems;
  std::ostringstream out, err;
  cli::Output output{{.out = out, .err = err}};

  std::vector<cli::Subject> subjects(std::vector<std::string> configs) {
    const cache::Store store = cache::Store::memory_only();
    runtime::Builder builder(store, [this] { return compiler; });
    return cli::Subjects({problems, std::move(configs)}, tests::FakeDevice().properties(), store, builder, output)
        .all();
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

TEST_CASE_FIXTURE(Fixture, "verify: builds that spill fail, too") {
  compiler->spill_bytes = 8;
  for (const char* config : {"block_n=64", "default"}) {
    const std::vector<cli::Subject> all = subjects({config});
    REQUIRE(all.size() == 1);
    CHECK(all[0].failure != "");
  }
}
