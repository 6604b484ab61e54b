#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "codegen/default_table.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;

namespace {

const Arch kArch;

std::string message_of(const char* text) {
  try {
    parse_default_table(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("default table: every row is a legal config of its problem, and comes first") {
  CHECK(default_table().size() >= 36);
  std::set<std::string> problems;
  for (const TabledWinner& row : default_table()) {
    CAPTURE(to_string(row.problem));
    CHECK(problems.insert(to_string(row.problem)).second);
    CHECK(!violates(kArch, specialise(kArch, row.problem, row.config)));
    const std::vector<Config> configs = tabled_configs(kArch, row.problem);
    REQUIRE(!configs.empty());
    CHECK(configs.front() == row.config);
    if (row.problem.scores == ScoreKind::peaked) CHECK(row.config.softmax == Softmax::exact);
    CHECK(row.error < (row.problem.op == Op::forward ? 1e-2 : 5e-2));  // a row of dQ may cancel
  }
}

TEST_CASE("default table: the grid on which attention is usually compared is there") {
  for (int dim : {64, 128, 256})
    for (bool causal : {false, true})
      for (std::int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
        for (const Op op : {Op::forward, Op::backward}) {
          Problem p{.op = op,
                    .head_dim = dim,
                    .head_dim_v = dim,
                    .heads = 2048 / dim,
                    .heads_kv = 2048 / dim,
                    .causal = causal};
          p.batch = 16384 / length;
          p.seqlen_q = p.seqlen_k = length;
          CHECK(std::ranges::count(default_table(), p, &TabledWinner::problem) == 1);
        }
      }
}

TEST_CASE("default table: a close problem gets a row's config, fitted to it") {
  Problem p = parse_problem("head_dim=128,heads=16,batch=3,seqlen_q=5000,seqlen_k=5000");
  const std::vector<Config> configs = tabled_configs(kArch, p);
  REQUIRE(!configs.empty());
  for (const Config& c : configs) {
    CHECK(!violates(kArch, specialise(kArch, p, c)));
    CHECK(c.exact_tail == (5000 % c.block_n % 16 == 0));
    CHECK(c.section == 0);
  }
  CHECK(default_config(kArch, p) == configs.front());
  CHECK(default_configs(kArch, p)[1] == in_other_code(configs.front()));
  // The same lengths in the other type: nothing about the config depends on it.
  p.dtype = DType::fp16;
  CHECK(kernel_part(default_config(kArch, p)) == kernel_part(configs.front()));
}

TEST_CASE("default table: peaked scores have rows of their own, with exact kernels") {
  Problem p = parse_problem("head_dim=128,heads=16,batch=3,seqlen_q=5000,seqlen_k=5000");
  const std::vector<Config> any = tabled_configs(kArch, p);
  p.scores = ScoreKind::peaked;
  const std::vector<Config> peaked = tabled_configs(kArch, p);
  REQUIRE(!peaked.empty());
  for (const Config& c : peaked) CHECK(c.softmax == Softmax::exact);
  CHECK(any.front().softmax != Softmax::exact);
  // Where no row is close the model guesses among exact kernels.
  const Problem far = parse_problem("head_dim=112,heads=16,scores=peaked");
  CHECK(tabled_configs(kArch, far).empty());
  for (const Config& c : default_configs(kArch, far)) CHECK(c.softmax == Softmax::exact);
}

TEST_CASE("default table: gradients of a close problem get a row's config, those in one order a row of their own") {
  Problem p = parse_problem("op=backward,head_dim=128,heads=16,batch=3,seqlen_q=5000,seqlen_k=5000");
  for (const bool deterministic : {false, true}) {
    p.deterministic = deterministic;
    const std::vector<Config> configs = tabled_configs(kArch, p);
    REQUIRE(!configs.empty());
    CHECK(default_config(kArch, p) == configs.front());
    for (const Config& c : configs) {
      CHECK(c.backward.section == 0);
      CHECK(c.backward.workers == 0);
      CHECK(c.backward.parts == 0);
      CHECK(std::ranges::any_of(default_table(), [&](const TabledWinner& row) {
        return row.problem.deterministic == deterministic && kernel_part(row.config) == kernel_part(c);
      }));
    }
  }
}

TEST_CASE("default table: shares of query heads are for those who have several") {
  Problem p = parse_problem("op=backward,head_dim=128,heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1");
  const auto shares = [&] {
    return std::ranges::any_of(tabled_configs(kArch, p),
                               [](const Config& c) { return c.backward.dkv == backward::DkvPath::parts; });
  };
  CHECK(shares());
  p.batch = 4;  // 256 blocks of keys
  CHECK(!shares());
  p.batch = 1;
  p.heads_kv = p.heads;
  CHECK(!shares());
}

TEST_CASE("default table: a causal problem on a smaller chip keeps the tile, not the workers or the section") {
  Arch smaller;
  smaller.sms = 114;
  for (const TabledWinner& row : default_table()) {
    if (!row.problem.causal || row.problem.dtype != DType::bf16) continue;
    Problem p = row.problem;
    p.seqlen_q = p.seqlen_k = row.problem.seqlen_k + 8;
    CAPTURE(to_string(p));
    for (const Config& c : tabled_configs(smaller, p)) {
      CHECK(!c.exact_tail);
      CHECK(c.workers == 0);
      CHECK(c.section == 0);
    }
  }
}

TEST_CASE("default table: other head dims and work of another order are left to the model") {
  CHECK(tabled_configs(kArch, parse_problem("head_dim=112,heads=16")).empty());
  CHECK(tabled_configs(kArch, parse_problem("head_dim=256,heads=8,batch=1,seqlen_q=1,seqlen_k=64")).empty());
  CHECK(tabled_configs(kArch, parse_problem("head_dim=128,heads=8,batch=0")).empty());
  CHECK(!default_configs(kArch, parse_problem("head_dim=112,heads=16")).empty());
}

TEST_CASE("default table: what is wrong with a row is said with its line") {
  CHECK(parse_default_table("# nothing\n\n  \n").empty());
  const std::string good = "head_dim=64 | block_n=128 | 1e-4 | 1e-3\n";
  CHECK(parse_default_table(good).size() == 1);
  CHECK(parse_default_table("head_dim=64 | block_n=128 | 1e-4 | 1e-3\r\n").size() == 1);
  CHECK(message_of("# c\nhead_dim=64 | block_n=128 | 1e-4\n").find("line 2: 3 columns") != std::string::npos);
  CHECK(message_of("head_dim=65 | block_n=128 | 1e-4 | 1e-3\n").find("line 1: head_dim") != std::string::npos);
  CHECK(message_of("head_dim=64 | blok_n=128 | 1e-4 | 1e-3\n").find("blok_n") != std::string::npos);
  CHECK(message_of("head_dim=64 | block_n=128 | -1 | 1e-3\n").find("'-1' (allowed: a number above 0)") !=
        std::string::npos);
}
