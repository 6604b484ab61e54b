// The backward pass's space, schedules, layout and workspace.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/backward/layout.h"
#include "codegen/backward/params.h"
#include "codegen/backward/schedule.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;
using backward::Action;
using backward::Product;

namespace {

const Arch kArch = parse_arch("sm_90a");

Config config(const std::string& text) { return parse_config("family=sm90_backward," + text); }

std::string reason(const char* problem, const char* text) {
  const KernelSpec spec = specialise(kArch, parse_problem(std::string("op=backward,") + problem), config(text));
  return violates(kArch, spec).value_or("fits");
}

}  // namespace

TEST_CASE("backward: every head dim has candidates, all distinct, each of which serves") {
  for (int d = 8; d <= 256; d += 8)
    for (const bool deterministic : {false, true}) {
      Problem p{.op = Op::backward, .head_dim = d, .head_dim_v = d, .heads = 4, .heads_kv = 2};
      p.causal = d % 16 == 0;
      p.seqlen_q = 333;
      p.seqlen_k = 777;
      p.deterministic = deterministic;
      CAPTURE(d);
      const std::vector<Config> all = candidates(kArch, p);
      std::set<std::string> texts;
      for (const Config& c : all) {
        texts.insert(to_string(c));
        REQUIRE(serves(specialise(kArch, p, c), p));
      }
      CHECK(texts.size() == all.size());
      CHECK(default_config(kArch, p).family == Family::sm90_backward);
    }
  for (const auto& [dim, dim_v] : {std::pair{64, 256}, {256, 8}, {192, 128}}) {
    const Problem p{.op = Op::backward, .head_dim = dim, .head_dim_v = dim_v, .heads = 4, .heads_kv = 2};
    CHECK(default_config(kArch, p).family == Family::sm90_backward);
  }
}

TEST_CASE("backward: a rule that is broken is named") {
  CHECK(reason("head_dim=128", "block_m=64") == "fits");
  CHECK(reason("head_dim=128", "block_m=24").starts_with("block_m: 24 is not a multiple of 16"));
  CHECK(reason("head_dim=256", "block_m=80").starts_with("block_m: 80 above head dim 128"));
  CHECK(reason("head_dim=64", "split=columns,block_m=128").starts_with("block_m: 128 with split = columns"));
  CHECK(reason("head_dim=64", "split=products,dq=bulk").starts_with("split: products leaves dQ to a pass"));
  CHECK(reason("head_dim=64", "split=rows,dq=pass").starts_with("split: products leaves dQ to a pass"));
  CHECK(reason("head_dim=64", "split=products,dq=pass,q_stages=1").starts_with("q_stages: "));
  CHECK(reason("head_dim=64", "split=products,dq=pass,prefetch=1").starts_with("lag, prefetch: "));
  CHECK(reason("head_dim=256,deterministic=1", "split=products,dq=pass") == "fits");
  CHECK(reason("head_dim=64", "skip=1").starts_with("skip: every tile sees keys"));
  CHECK(reason("head_dim=64,causal=1", "skip=1,split=columns").starts_with("skip: every tile sees keys"));
  CHECK(reason("head_dim=64,causal=1", "skip=1") == "fits");
  for (const char* missing : {"lag=1,k_stages=2,dkv=direct", "persistent=1,k_stages=2,dkv=direct",
                              "persistent=1,lag=1,dkv=direct", "persistent=1,lag=1,k_stages=2"})
    CHECK(reason("head_dim=64", ("registers=224,boundary=overlapped," + std::string(missing)).c_str())
              .starts_with("boundary: overlapped needs"));
  CHECK(reason("head_dim=128", "registers=224,boundary=overlapped,persistent=1,lag=1,k_stages=2,dkv=direct") == "fits");
  for (const char* with :
       {"dq=direct", "split=columns", "split=products,dq=pass", "persistent=1,finish=ring,registers=224"})
    CHECK(
        reason("head_dim=64", ("dkv=parts," + std::string(with)).c_str()).starts_with("dkv: parts needs split = rows"));
  CHECK(reason("head_dim=128", "dkv=parts") == "fits");
  CHECK(reason("head_dim=128", "registers=224,boundary=overlapped,persistent=1,lag=1,k_stages=2,dkv=parts") == "fits");
  CHECK(reason("head_dim=64", "sums=stored,dq=direct").starts_with("sums: stored needs dq = bulk"));
  CHECK(reason("head_dim=64", "k_stages=2").starts_with("k_stages: 2 have a next block"));
  CHECK(reason("head_dim=64", "ping_pong=1").starts_with("ping_pong: "));
  CHECK(reason("head_dim=64", "lag=1,ds_stages=1").starts_with("lag: needs ds_stages"));
  CHECK(reason("head_dim=64", "ds_stages=3").starts_with("ds_stages: more than 2"));
  CHECK(reason("head_dim=256", "split=columns").starts_with("shared memory: "));
  CHECK(reason("head_dim=256", "block_m=64,q_stages=1,do_stages=1").starts_with("shared memory: "));
  CHECK(reason("head_dim=128", "block_m=128,q_stages=1,do_stages=1,ds_stages=1,dq=direct").starts_with("registers: "));
  CHECK(reason("head_dim=64,deterministic=1", "dq=direct").starts_with("dq: direct additions"));
  CHECK(reason("head_dim=64", "finish=ring").starts_with("finish: ring needs persistent"));
  CHECK(reason("head_dim=64", "finish=ring,persistent=1").starts_with("finish: ring with registers = 240"));
  CHECK(reason("head_dim=64", "finish=ring,persistent=1,registers=224,block_m=96")
            .starts_with("finish: ring with block_m"));
  CHECK(reason("head_dim=128", "finish=ring,persistent=1,registers=224") == "fits");
  CHECK(reason("head_dim=128", "finish=ring,persistent=1,registers=224,prepare=inside") == "fits");
  CHECK(reason("head_dim=128", "finish=ring,persistent=1,registers=224,sums=stored")
            .starts_with("sums: stored with finish = ring"));
  CHECK(reason("head_dim=128,deterministic=1", "finish=ring,persistent=1,registers=224,sums=stored") == "fits");
  CHECK(reason("head_dim=64", "visits=descending").starts_with("visits: descending has a causal mask"));
  CHECK(reason("head_dim=64,causal=1", "visits=descending") == "fits");
  CHECK(reason("head_dim=64,causal=1", "visits=descending,registers=224,prepare=inside")
            .starts_with("prepare: inside with visits = descending"));
  CHECK(reason("head_dim=64,deterministic=1", "registers=224,prepare=inside")
            .starts_with("prepare: inside with a deterministic dQ"));
  CHECK(reason("head_dim=64", "dq=direct,prepare=inside") == "prepare: inside needs dq = bulk");
  CHECK(reason("head_dim=64", "prepare=inside").starts_with("prepare: inside with registers = 240"));
}

TEST_CASE("backward: wait counts follow from the order of issue") {
  const auto waits = [](const std::vector<backward::Line>& lines) {
    std::vector<int> pending;
    for (const backward::Line& line : lines)
      if (line.action.kind == Action::Kind::wait) pending.push_back(line.pending);
    return pending;
  };
  const backward::Program meeting = lower(backward::schedule_for({}));
  CHECK(waits(meeting.block) == std::vector<int>{1, 0, 1, 0});
  CHECK_FALSE(meeting.primed);
  CHECK(meeting.drain.empty());
  const backward::Program lagging =
      lower(backward::schedule_for({.lag = true, .ping_pong = true, .late_fences = true, .prefetch = true}));
  CHECK(waits(lagging.block) == std::vector<int>{1, 0, 1, 0});
  CHECK(waits(lagging.drain) == std::vector<int>{0});
  CHECK(lagging.primed);
  // dQ of the last tile, and two parts to be published: the one before it only if there is one.
  std::vector<int> published;
  for (const backward::Line& line : lagging.drain)
    if (line.action.kind == Action::Kind::publish_dq) published.push_back(line.least_steps);
  CHECK(published == std::vector<int>{2, 0});
  // Beyond a boundary the gradients of the block before leave while S of the next one is computed.
  const backward::Program overlapped =
      lower(backward::schedule_for({.lag = true, .boundary = backward::Boundary::overlapped}));
  CHECK(waits(overlapped.block) == waits(lagging.block));
  const auto place = [&](const std::vector<backward::Line>& lines, Action::Kind kind) {
    return std::ranges::find_if(lines, [&](const backward::Line& line) { return line.action.kind == kind; }) -
           lines.begin();
  };
  CHECK(place(overlapped.block, Action::Kind::issue) < place(overlapped.block, Action::Kind::store_gradients));
  CHECK(place(overlapped.block, Action::Kind::store_gradients) < place(overlapped.block, Action::Kind::wait));
  CHECK(place(overlapped.drain, Action::Kind::store_gradients) == 0);
}

TEST_CASE("backward: dQ's parts cover its tile once") {
  for (const char* text :
       {"head_dim=40", "head_dim=64", "head_dim=72", "head_dim=128", "head_dim=136", "head_dim=200", "head_dim=256"}) {
    const Problem p = parse_problem(std::string("op=backward,heads=2,") + text);
    for (const Config& c : candidates(kArch, p)) {
      if (c.backward.dq == backward::DqPath::pass) continue;  // no sums
      const backward::Layout l = backward::layout_of(specialise(kArch, p, c));
      std::vector<int> covered(static_cast<std::size_t>(c.backward.block_m * 64 * l.qk_chunks), 0);
      for (const backward::DqPart& part : l.dq)
        for (int i = 0; i < 64 * part.width; i++) {
          const int along = i / 64, across = i % 64;
          const int row = part.row + (l.transposed_dq ? along : across);
          const int column = part.column + (l.transposed_dq ? across : along);
          REQUIRE(row < c.backward.block_m);
          covered[static_cast<std::size_t>(row * 64 * l.qk_chunks + column)]++;
        }
      for (int row = 0; row < c.backward.block_m; row++)
        for (int column = 0; column < p.head_dim; column++)
          REQUIRE(covered[static_cast<std::size_t>(row * 64 * l.qk_chunks + column)] == 1);
    }
  }
}

TEST_CASE("backward: the workspace is linear in the queries and its parts do not overlap") {
  Problem p = parse_problem("op=backward,head_dim=128,heads=6,heads_kv=2,batch=3,seqlen_q=1000,deterministic=1");
  const KernelSpec spec = specialise(kArch, p, config("block_m=80"));
  const auto workspace = [&] { return backward_workspace(spec, p, backward_grid(spec, {}, p, 132)); };
  const BackwardWorkspace w = workspace();
  const std::size_t tiles = 13 * 6 * 3;
  CHECK(w.deltas_at >= w.shifts_at + tiles * 80 * 4);
  CHECK(w.dq_sums_at >= w.deltas_at + tiles * 80 * 4);
  CHECK(w.turns_at >= w.dq_sums_at + tiles * 80 * 128 * 4);
  CHECK(w.ticket_at >= w.turns_at + tiles * 4);
  CHECK(w.bytes >= w.ticket_at + 4);
  p.seqlen_q *= 100;
  CHECK(workspace().bytes < 101 * w.bytes);
  p.seqlen_q = 0;
  CHECK(workspace().dq_sums_at == 0);
  // Where who comes first stores its part, the others look at its counters.
  p.seqlen_q = 1000;
  p.deterministic = false;
  const KernelSpec stored = specialise(kArch, p, config("block_m=80,sums=stored")),
                   zeroed = specialise(kArch, p, config("block_m=80"));
  const auto bytes_of = [&](const KernelSpec& of) {
    return backward_workspace(of, p, backward_grid(of, {}, p, 132)).bytes;
  };
  CHECK(bytes_of(stored) >= w.turns_at + 2 * tiles * 4);  // of each warpgroup's part
  CHECK(bytes_of(stored) < w.turns_at + 2 * tiles * 4 + BackwardWorkspace::kAlignment);
  CHECK(bytes_of(zeroed) == w.turns_at);
  p.deterministic = true;
  // Two passes need neither sums nor turns.
  p.seqlen_q = 1000;
  const KernelSpec passes = specialise(kArch, p, config("split=products,dq=pass"));
  CHECK(backward_workspace(passes, p, backward_grid(passes, {}, p, 132)).bytes == 2 * 16 * 64 * 6 * 3 * 4);
  CHECK(launch_shape(passes).dq_rows == 128);
  CHECK(launch_shape(passes).after.empty());
}

TEST_CASE("backward: the kernel before the main one prepares what the first blocks of keys visit") {
  Problem p = parse_problem("op=backward,head_dim=128,heads=16,batch=8,seqlen_q=2048");
  const auto grid = [&](const char* text, const backward::Tunables& launch_part = {}) {
    return backward_grid(specialise(kArch, p, config(text)), launch_part, p, 132);
  };
  CHECK(grid("block_m=64").prepared == 32 * 16 * 8);
  CHECK(grid("block_m=64").ahead == 0);
  CHECK(grid("block_m=64,prepare=inside").prepared == 2 * 132);
  CHECK(grid("block_m=64,prepare=inside").ahead == 132);
  CHECK(grid("block_m=80,prepare=inside").prepared == 212);
  CHECK(grid("block_m=64,prepare=inside", {.workers = 8}).prepared == 16);
  const KernelSpec inside = specialise(kArch, p, config("block_m=64,prepare=inside")),
                   before = specialise(kArch, p, config("block_m=64"));
  const BackwardWorkspace w = backward_workspace(inside, p, backward_grid(inside, {}, p, 132));
  CHECK(w.bytes == backward_workspace(before, p, backward_grid(before, {}, p, 132)).bytes +
                       BackwardWorkspace::kAlignment + 32 * 16 * 8 * 4 + 512);
  CHECK(w.ready_at >= w.ticket_at + 12);
  // Few tiles, and none that a block of keys would wait for.
  p.batch = 1;
  p.heads = p.heads_kv = 2;
  CHECK(grid("block_m=64,prepare=inside").prepared == 64);
  p.seqlen_k = 0;
  p.seqlen_q = 20000;
  CHECK(grid("block_m=64,prepare=inside").prepared == 313 * 2);
}

TEST_CASE("backward: shares of a KV head's query heads") {
  Problem p = parse_problem("op=backward,head_dim=128,head_dim_v=64,heads=36,heads_kv=3,batch=2,seqlen_q=1000");
  const KernelSpec spec = specialise(kArch, p, config("dkv=parts")), whole = specialise(kArch, p, config("dkv=direct"));
  const auto grid = [&](const backward::Tunables& launch_part) { return backward_grid(spec, launch_part, p, 132); };
  // 48 blocks of keys of whole KV heads: two for each worker take as many shares as divide the group.
  CHECK(grid({}).parts == 6);
  CHECK(grid({.workers = 48}).parts == 2);
  CHECK(grid({.workers = 24}).parts == 1);
  CHECK(grid({.workers = 49}).parts == 3);
  CHECK(grid({.workers = 100000}).parts == 12);
  const BackwardGrid shared = grid({.section = 2, .parts = 4}), alone = backward_grid(whole, {.section = 2}, p, 132);
  CHECK(shared.blocks == 4 * 8 * 6);
  CHECK(shared.section == 8);  // of whole KV heads there are two
  CHECK(shared.slots == 4 * 6);
  CHECK(shared.finishing == alone.finishing + kFinishers * 8 * 6);
  const BackwardParams params = backward_params(spec, p, shared);
  CHECK(params.parts == 4);
  CHECK(params.heads == 36);
  CHECK(params.heads_kv == 12);
  CHECK(params.group == 3);
  CHECK(params.pairs == 24);
  CHECK(params.tiles_of_pair == 16 * 3);
  // As many sums of dQ as without, and float32 dK and dV of every share.
  const BackwardWorkspace w = backward_workspace(spec, p, shared), without = backward_workspace(whole, p, alone);
  CHECK(w.bytes == without.bytes + std::size_t{4} * 6 * 8 * 128 * (128 + 64) * 4);
  CHECK(w.parts_at == without.bytes);
  const auto refusal = [&](const KernelSpec& s, const backward::Tunables& launch_part) -> std::string {
    try {
      backward_grid(s, launch_part, p, 132);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(spec, {.parts = 5}) ==
        "config parts: 5 with 12 query heads of each KV head (allowed: 0, 1, 2, 3, 4, 6, 12)");
  CHECK(refusal(spec, {.parts = 24}).starts_with("config parts: 24 with 12"));
  CHECK(refusal(whole, {.parts = 2}) == "config parts: 2 without dkv = parts (allowed: 0, 1)");
  CHECK(refusal(spec, {.parts = 12}) == "accepted");
  p.seqlen_k = std::int64_t{1} << 33;
  CHECK(refusal(spec, {.parts = 12}).starts_with("config parts: 12 of 402653184 blocks of keys (allowed: up to"));
  // Nothing to share: the main kernel stores zeros.
  p.seqlen_k = 1000;
  p.seqlen_q = 0;
  CHECK(grid({}).parts == 1);
  CHECK(grid({.parts = 4}).parts == 1);
  CHECK(grid({}).finishing == 0);
  CHECK(backward_workspace(spec, p, grid({})).bytes == 0);
  CHECK(refusal(spec, {.parts = 5}).starts_with("config parts: 5"));
}

TEST_CASE("backward: shares are tried where a device has few blocks of keys for each KV head") {
  const auto tried = [](const char* text) {
    return std::ranges::count_if(candidates(kArch, parse_problem(std::string("op=backward,head_dim=128,") + text)),
                                 [](const Config& c) { return c.backward.dkv == backward::DkvPath::parts; });
  };
  CHECK(tried("heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1") > 0);
  CHECK(tried("heads=8,heads_kv=8,batch=1,seqlen_q=1024,causal=1") == 0);
  CHECK(tried("heads=32,heads_kv=8,batch=8,seqlen_q=1024,causal=1") == 0);
  const Problem p = parse_problem("op=backward,head_dim=128,heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1");
  std::set<int> parts;
  for (const Config& c : launch_variants(kArch, p, config("lag=1,dkv=parts"))) parts.insert(c.backward.parts);
  CHECK(parts == std::set<int>{0, 2});  // 0: four
  for (const Config& c : launch_variants(kArch, p, config("lag=1"))) CHECK(c.backward.parts == 0);
}

TEST_CASE("backward: a ring has a slot for every pair of a section and those under way") {
  for (const char* text :
       {"heads=16,batch=8", "heads=16,batch=8,causal=1", "heads=16,heads_kv=4,batch=8", "heads=1,batch=1"})
    for (const int seqlen : {128, 512, 2048, 16384})
      for (const int section : {0, 1, 7, 64, 1000})
        for (const int workers : {0, 1, 132, 100000}) {
          Problem p = parse_problem(std::string("op=backward,head_dim=128,") + text);
          p.seqlen_q = p.seqlen_k = seqlen;
          CAPTURE(std::string(text));
          const KernelSpec spec = specialise(kArch, p, config("persistent=1,finish=ring,registers=224"));
          const BackwardGrid grid = backward_grid(spec, {.workers = workers, .section = section}, p, 132);
          const std::int64_t pairs = p.heads_kv * p.batch, tiles_n = (p.seqlen_k + 127) / 128;
          CHECK(grid.section >= 1);
          CHECK(grid.section <= pairs);
          // Nobody waits for a pair of his own section, whose blocks of keys may wait for him.
          CHECK(grid.slots >= std::min<std::int64_t>(grid.section, pairs));
          CHECK(grid.slots <= pairs);
          // All thread blocks have work, and another section starts.
          CHECK((grid.slots == pairs || (grid.slots - grid.section) * tiles_n >= grid.blocks));
        }
  // Small enough for L2, at usual lengths.
  for (const int seqlen : {512, 1024, 2048, 4096})
    for (const int causal : {0, 1}) {
      const Problem p = parse_problem(fmt::format("op=backward,head_dim=128,heads=16,batch={},seqlen_q={},causal={}",
                                                  16384 / seqlen, seqlen, causal));
      const KernelSpec spec = specialise(kArch, p, config("persistent=1,finish=ring,registers=224"));
      CHECK(backward_grid(spec, {}, p, 132).slots * std::int64_t{seqlen} * 128 * 4 <= (causal ? 30 : 22) << 20);
    }
  // Without keys there is nothing to sum.
  const Problem none = parse_problem("op=backward,head_dim=128,seqlen_q=100,seqlen_k=0");
  const KernelSpec spec = specialise(kArch, none, config("persistent=1,finish=ring,registers=224"));
  CHECK(backward_grid(spec, {}, none, 132).slots == 0);
}

TEST_CASE("backward: the cost model orders what is plainly ordered") {
  const Problem p = parse_problem("op=backward,head_dim=128,heads=16,batch=4,seqlen_q=4096");
  const auto total = [&](const std::string& text) { return estimate(kArch, p, config(text)).total; };
  const std::string lagging = "lag=1,ping_pong=1,late_fences=1";
  CHECK(total(lagging + ",prefetch=1") < total(""));
  CHECK(total("") < total("dq=direct"));
  // What prepares and finishes dQ is a quarter of a short problem.
  const Problem brief = parse_problem("op=backward,head_dim=128,heads=16,batch=32,seqlen_q=512");
  CHECK(estimate(kArch, brief, config("persistent=1,finish=ring,registers=224")).total <
        0.9 * estimate(kArch, brief, config("persistent=1,registers=224")).total);
  CHECK(estimate(kArch, brief,
                 config(lagging + ",registers=224,persistent=1,k_stages=2,dkv=direct,"
                                  "boundary=overlapped"))
            .total <
        estimate(kArch, brief, config(lagging + ",registers=224,persistent=1,k_stages=2,dkv=direct")).total);
  CHECK(estimate(kArch, brief, config("sums=stored")).total < estimate(kArch, brief, config("")).total);
  // A quarter of the steps in a device's last block of keys.
  const Problem grouped = parse_problem("op=backward,head_dim=128,heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1");
  const auto of_grouped = [&](const std::string& text) { return estimate(kArch, grouped, config(text)).total; };
  CHECK(of_grouped(lagging + ",dkv=parts") < 0.7 * of_grouped(lagging));
  CHECK(of_grouped(lagging + ",dkv=parts,parts=4") < of_grouped(lagging + ",dkv=parts,parts=2"));
  CHECK(total(lagging + ",dkv=parts") > total(lagging));
  CHECK(total("") < total("split=columns"));
  CHECK(total("") < total("split=products,dq=pass"));
  const Problem wide = parse_problem("op=backward,head_dim=256,heads=8,batch=4,seqlen_q=4096");
  CHECK(estimate(kArch, wide, config("split=products,dq=pass")).total <
        estimate(kArch, wide, config("split=columns,dq=direct")).total);
  Problem twice = p;
  twice.batch *= 2;
  const double once = estimate(kArch, p, config("")).total;
  CHECK(estimate(kArch, twice, config("")).total == doctest::Approx(2 * once).epsilon(0.1));
  Problem causal = p;
  causal.causal = true;
  CHECK(estimate(kArch, causal, config("")).total < 0.65 * once);
  CHECK(estimate(kArch, causal, config("skip=1")).total < estimate(kArch, causal, config("")).total);
  Problem in_order = p;
  in_order.deterministic = true;
  CHECK(estimate(kArch, in_order, config("")).total > once);
}
