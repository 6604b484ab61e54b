// Lowering and the barrier simulation: every schedule of the space runs, and planted faults are found.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "codegen/schedule.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;

namespace {

const Arch kArch = parse_arch("sm_90a");

KernelSpec spec_of(const char* problem, const char* config) {
  return specialise(kArch, parse_problem(problem), parse_config(config));
}

int count(const std::vector<Line>& lines, Line::Kind kind) {
  return static_cast<int>(
      std::count_if(lines.begin(), lines.end(), [&](const Line& line) { return line.kind == kind; }));
}
int position(const std::vector<Line>& lines, Line::Kind kind) {
  return static_cast<int>(
      std::find_if(lines.begin(), lines.end(), [&](const Line& line) { return line.kind == kind; }) - lines.begin());
}

Schedule without(Schedule schedule, Action::Kind kind, Buffer buffer) {
  std::erase_if(schedule.step, [&](const Action& a) { return a.kind == kind && a.buffer == buffer; });
  return schedule;
}

constexpr const char* kOverlapped = "softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped";
constexpr const char* kFa3 = "softmax=exact,order=qk_pv,q=shared,q_buffers=2,o=own,boundary=overlapped";

}  // namespace

TEST_CASE("wait counts are derived from what was issued after") {
  const KernelSpec spec = spec_of("head_dim=128", kFa3);
  const Program program = lower(spec, schedule_for(spec.config), 128);
  std::vector<int> pending;
  for (const Line& line : program.block)
    if (line.kind == Line::Kind::wait) pending.push_back(line.pending);
  CHECK(pending == std::vector<int>{1, 0});  // QK with PV behind it, then PV
  CHECK(count(program.first, Line::Kind::issue_pv) == 0);
  CHECK(count(program.first, Line::Kind::take_turn) == 0);
  CHECK(count(program.drain, Line::Kind::issue_qk) == 0);
  CHECK(count(program.drain, Line::Kind::epilogue) == 1);
  CHECK(count(program.block, Line::Kind::epilogue) == 0);
}

TEST_CASE("the first block of a stream takes a turn where it is told to, its last product none") {
  const std::string config = std::string(kOverlapped) + ",first_turn=1";
  const KernelSpec spec = spec_of("head_dim=128", config.c_str());
  const Program program = lower(spec, schedule_for(spec.config), 128);
  CHECK(count(program.first, Line::Kind::take_turn) == 1);
  CHECK(count(program.first, Line::Kind::pass_turn) == 1);
  CHECK(count(program.first, Line::Kind::issue_pv) == 0);
  CHECK(position(program.first, Line::Kind::take_turn) < position(program.first, Line::Kind::issue_qk));
  // It ends with the scores of a first block as wide as the others, at the start of a launch; else once they are asked
  // for.
  const auto late = [](const Program& p) {
    CHECK(position(p.first, Line::Kind::pass_turn) < position(p.first, Line::Kind::softmax));
    return position(p.first, Line::Kind::wait) < position(p.first, Line::Kind::pass_turn);
  };
  CHECK(late(program));
  CHECK_FALSE(late(lower(spec, schedule_for(spec.config), 64)));
  const KernelSpec drained = spec_of("head_dim=128", "softmax=exact,order=qk_pv,first_turn=1");
  CHECK_FALSE(late(lower(drained, schedule_for(drained.config), 128)));
  CHECK(count(program.drain, Line::Kind::take_turn) == 0);
}

TEST_CASE("at a tile boundary the output is finished while the next product runs") {
  const KernelSpec spec = spec_of("head_dim=128", kOverlapped);
  const Program program = lower(spec, schedule_for(spec.config), 128);
  REQUIRE(program.flattened);
  std::vector<int> pending;
  for (const Line& line : program.boundary)
    if (line.kind == Line::Kind::wait) pending.push_back(line.pending);
  CHECK(pending == std::vector<int>{1, 0});
  CHECK(position(program.boundary, Line::Kind::issue_qk) < position(program.boundary, Line::Kind::epilogue));
  CHECK(position(program.boundary, Line::Kind::epilogue) < position(program.boundary, Line::Kind::softmax));
  CHECK(count(program.boundary, Line::Kind::save_row) == 0);
  // FA3's order starts the new tile's softmax first, so the old row state is set aside.
  const KernelSpec fa3 = spec_of("head_dim=128", kFa3);
  const Program other = lower(fa3, schedule_for(fa3.config), 128);
  CHECK(count(other.boundary, Line::Kind::save_row) == 1);
  CHECK(position(other.boundary, Line::Kind::save_row) < position(other.boundary, Line::Kind::softmax));
  CHECK(position(other.boundary, Line::Kind::softmax) < position(other.boundary, Line::Kind::epilogue));
}

TEST_CASE("a narrow first block has a step of its own after it") {
  const KernelSpec spec = spec_of("head_dim=128,causal=1", "softmax=zero,order=pv_qk,diagonal=trimmed");
  CHECK(first_width(spec, 0) == 64);
  CHECK(first_width(spec, 1) == 128);
  const Program program = lower(spec, schedule_for(spec.config), 64);
  REQUIRE(program.has_second);
  for (const Line& line : program.second)
    if (line.kind == Line::Kind::issue_pv) CHECK(line.width == 64);
  CHECK_FALSE(lower(spec, schedule_for(spec.config), 128).has_second);
}

TEST_CASE("every schedule of the space runs without deadlock or overwritten buffers") {
  for (const char* text :
       {"head_dim=128,heads=16", "head_dim=128,heads=16,causal=1", "head_dim=64,heads=32,causal=1",
        "head_dim=256,heads=8,causal=1", "head_dim=96,heads=8,seqlen_q=1000", "head_dim=256,heads=8"}) {
    const Problem p = parse_problem(text);
    for (const Config& c : candidates(kArch, p)) {
      const std::string fault = simulate(specialise(kArch, p, c));
      CAPTURE(to_string(c));
      REQUIRE(fault == "");
    }
  }
}

TEST_CASE("a tile boundary that passes over two blocks with two stages is refused") {
  // Hung on an H200: the upper warpgroup waits for the third K block, which is loaded after a V block whose stage it
  // holds.
  const KernelSpec spec =
      spec_of("head_dim=256,heads=8,causal=1",
              "softmax=zero,order=pv_qk,o=own,boundary=overlapped,grid=dynamic,diagonal=skipped,block_n=48");
  CHECK(simulate(spec).find("deadlock: producer waits on V[") == 0);
  CHECK_THROWS_WITH(emit(spec), doctest::Contains("deadlock"));
}

TEST_CASE("a cluster that asks for the next Q before its upper tile is over its skipped blocks is refused") {
  // The upper tile passes over three blocks of 64 keys at a tile boundary, but two stages hold no more than two.
  const auto simulated = [](const char* block_n) {
    const std::string config =
        "cluster=2,stages=2,softmax=zero,order=pv_qk,q=registers,q_ahead=1,o=own,boundary=overlapped,grid=dynamic,"
        "diagonal=skipped,block_n=";
    return simulate(spec_of("head_dim=128,heads=16,causal=1", (config + block_n).c_str()));
  };
  CHECK(simulated("64").starts_with("deadlock: block 0 producer waits on "));
  CHECK(simulated("128") == "");
}

TEST_CASE("skipped blocks of unequal number that meet turns are refused") {
  // Hung on an H200: the lowest warpgroup holds its turn while it waits for the third V block, whose stage the highest
  // one gives back after four skipped K blocks, each of which needs a turn.
  const auto simulated = [](const char* ping_pong) {
    const std::string config =
        "cluster=2,consumers=3,block_n=80,stages=2,softmax=exact,order=qk_pv,q=shared,o=own,boundary=drained,"
        "grid=dynamic,diagonal=skipped,ping_pong=";
    return simulate(
        spec_of("head_dim=128,heads=12,causal=1,seqlen_q=1024,seqlen_k=1024", (config + ping_pong).c_str()));
  };
  CHECK(simulated("1").find("deadlock") == 0);
  CHECK(simulated("1").find("pass over 4, 3, 2, 2, 1, 0)") != std::string::npos);
  CHECK(simulated("0") == "");
}

TEST_CASE("each thread block of a cluster needs what the others load and release") {
  const KernelSpec spec = spec_of("head_dim=128", "cluster=2,softmax=zero,order=pv_qk,q=registers,o=own,grid=dynamic");
  const Schedule good = schedule_for(spec.config);
  REQUIRE(simulate(spec, good) == "");
  const std::string fault = simulate(spec, without(good, Action::Kind::await, Buffer::k));
  CHECK(fault.find("expects K(") != std::string::npos);
  CHECK(fault.find("in block ") != std::string::npos);
}

TEST_CASE("planted faults are found and named") {
  const KernelSpec spec = spec_of("head_dim=128", kOverlapped);
  const Schedule good = schedule_for(spec.config);
  REQUIRE(simulate(spec, good) == "");
  SUBCASE("a forgotten release leaves the consumer on an old stage") {
    CHECK(simulate(spec, without(good, Action::Kind::release, Buffer::k)).find("expects K(tile 0, block 0)") !=
          std::string::npos);
    CHECK(simulate(spec, without(good, Action::Kind::release, Buffer::v)).find("expects V(tile 0, block 0)") !=
          std::string::npos);
  }
  SUBCASE("a forgotten await reads a buffer that is not loaded") {
    const std::string fault = simulate(spec, without(good, Action::Kind::await, Buffer::k));
    CHECK(fault.find("expects K(") != std::string::npos);
  }
  SUBCASE("a release before the wait lets the producer overwrite") {
    Schedule early = good;
    const auto wait = std::find_if(early.step.begin(), early.step.end(),
                                   [](const Action& a) { return a.kind == Action::Kind::wait; });
    std::rotate(wait, wait + 1, wait + 2);  // the wait goes behind the first release
    CHECK(simulate(spec, early).find("may still read it") != std::string::npos);
  }
  SUBCASE("a turn that is not passed on stops the other warpgroup") {
    Schedule greedy = good;
    std::erase_if(greedy.step, [](const Action& a) { return a.kind == Action::Kind::pass_turn; });
    CHECK(simulate(spec, greedy).find("waits on turn 1") != std::string::npos);
  }
  SUBCASE("a turn passed on twice is unequal") {
    Schedule generous = good;
    generous.pass_turn();
    CHECK(simulate(spec, generous).find("unequal turns") != std::string::npos);
  }
}
