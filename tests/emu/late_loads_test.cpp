// Loads from shared memory that an arrive can overtake: late where the async proxy then writes over what they read.
#include <attune/emulator.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulator/check/checker.h"
#include "tests/emu/kernel_text.h"

namespace emulator = attune::emulator;
using emulator::Agent;
using emulator::FindingKind;

namespace {

/// The second warp's first lane loads a tile of 1024 bytes, and once more when the first warp has given it back, which
/// `reader` does: with row addresses in %row, a pointer to the same row in %generic, its lane in %lane, %leader for its
/// lane 0, and the mbarriers that lane 0 arrives at in %empty and that nobody need arrive at in %spare. `producer`
/// comes before the second copy.
std::string kernel_text(const std::string& reader, const std::string& producer = "") {
  return emulator::tests::module_text(R"(
.visible .entry run(.param .u64 in, .param .u64 out)
{
  .shared .align 128 .b8 tile[1024];
  .shared .align 8 .b64 full;
  .shared .align 8 .b64 given;
  .shared .align 8 .b64 other;
  .reg .b64 %in, %out, %generic, %state, %rd<8>;
  .reg .b32 %lane, %tile, %row, %full, %empty, %spare, %i, %r<16>;
  .reg .pred %leader, %other_warp, %p<8>, %done;
  ld.param.u64 %in, [in];
  ld.param.u64 %out, [out];
  mov.u32 %lane, %tid.x;
  mov.u32 %tile, tile;
  mov.u32 %full, full;
  mov.u32 %empty, given;
  mov.u32 %spare, other;
  setp.eq.u32 %leader, %lane, 0;
  setp.ge.u32 %other_warp, %lane, 32;
  @!%leader bra $ready;
  mbarrier.init.shared.b64 [%full], 1;
  mbarrier.init.shared.b64 [%empty], 1;
  mbarrier.init.shared.b64 [%spare], 1;
  fence.proxy.async;
$ready:
  bar.sync 0;
  @%other_warp bra $producer;
$wait:
  mbarrier.try_wait.parity.shared.b64 %done, [%full], 0;
  @!%done bra $wait;
  mad.lo.u32 %row, %lane, 16, %tile;
  cvt.u64.u32 %rd0, %row;
  cvta.shared.u64 %generic, %rd0;
)" + reader + R"(
  ret;
$producer:
  setp.ne.u32 %p0, %lane, 32;
  @%p0 bra $end;
  mbarrier.arrive.expect_tx.shared.b64 %state, [%full], 1024;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%in], 1024, [%full];
$first:
  mbarrier.try_wait.parity.shared.b64 %done, [%full], 0;
  @!%done bra $first;
$empty:
  mbarrier.try_wait.parity.shared.b64 %done, [%empty], 0;
  @!%done bra $empty;
)" + producer + R"(
  mbarrier.arrive.expect_tx.shared.b64 %state, [%full], 1024;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%in], 1024, [%full];
$second:
  mbarrier.try_wait.parity.shared.b64 %done, [%full], 1;
  @!%done bra $second;
$end:
  ret;
}
)");
}

emulator::Report run(const std::string& text, std::uint64_t seed, bool optimise) {
  const auto program = emulator::Program::load(text, {.checks = true, .optimise = optimise});
  const auto machine = emulator::Machine::create();
  constexpr std::size_t kBytes = 1024;
  void *in = machine->allocate(kBytes), *out = machine->allocate(kBytes);
  machine->mark_written(in, kBytes);
  emulator::LaunchOptions options;
  options.block.x = 64;
  options.seed = seed;
  void* arguments[] = {&in, &out};
  return machine->launch(*program, "run", options, arguments);
}

void expect_clean(const std::string& reader, const std::string& producer = "") {
  CAPTURE(reader);
  for (const bool optimise : {false, true}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const emulator::Report report = run(kernel_text(reader, producer), seed, optimise);
      CHECK_MESSAGE(report.clean(), report.text());
    }
  }
}

/// `load`: part of the instruction that is late, `copy` of the one that comes too early.
void expect_late(const std::string& reader, const std::string& load) {
  CAPTURE(reader);
  for (const bool optimise : {false, true}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const emulator::Report report = run(kernel_text(reader), seed, optimise);
      REQUIRE_MESSAGE(report.findings.size() == 1, report.text());
      const emulator::Finding& finding = report.findings[0];
      CHECK(finding.kind == FindingKind::late_load);
      CHECK(finding.at.instruction.starts_with("cp.async.bulk"));
      CHECK(finding.other_at->instruction.starts_with(load));
    }
  }
}

const std::string kMatrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%row];\n";
const std::string kLoad = "ld.shared.v2.u32 {%r0, %r1}, [%row];\n";
const std::string kMeet = "bar.warp.sync -1;\n";
const std::string kGive = "@%leader mbarrier.arrive.shared.b64 %state, [%empty];\n";
const std::string kUse = "st.global.u32 [%out], %r1;\n";
const std::string kUseEach = "mad.wide.u32 %rd1, %lane, 4, %out;\nst.global.u32 [%rd1], %r1;\n";

}  // namespace

TEST_CASE("late loads: an arrive overtakes what nobody has used") {
  expect_late(kMatrix + kMeet + kGive + kUseEach, "ldmatrix");
  expect_late(kMatrix + kMeet + kGive, "ldmatrix");
  expect_late(kLoad + kMeet + kGive + kUseEach, "ld.shared");
  expect_late("ld.u32 %r1, [%generic];\n" + kMeet + kGive + kUseEach, "ld.u32");
  expect_late("ld.volatile.shared.u32 %r1, [%row];\n" + kMeet + kGive + kUseEach, "ld.volatile");
}

TEST_CASE("late loads: a use before the release is enough") {
  expect_clean(kMatrix + kUseEach + kMeet + kGive);
  expect_clean(kLoad + kUseEach + kMeet + kGive);
  expect_clean("ld.u32 %r1, [%generic];\n" + kUseEach + kMeet + kGive);
  // Any register of the load's, and under a false guard.
  expect_clean(kMatrix + "setp.lt.u32 %p1, %lane, 0;\n@%p1 add.u32 %r4, %r3, 1;\n" + kMeet + kGive);
  // As the address of the arrive itself.
  expect_clean(
      kMatrix + kMeet +
      "xor.b32 %r4, %r0, %r0;\nadd.u32 %r5, %empty, %r4;\n@%leader mbarrier.arrive.shared.b64 %state, [%r5];\n");
}

TEST_CASE(
    "late loads: one lane's use shows that a matrix has come to all, and nothing of what they loaded themselves") {
  const std::string by_leader = kMeet +
                                "@!%leader bra $given;\nxor.b32 %r4, %r1, %r1;\nadd.u32 %r5, %empty, %r4;\n"
                                "mbarrier.arrive.shared.b64 %state, [%r5];\n$given:\n" +
                                kUseEach;
  expect_clean(kMatrix + by_leader);
  expect_late(kLoad + by_leader, "ld.shared");
  // Another lane's use says nothing where that lane's releases are not waited for.
  expect_late(kMatrix + kMeet + "setp.ne.u32 %p1, %lane, 1;\n@%p1 bra $given;\nadd.u32 %r4, %r1, 1;\n$given:\n" + kGive,
              "ldmatrix");
}

TEST_CASE("late loads: copies are no uses, and what holds one holds the load") {
  expect_late(kMatrix + "mov.b32 %r6, %r1;\n" + kMeet + kGive, "ldmatrix");
  expect_late(kMatrix + "mov.b64 %rd2, {%r0, %r1};\nmov.b64 {%r6, %r7}, %rd2;\n" + kMeet + kGive, "ldmatrix");
  expect_clean(kMatrix + "mov.b64 %rd2, {%r0, %r1};\nmov.b64 {%r6, %r7}, %rd2;\nadd.u32 %r8, %r7, 1;\n" + kMeet +
               kGive);
  // A register that has another value by now.
  expect_late(kMatrix + "mov.u32 %r6, %r1;\nmov.u32 %r6, 5;\nadd.u32 %r8, %r6, 1;\n" + kMeet + kGive, "ldmatrix");
}

TEST_CASE("late loads: a use on another path is none") {
  const std::string sometimes = "setp.gt.u32 %p1, %lane, PAST;\n@%p1 bra $past;\nadd.u32 %r4, %r1, 1;\n$past:\n";
  const auto with = [&](const std::string& past) {
    std::string text = sometimes;
    return text.replace(text.find("PAST"), 4, past);
  };
  expect_clean(kLoad + with("31") + kMeet + kGive);
  expect_late(kLoad + with("30") + kMeet + kGive, "ld.shared");
  // A loop that brings the value of its last round along.
  const std::string loop = "mov.u32 %i, 0;\n$again:\n" + kLoad + "FIRST" + kMeet +
                           "SECOND add.u32 %i, %i, 1;\nsetp.lt.u32 %p1, %i, 3;\n@%p1 bra $again;\n";
  const auto used = [&](const std::string& first, const std::string& second) {
    std::string text = loop;
    text.replace(text.find("SECOND"), 6, second);
    return text.replace(text.find("FIRST"), 5, first);
  };
  const std::string add = "add.u32 %r4, %r1, 1;\n";
  expect_clean(used(add, "") + kGive);
  expect_clean(used("", add) + kMeet + kGive);
  expect_late(used("", "") + kGive + add, "ld.shared");
}

TEST_CASE("late loads: what waits for them") {
  expect_clean(kMatrix + "bar.sync 1, 32;\n" + kGive + kUseEach);
  expect_clean(kMatrix + "fence.proxy.async;\n" + kMeet + kGive + kUseEach);
  expect_clean(kMatrix + "fence.proxy.async.shared::cta;\n" + kMeet + kGive + kUseEach);
  expect_clean("ld.acquire.cta.shared.u32 %r1, [%row];\n" + kMeet + kGive + kUseEach);
  // By PTX's model the fence may stand anywhere between.
  expect_clean(kMatrix + kMeet + kGive + kUseEach, "fence.proxy.async;\n");
  expect_late(kMatrix + "fence.proxy.async.global;\n" + kMeet + kGive + kUseEach, "ldmatrix");
  expect_late(kMatrix + "fence.acq_rel.cta;\n" + kMeet + kGive + kUseEach, "ldmatrix");
  expect_late(kMatrix + kMeet + "@%leader mbarrier.arrive.shared.b64 %state, [%spare];\n" + kGive + kUseEach,
              "ldmatrix");
}

TEST_CASE("late loads: a copy that the reader issues itself") {
  // The second copy of the leader, beside the producer's.
  const std::string copy =
      kMeet +
      "@!%leader bra $issued;\nmbarrier.arrive.expect_tx.shared.b64 %state, [%spare], 512;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%in], 512, [%spare];\n$spare_wait:\n"
      "mbarrier.try_wait.parity.shared.b64 %done, [%spare], 0;\n@!%done bra $spare_wait;\n$issued:\n" +
      kMeet + kUse;
  expect_clean(kLoad + "add.u32 %r4, %r1, 1;\n" + copy.substr(0, copy.size() - kUse.size()) + kGive);
  expect_late(kLoad + copy.substr(0, copy.size() - kUse.size()) + "add.u32 %r4, %r1, 1;\n" + kMeet + kGive,
              "ld.shared");
}

TEST_CASE("late loads: ordinary writes come behind them") {
  const std::string store = "st.shared.u32 [%row], %lane;\nfence.proxy.async;\n";
  expect_clean(kLoad + store + kMeet + kGive + kUseEach);
}

namespace {

constexpr Agent kFirst{0, 0}, kSecond{0, 1}, kThird{0, 2};

/// A block of 256 threads, 64 KB of shared memory and the calls of exec/ in short.
struct Scene {
  emulator::ProgramImage image;
  emulator::Checker checker{image, 100};
  emulator::ShadowRegion shared{"shared memory", emulator::ProxySpace::shared, 65536, true};
  Agent copy;

  Scene() {
    checker.begin_block(0, {0, 0, 0}, {256, 1, 1}, 256);
    copy = checker.new_agent(0, emulator::AgentKind::bulk_on_mbarrier);
  }
  void read(Agent thread, std::size_t offset, std::uint32_t site, std::uint32_t load = 0) {
    checker.access(&shared, offset, 16, {.agent = thread, .issuer = thread, .site = site, .load = load});
  }
  void late_read(Agent thread, std::size_t offset, std::uint32_t site) {
    const std::uint32_t load = checker.begin_load();
    checker.fill(thread, site, load);
    read(thread, offset, site, load);
  }
  void copies_to(std::size_t offset, const emulator::SyncState* known = nullptr) {
    checker.access(
        &shared, offset, 16,
        {.agent = copy, .epoch = 1, .issuer = kThird, .proxy = emulator::Proxy::async, .write = true, .site = 50},
        known);
  }
  void pass(Agent from, Agent to) {
    emulator::SyncState state;
    checker.release(from, &state);
    checker.acquire(to, state);
  }
  std::string findings() {
    std::string text;
    for (const emulator::Finding& f : checker.take_findings())
      text += std::string(finding_kind_name(f.kind)) + " " + f.message.substr(f.message.find("which")) + "\n";
    return text;
  }
};

}  // namespace

TEST_CASE("late loads: other reads hide none") {
  Scene s;
  SUBCASE("by another thread, later") {
    s.late_read(kFirst, 0, 1);
    s.pass(kFirst, kSecond);
    s.read(kSecond, 0, 2);
    s.pass(kSecond, kThird);
    s.copies_to(0);
  }
  SUBCASE("by the same thread, before") {
    s.read(kFirst, 0, 2);
    s.late_read(kFirst, 0, 1);
    s.pass(kFirst, kThird);
    s.copies_to(0);
  }
  SUBCASE("by the same thread, behind it") {
    s.late_read(kFirst, 0, 1);
    s.read(kFirst, 0, 2);
    s.pass(kFirst, kThird);
    s.copies_to(0);
  }
  SUBCASE("used after the release that the copy comes after") {
    s.late_read(kFirst, 0, 1);
    s.pass(kFirst, kThird);
    s.checker.use(kFirst, 1);
    s.copies_to(0);
  }
  SUBCASE("used before the copy runs, but after it was issued") {
    s.late_read(kThird, 0, 1);
    const auto known = s.checker.snapshot(kThird);
    s.checker.use(kThird, 1);
    s.copies_to(0, known.get());
  }
  CHECK(s.findings().starts_with("late_load which thread ("));
}

TEST_CASE("late loads: over, and forgotten") {
  Scene s;
  s.late_read(kFirst, 0, 1);
  CHECK(s.checker.use(kFirst, 1) == 0);
  s.pass(kFirst, kSecond);
  s.read(kSecond, 0, 2);
  s.pass(kSecond, kThird);
  s.copies_to(0);
  CHECK(s.findings() == "");
  // The same instruction again: the registers had come.
  s.late_read(kFirst, 16, 1);
  s.late_read(kFirst, 32, 1);
  s.checker.use(kFirst, 1);
  s.pass(kFirst, kThird);
  s.copies_to(16);
  s.copies_to(32);
  CHECK(s.findings() == "");
  // What is not held any more makes room, and what is stays as it was.
  s.late_read(kSecond, 60000, 3);
  for (int i = 0; i < 1'200'000; ++i) {
    s.late_read(kFirst, 1024 + static_cast<std::size_t>(i % 1000) * 16, 4);
    if (i % 1000 == 999) (void)s.checker.snapshot(kFirst);
  }
  CHECK(s.checker.begin_load() < 1'150'000);
  s.pass(kSecond, kThird);
  s.copies_to(60000);
  CHECK(s.findings().starts_with("late_load which thread (1,0,0)"));
}
