// Flags that many commands share.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include <attune/error.h>

#include "cli/problem_flags.h"
#include "cli/problem_set.h"
#include "codegen/space.h"

using namespace attune;

namespace {

// Flags hold addresses of their own fields while parsing, so they are made and asked in one go.
template <typename Flags, typename Use>
void with(std::vector<std::string> words, Use use) {
  CLI::App app;
  Flags flags;
  flags.add(app);
  std::reverse(words.begin(), words.end());
  app.parse(words);
  use(flags);
}

std::vector<Problem> problems_of(const std::vector<std::string>& words) {
  std::vector<Problem> problems;
  std::ostringstream out, err;
  cli::Output output({.out = out, .err = err});
  with<cli::ProblemSetFlags>(words, [&](const cli::ProblemSetFlags& flags) { problems = flags.problems(output); });
  return problems;
}

Problem problem_of(const std::vector<std::string>& words) {
  Problem problem;
  with<cli::ProblemFlags>(words, [&](const cli::ProblemFlags& flags) { problem = flags.problem(); });
  return problem;
}

template <typename F>
ErrorCode code_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return ErrorCode::internal;
}

const std::string kLlama = std::string(ATTUNE_TEST_DATA) + "/models/llama-3.1-8b.json";

}  // namespace

TEST_CASE("problem flags: defaults follow what is given") {
  CHECK(problem_of({}) == Problem{.batch = 4});
  const Problem p = problem_of({"--head-dim", "64", "--heads", "8", "--seqlen", "512", "--causal", "--dtype", "fp16"});
  CHECK(p.head_dim_v == 64);
  CHECK(p.heads_kv == 8);
  CHECK(p.seqlen_k == 512);
  CHECK(p.causal);
  CHECK(p.dtype == DType::fp16);
  CHECK(problem_of({"--seqlen", "512", "--seqlen-k", "1024"}).seqlen_k == 1024);
  CHECK(problem_of({"--problem", "causal=1,batch=2", "--no-causal"}) == Problem{.batch = 2});
}

TEST_CASE("problem flags: peaked scores") {
  const Problem p = problem_of({"--scores", "peaked"});
  CHECK(p.scores == ScoreKind::peaked);
  CHECK(problem_of({"--problem", "scores=peaked,batch=2", "--scores", "any"}) == Problem{.batch = 2});
  CHECK(code_of([] { problem_of({"--scores", "flat"}); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { problem_of({"--op", "backward", "--scores", "peaked"}); }) == ErrorCode::invalid_argument);
  with<cli::ProblemFlags>({"--scores", "peaked"}, [&](const cli::ProblemFlags& flags) {
    CHECK(flags.admits(p));
    CHECK(!flags.admits(Problem{}));
    CHECK(flags.given() == std::vector<std::string>{"--scores"});
  });
}

TEST_CASE("problem flags: the backward pass") {
  const Problem p = problem_of({"--op", "backward", "--deterministic", "--head-dim", "64"});
  CHECK(p.op == Op::backward);
  CHECK(p.deterministic);
  CHECK(code_of([] { problem_of({"--deterministic"}); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { problem_of({"--op", "sideways"}); }) == ErrorCode::unsupported);
  with<cli::ProblemFlags>({"--op", "backward"}, [&](const cli::ProblemFlags& flags) {
    CHECK(flags.admits(p));
    CHECK(!flags.admits(Problem{}));
    CHECK(flags.given() == std::vector<std::string>{"--op"});
  });
  for (const Problem& problem : problems_of({"--model", kLlama, "--op", "backward", "--seqlens", "512,1024"}))
    CHECK(problem.op == Op::backward);
}

TEST_CASE("problem flags: which problems they admit") {
  const Problem p{.head_dim = 64, .head_dim_v = 128, .heads = 8, .heads_kv = 2, .causal = true};
  const auto admits = [&](const std::vector<std::string>& words) {
    bool answer = false;
    with<cli::ProblemFlags>(words, [&](const cli::ProblemFlags& flags) { answer = flags.admits(p); });
    return answer;
  };
  CHECK(admits({}));
  CHECK(admits({"--head-dim", "64"}));
  CHECK(admits({"--heads", "8", "--causal"}));
  CHECK_FALSE(admits({"--head-dim", "64", "--head-dim-v", "64"}));
  CHECK_FALSE(admits({"--no-causal"}));
  CHECK_FALSE(admits({"--seqlen", "512"}));
  CHECK(admits({"--problem", to_string(p)}));
  CHECK_FALSE(admits({"--problem", "heads=8"}));
}

TEST_CASE("problem flags: a problem's peaked twin is meant, too, where scores are not mentioned") {
  const Problem p{.batch = 2};
  const Problem twin = peaked_twin(p).value();
  CHECK(twin == parse_problem("batch=2,scores=peaked"));
  CHECK(!peaked_twin(twin));
  CHECK(!peaked_twin({.op = Op::backward}));
  const auto meant = [&](std::vector<std::string> words) {
    bool any = false, peaked = false;
    with<cli::ProblemSetFlags>(words, [&](const cli::ProblemSetFlags& flags) {
      std::ostringstream out, err;
      cli::Output output({.out = out, .err = err});
      const auto filter = flags.filter(output);
      any = filter(p);
      peaked = filter(twin);
    });
    return std::pair(any, peaked);
  };
  CHECK(meant({"--batch", "2"}) == std::pair(true, true));
  CHECK(meant({"--problem", "batch=2"}) == std::pair(true, true));
  CHECK(meant({"--seqlens", "4096", "--batch", "2"}) == std::pair(true, true));
  CHECK(meant({"--seqlens", "4096", "--batch", "2", "--scores", "any"}) == std::pair(true, false));
  CHECK(meant({"--batch", "2", "--scores", "peaked"}) == std::pair(false, true));
  CHECK(meant({"--problem", "batch=2,scores=peaked"}) == std::pair(false, true));
  CHECK(meant({"--problem", "batch=2,scores=any"}) == std::pair(true, false));
  with<cli::ProblemSetFlags>({"--batch", "2"}, [&](const cli::ProblemSetFlags& flags) {
    std::ostringstream out, err;
    cli::Output output({.out = out, .err = err});
    CHECK(flags.problems(output) == std::vector{p});
    CHECK(flags.problems_and_twins(output) == std::vector{p, twin});
  });
}

TEST_CASE("problem sets: lengths share the tokens") {
  const std::vector<Problem> problems = problems_of({"--seqlens", "512,32768", "--tokens", "8192", "--heads", "8"});
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].batch == 16);
  CHECK(problems[0].seqlen_k == 512);
  CHECK(problems[1].batch == 1);
  CHECK(problems_of({"--seqlens", "512", "--batch", "3"}).front().batch == 3);
  CHECK(problems_of({"--head-dim", "64"}).size() == 1);
  CHECK(code_of([] { problems_of({"--seqlens", "512", "--seqlen", "1024"}); }) == ErrorCode::invalid_argument);
}

TEST_CASE("problem sets: a model says head dims and counts, and nothing else may") {
  const std::vector<Problem> problems = problems_of({"--model", kLlama, "--seqlens", "1024,4096"});
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].head_dim == 128);
  CHECK(problems[0].heads == 32);
  CHECK(problems[0].heads_kv == 8);
  CHECK(problems[0].causal);
  CHECK(problems[1].batch == 4);
  CHECK(problems_of({"--model", kLlama}).size() > 2);
  CHECK_FALSE(problems_of({"--model", kLlama, "--no-causal", "--dtype", "fp16"}).front().causal);
  CHECK(code_of([] { problems_of({"--model", kLlama, "--head-dim", "64"}); }) == ErrorCode::invalid_argument);
}

TEST_CASE("kernel flags: a problem with a config, or a spec, but not both") {
  with<cli::KernelFlags>({"--causal"}, [](const cli::KernelFlags& flags) {
    const auto choice = flags.choice();
    CHECK(choice.config == codegen::default_config(Arch{}, *choice.problem));
    CHECK(codegen::serves(choice.spec, *choice.problem));
  });
  with<cli::KernelFlags>({"--spec", "head_dim=64,head_dim_v=64,block_n=128"}, [](const cli::KernelFlags& flags) {
    CHECK_FALSE(flags.choice().problem);
    CHECK(flags.choice().spec.head_dim == 64);
  });
  with<cli::KernelFlags>({"--spec", "head_dim=64", "--config", "block_n=128"}, [](const cli::KernelFlags& flags) {
    CHECK(code_of([&] { flags.choice(); }) == ErrorCode::invalid_argument);
  });
}

TEST_CASE("durations, sizes, lists") {
  CHECK(cli::parse_duration("budget", "90") == 90);
  CHECK(cli::parse_duration("budget", "1.5m") == 90);
  CHECK(cli::parse_duration("budget", "2h") == 7200);
  CHECK(cli::parse_bytes("keep", "512") == 512);
  CHECK(cli::parse_bytes("keep", "64k") == 65536);
  CHECK(cli::parse_bytes("keep", "1.5M") == 1572864);
  CHECK(cli::parse_counts("seqlens", "512,1024") == std::vector<std::int64_t>{512, 1024});
  for (const char* bad : {"", "0", "-1", "1x", "1mm", "nan", "inf", "soon"}) {
    CAPTURE(bad);
    CHECK(code_of([&] { cli::parse_duration("budget", bad); }) == ErrorCode::invalid_argument);
  }
  for (const char* bad : {"", "-1", "1kk", "many", "1e30"}) {
    CAPTURE(bad);
    CHECK(code_of([&] { cli::parse_bytes("keep", bad); }) == ErrorCode::invalid_argument);
  }
  for (const char* bad : {"", ",", "512,", "0", "-1", "a"}) {
    CAPTURE(bad);
    CHECK(code_of([&] { cli::parse_counts("seqlens", bad); }) == ErrorCode::invalid_argument);
  }
}

TEST_CASE("problem sets: the grid is that of the committed table") {
  const std::vector<Problem> problems = problems_of({"--grid", "fa3"});
  std::ifstream table(std::string(ATTUNE_TEST_DATA) + "/../../bench/results/forward-h200.csv");
  REQUIRE(table);
  std::string line;
  std::getline(table, line);  // op,dtype,batch,seqlen_q,seqlen_k,heads,heads_kv,head_dim,head_dim_v,causal,...
  for (const Problem& p : problems) {
    std::getline(table, line);
    const std::string start =
        fmt::format("forward,{},{},{},{},{},{},{},{},{:d},", to_string(p.dtype), p.batch, p.seqlen_q, p.seqlen_k,
                    p.heads, p.heads_kv, p.head_dim, p.head_dim_v, p.causal);
    CHECK_MESSAGE(line.starts_with(start), start);
  }
  CHECK_FALSE(std::getline(table, line));
  CHECK(problems_of({"--grid", "fa3", "--dtype", "fp16"}).front().dtype == DType::fp16);
  CHECK(problems_of({"--grid", "fa3", "--scores", "peaked"}).front().scores == ScoreKind::peaked);
  std::vector<Problem> backward = problems_of({"--grid", "fa3", "--op", "backward", "--deterministic"});
  for (Problem& problem : backward) {
    CHECK(problem.op == Op::backward);
    CHECK(problem.deterministic);
    problem.op = Op::forward;
    problem.deterministic = false;
  }
  CHECK(backward == problems);
  CHECK(code_of([] { problems_of({"--grid", "fa3", "--seqlens", "512"}); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { problems_of({"--grid", "square"}); }) == ErrorCode::invalid_argument);
}
