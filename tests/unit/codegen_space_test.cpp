// The rules of the search space, the facts about lengths, the cost model.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "codegen/layout.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;

namespace {

const Arch kArch = parse_arch("sm_90a");

std::string reason(const char* problem, const char* config) {
  return violates(kArch, specialise(kArch, parse_problem(problem), parse_config(config))).value_or("fits");
}
Edge edge(const char* problem, const char* config) {
  return specialise(kArch, parse_problem(problem), parse_config(config)).edge;
}

}  // namespace

TEST_CASE("rows that are nobody's cost the space no buffering, and tiles of unequal length come in sections") {
  const auto ahead = [](const char* problem) {
    std::size_t idle = 0, all = 0;
    for (const Config& c : candidates(kArch, parse_problem(problem)))
      if (c.q == QSource::registers && c.q_ahead) idle += c.skip_idle, ++all;
    return std::pair{idle, all};
  };
  const auto whole = ahead("head_dim=128,heads=16,batch=4,seqlen_q=1152,seqlen_k=1152");
  const auto ragged = ahead("head_dim=128,heads=16,batch=4,seqlen_q=1088,seqlen_k=1152");
  CHECK(whole.second > 0);
  CHECK(ragged.second == whole.second);
  CHECK(ragged.first == ragged.second);

  const Problem p = parse_problem("head_dim=64,heads=32,batch=2,seqlen_q=1024,seqlen_k=1024");
  const auto sections = [&](const char* config) {
    std::set<int> all;
    for (const Config& c : launch_variants(kArch, p, parse_config(config))) all.insert(c.section);
    return all;
  };
  CHECK(sections("consumers=3,grid=dynamic,skip_idle=1") == std::set<int>{0, 2, 4, 8, 32, 64});
  CHECK(sections("consumers=3,grid=dynamic") == std::set<int>{0});
  CHECK(default_section(p) == 16);
}

TEST_CASE("rules say why a config cannot be built") {
  CHECK(reason("head_dim=128", "block_n=128") == "fits");
  CHECK(reason("head_dim=128", "block_n=120").starts_with("block_n: 120 is not a wgmma shape"));
  CHECK(reason("head_dim=128", "softmax=zero,order=qk_pv").starts_with("softmax: speculation needs an intact S"));
  CHECK(reason("head_dim=128", "consumers=1,ping_pong=1").starts_with("ping_pong: needs two consumers"));
  CHECK(reason("head_dim=128", "boundary=overlapped,o=over_q").starts_with("boundary: overlapped needs Q's buffer"));
  CHECK(reason("head_dim=64,head_dim_v=128", "o=over_q").starts_with("o: 32768 bytes do not fit over Q's 16384"));
  CHECK(reason("head_dim=128", "diagonal=trimmed").starts_with("diagonal: only a causal kernel has one"));
  CHECK(reason("head_dim=128,causal=1", "diagonal=trimmed,block_n=64").starts_with("diagonal: trimmed needs"));
  CHECK(reason("head_dim=128,causal=1", "diagonal=skipped,block_n=128").starts_with("diagonal: skipped needs"));
  CHECK(reason("head_dim=256", "block_n=128").starts_with("shared memory: "));
  CHECK(reason("head_dim=64", "block_n=256,consumers=3").starts_with("registers: about"));
  CHECK(reason("head_dim=128", "o_pieces=2").starts_with("o_pieces: needs o = own"));
  CHECK(reason("head_dim=128", "block_n=64,o=own,o_pieces=3").starts_with("o_pieces: 3 of 2 chunks"));
  CHECK(reason("head_dim=128", "warp_epilogue=1").starts_with("warp_epilogue: needs o = own"));
  CHECK(reason("head_dim=128", "remember=0").starts_with("remember: only softmax zero"));
}

TEST_CASE("a cluster's tiles are one tile to the rules") {
  CHECK(reason("head_dim=128", "block_n=128,cluster=2") == "fits");
  // The upper tile sees fewer keys than are loaded for both.
  CHECK(reason("head_dim=128,causal=1", "block_n=128,cluster=2") ==
        "diagonal: tiles of a cluster do not end at the same block of keys (allowed: trimmed, skipped)");
  for (const char* diagonal : {"trimmed", "skipped"})
    CHECK(reason("head_dim=128,causal=1", (std::string("block_n=128,cluster=2,diagonal=") + diagonal).c_str()) ==
          "fits");
  CHECK(reason("head_dim=64,causal=1", "consumers=1,ping_pong=0,block_n=128,cluster=2,diagonal=skipped") ==
        "diagonal: skipped needs block_n below the 128 rows of a cluster's tiles");
  for (const int cluster : {0, 3}) {
    const Config config{.cluster = cluster};
    CHECK(violates(kArch, specialise(kArch, parse_problem("head_dim=128"), config)).value_or("fits") ==
          "cluster: " + std::to_string(cluster) + " (allowed: 1, 2)");
  }
}

TEST_CASE("the edge follows from the lengths") {
  CHECK(edge("head_dim=128,seqlen_q=4096", "block_n=128") == Edge::none);
  CHECK(edge("head_dim=128,seqlen_q=4096", "block_n=192") == Edge::length);
  CHECK(edge("head_dim=128,seqlen_q=4096", "block_n=192,exact_tail=1") == Edge::tail);
  CHECK(edge("head_dim=128,seqlen_q=4001", "block_n=192,exact_tail=1") == Edge::length);
  CHECK(edge("head_dim=128,seqlen_q=128,seqlen_k=0", "block_n=128") == Edge::length);
  CHECK(edge("head_dim=128,seqlen_q=1000,causal=1", "block_n=128") == Edge::diagonal);
  CHECK(edge("head_dim=128,seqlen_q=1000,seqlen_k=1128,causal=1", "block_n=128") == Edge::diagonal);
  CHECK(edge("head_dim=128,seqlen_q=1000,seqlen_k=1129,causal=1", "block_n=128") == Edge::diagonals);
  CHECK(edge("head_dim=128,seqlen_q=1000,causal=1", "block_n=96") == Edge::diagonals);
  CHECK(edge("head_dim=128,seqlen_q=1000,causal=1", "block_n=64,diagonal=skipped") == Edge::diagonal);
}

TEST_CASE("a cluster's diagonal is aligned where its blocks are whole warpgroups' rows") {
  const auto edge_of = [](const char* seqlen_k, const char* config) {
    return edge(("head_dim=128,seqlen_q=1000,causal=1,seqlen_k=" + std::string(seqlen_k)).c_str(), config);
  };
  CHECK(edge_of("1000", "cluster=2,block_n=64,diagonal=skipped") == Edge::diagonal);
  CHECK(edge_of("1000", "cluster=2,block_n=128,diagonal=skipped") == Edge::diagonal);
  CHECK(edge_of("1128", "cluster=2,block_n=128,diagonal=skipped") == Edge::diagonal);
  CHECK(edge_of("1064", "cluster=2,block_n=128,diagonal=skipped") == Edge::diagonals);
  CHECK(edge_of("1000", "cluster=2,block_n=96,diagonal=skipped") == Edge::diagonals);
  // As wide as a tile is not enough: the upper tile begins a block earlier than the keys do.
  CHECK(edge_of("1000", "cluster=1,block_n=128") == Edge::diagonal);
  CHECK(edge_of("1000", "cluster=2,block_n=128") == Edge::diagonals);
}

TEST_CASE("a kernel serves exactly the problems that its edge allows") {
  const KernelSpec none = specialise(kArch, parse_problem("head_dim=128,seqlen_q=4096"), parse_config("block_n=128"));
  CHECK(serves(none, parse_problem("head_dim=128,seqlen_q=77,seqlen_k=256")));
  CHECK_FALSE(serves(none, parse_problem("head_dim=128,seqlen_q=77,seqlen_k=257")));
  CHECK_FALSE(serves(none, parse_problem("head_dim=128,seqlen_q=77,seqlen_k=0")));
  CHECK_FALSE(serves(none, parse_problem("head_dim=128,seqlen_q=256,causal=1")));
  CHECK_FALSE(serves(none, parse_problem("head_dim=128,seqlen_q=256,dtype=fp16")));
  CHECK_FALSE(serves(none, parse_problem("head_dim=120,seqlen_q=256")));
}

TEST_CASE("the space is large, its members are distinct, and every one fits") {
  for (const char* text : {"head_dim=128,heads=32,heads_kv=8,causal=1", "head_dim=128,heads=16", "head_dim=64,heads=32",
                           "head_dim=64,heads=32,causal=1"}) {
    const std::vector<Config> all = candidates(kArch, parse_problem(text));
    CHECK(all.size() >= 100);
    std::set<std::string> texts;
    for (const Config& c : all) texts.insert(to_string(c));
    CHECK(texts.size() == all.size());
  }
}

TEST_CASE("boundaries overlap with O in pieces where it does not fit whole, and not beyond head dim 128") {
  const auto overlapped = [](const std::string& problem) {
    std::vector<Config> found;
    for (const Config& c : candidates(kArch, parse_problem(problem)))
      if (c.boundary == Boundary::overlapped && c.o_pieces > 1) found.push_back(c);
    return found;
  };
  for (const char* mask : {",causal=0", ",causal=1"}) {
    const std::string problem = std::string("head_dim=128,heads=16,batch=1,seqlen_q=16384,seqlen_k=16384") + mask;
    const std::vector<Config> found = overlapped(problem);
    CHECK(!found.empty());
    for (Config c : found) {
      c.o_pieces = 1;
      CHECK(violates(kArch, specialise(kArch, parse_problem(problem), c)));
    }
    CHECK(overlapped(std::string("head_dim=256,heads=8,batch=1,seqlen_q=16384,seqlen_k=16384") + mask).empty());
  }
}

TEST_CASE("the tuner tries clusters where tiles are few, untuned plans do not") {
  const auto clustered = [](const Problem& p) {
    return std::ranges::any_of(candidates(kArch, p), [](const Config& c) { return c.cluster > 1; });
  };
  const Problem few = parse_problem("head_dim=128,heads=16,batch=2,seqlen_q=512,seqlen_k=512");
  CHECK(clustered(few));
  for (const Config& c : default_configs(kArch, few)) CHECK(c.cluster == 1);
  CHECK_FALSE(clustered(parse_problem("head_dim=128,heads=16,batch=2,seqlen_q=512,seqlen_k=512,causal=1")));
  CHECK_FALSE(clustered(parse_problem("head_dim=64,heads=16,batch=2,seqlen_q=512,seqlen_k=512")));
  CHECK_FALSE(clustered(parse_problem("head_dim=128,heads=16,batch=2,seqlen_q=128,seqlen_k=512")));
  CHECK_FALSE(clustered(parse_problem("head_dim=128,heads=16,batch=32,seqlen_q=512,seqlen_k=512")));
}

TEST_CASE("kernels of small problems start quickly, and where nothing overlaps a stream's first block has a turn") {
  const auto count = [](const char* problem, const auto& predicate) {
    const std::vector<Config> all = candidates(kArch, parse_problem(problem));
    return std::pair{std::ranges::count_if(all, predicate), std::ssize(all)};
  };
  constexpr const char* kSmall = "head_dim=128,heads=16,batch=2,seqlen_q=512,seqlen_k=512,causal=1";
  constexpr const char* kLarge = "head_dim=128,heads=16,batch=8,seqlen_q=512,seqlen_k=512,causal=1";
  const auto quick = [](const Config& c) { return c.early_copies && c.first_turn == c.ping_pong; };
  const auto [small_quick, small_all] = count(kSmall, quick);
  CHECK(small_quick == small_all);
  const auto early = [](const Config& c) { return c.early_copies; };
  CHECK(count("head_dim=128,heads=16,batch=2,seqlen_q=512,seqlen_k=512", early).first > 0);
  const auto drained = [](const Config& c) {
    return !c.early_copies && c.first_turn == (c.ping_pong && c.boundary == Boundary::drained);
  };
  const auto [large_drained, large_all] = count(kLarge, drained);
  CHECK(large_drained == large_all);
  CHECK(small_all >= large_all);  // no kernel is lost by it
}

TEST_CASE("a start is shorter with early copies, and with first blocks in turns") {
  CHECK(reason("head_dim=128", "block_n=128,cluster=2,early_copies=1").starts_with("early_copies: "));
  CHECK(reason("head_dim=128", "block_n=128,ping_pong=0,first_turn=1").starts_with("first_turn: "));
  const Problem p = parse_problem("head_dim=128,heads=16,seqlen_q=512,seqlen_k=512");
  const auto total = [&](const std::string& config) { return estimate(kArch, p, parse_config(config)).total; };
  for (const char* boundary : {"boundary=drained", "o=own,q_buffers=2,boundary=overlapped"}) {
    const std::string config = boundary;
    CHECK(total(config + ",early_copies=1") < total(config));
    CHECK(total(config + ",first_turn=1") < total(config));
  }
}

TEST_CASE("part of Q in registers: where all of it does not fit, and sooner with more of it") {
  CHECK(reason("head_dim=256", "block_n=64,q_columns=128") == "fits");
  CHECK(reason("head_dim=256", "block_n=64,q_columns=192").starts_with("registers: about 244"));
  CHECK(reason("head_dim=256", "block_n=64,q_columns=40").starts_with("q_columns: 40 is not a multiple of 16 below"));
  CHECK(reason("head_dim=128", "q_columns=128").starts_with("q_columns: 128 is not a multiple of 16 below head_dim"));
  CHECK(reason("head_dim=128", "q=registers,q_columns=64").starts_with("q_columns: all of Q is in registers"));
  const auto columns = [](const char* problem) {
    std::set<int> found;
    for (const Config& c : candidates(kArch, parse_problem(problem))) found.insert(c.q_columns);
    return found;
  };
  CHECK(columns("head_dim=64") == std::set<int>{0});
  CHECK(columns("head_dim=128,causal=1") == std::set<int>{0});
  CHECK(columns("head_dim=128") == std::set<int>{0, 32, 64});
  CHECK(columns("head_dim=192") == std::set<int>{0, 64, 96});
  CHECK(columns("head_dim=256") == std::set<int>{0, 64, 96, 128});
  const Problem p = parse_problem("head_dim=256,heads=8");
  const auto cost = [&](const char* config) { return estimate(kArch, p, parse_config(config)); };
  CHECK(cost("block_n=64,q_columns=128").total < cost("block_n=64").total);
  CHECK(cost("block_n=64,q_columns=128").shared_memory < cost("block_n=64").shared_memory);
}

TEST_CASE("every head dim has candidates and a default") {
  for (int d = 8; d <= 256; d += 8)
    for (bool causal : {false, true}) {
      Problem p{.head_dim = d, .head_dim_v = d, .heads = 4, .heads_kv = 2, .causal = causal};
      p.seqlen_q = 333;
      p.seqlen_k = 777;
      CAPTURE(d);
      CHECK(default_config(kArch, p).family == Family::sm90);
    }
  Problem wide{.head_dim = 64, .head_dim_v = 256, .heads = 4, .heads_kv = 2};
  CHECK(default_config(kArch, wide).family == Family::sm90);
}

TEST_CASE("shared memory holds what the layout says, in order and aligned") {
  for (const Config& c : candidates(kArch, parse_problem("head_dim=80,head_dim_v=72,heads=4"))) {
    const SharedLayout l = layout_of(specialise(kArch, parse_problem("head_dim=80,head_dim_v=72,heads=4"), c));
    for (int at : {l.q_at, l.o_at, l.k_at, l.v_at}) REQUIRE(at % 1024 == 0);
    REQUIRE(l.k_at >= c.q_buffers * l.q_bytes);
    REQUIRE(l.v_at == l.k_at + c.stages * l.k_bytes);
    REQUIRE(l.bytes <= kArch.shared_per_block);
  }
}

TEST_CASE("shared memory holds a cluster's claims beside everything else") {
  for (const int stages : {1, 2, 3, 4})
    for (const int q_buffers : {1, 2}) {
      Config c{.consumers = 1, .block_n = 32, .stages = stages, .ping_pong = false};
      c.q_buffers = q_buffers;
      c.cluster = 2;
      const auto layout = [&](Grid grid) {
        c.grid = grid;
        return layout_of(specialise(kArch, parse_problem("head_dim=64"), c));
      };
      const SharedLayout l = layout(Grid::dynamic);
      REQUIRE(l.claims > stages);  // as many tiles as a thread block can be behind, and the one that it is told
      // K and V full and empty, Q full and empty, each claim told, all claims read.
      REQUIRE(l.barriers_at + 8 * (4 * stages + 2 * q_buffers + l.claims + 1) <= l.slots_at);
      REQUIRE(l.barriers_at >= l.v_at + stages * l.v_bytes);
      REQUIRE(l.slots_at + 4 * 16 <= l.claims_at);
      REQUIRE(l.claims_at % 16 == 0);
      REQUIRE(l.claims_at + 16 * l.claims + 1024 <= l.bytes);
      for (Grid grid : {Grid::plain, Grid::persistent}) REQUIRE(layout(grid).claims == 0);
      c.cluster = 1;
      REQUIRE(layout(Grid::dynamic).claims == 0);
    }
}

TEST_CASE("the cost model orders what is plainly ordered") {
  const Problem p = parse_problem("head_dim=128,heads=16,batch=4,seqlen_q=4096");
  const auto total = [&](const char* text) { return estimate(kArch, p, parse_config(text)).total; };
  CHECK(total("softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped") < total("softmax=exact,order=qk_pv"));
  CHECK(total("softmax=exact,order=qk_pv") < total("softmax=exact,order=serial,ping_pong=0"));
  Problem twice = p;
  twice.batch *= 2;
  const Config c = parse_config("block_n=128");
  CHECK(estimate(kArch, twice, c).tensor == doctest::Approx(2 * estimate(kArch, p, c).tensor).epsilon(0.1));
  Problem causal = p;
  causal.causal = true;
  const Config d = parse_config("block_n=128,grid=dynamic,diagonal=trimmed");
  CHECK(estimate(kArch, causal, d).total < 0.65 * estimate(kArch, p, c).total);
}

TEST_CASE("guesses differ in their tiles") {
  const std::vector<Config> guesses =
      default_configs(kArch, parse_problem("head_dim=248,heads=4,seqlen_q=300,causal=1"));
  CHECK(guesses.size() > 8);
  std::set<std::pair<int, int>> tiles;
  for (const Config& c : guesses) tiles.insert({c.consumers, c.block_n});
  CHECK(tiles.size() >= 4);
  CHECK(guesses.front() == default_config(kArch, parse_problem("head_dim=248,heads=4,seqlen_q=300,causal=1")));
}
