// The race checker by itself: each rule with its fault and its repair.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulator/check/checker.h"

using namespace attune::emulator;

namespace {

constexpr Agent kFirst{0, 0}, kSecond{0, 1}, kThird{0, 2};

ProgramImage image_of(int sites) {
  ProgramImage image;
  for (int i = 0; i < sites; ++i) {
    Site& site = image.sites.emplace_back();
    site.line = i + 1;
    site.column = 1;
    image.lines.push_back("\tinstruction" + std::to_string(i) + ";");
  }
  return image;
}

/// Blocks of 256 threads, 64 KB of shared memory that counts as written, and the calls of exec/ in short.
struct Scene {
  explicit Scene(int blocks = 1, int max_findings = 100) : checker(image, max_findings) {
    for (int i = 0; i < blocks; ++i)
      checker.begin_block(static_cast<std::uint32_t>(i), Dim3{static_cast<unsigned>(i), 0, 0}, Dim3{256, 1, 1}, 256);
  }

  void read(Agent thread, std::size_t offset, std::uint32_t site, std::size_t bytes = 4) {
    checker.access(&shared, offset, bytes, {.agent = thread, .issuer = thread, .site = site});
  }
  void write(Agent thread, std::size_t offset, std::uint32_t site, std::size_t bytes = 4) {
    checker.access(&shared, offset, bytes, {.agent = thread, .issuer = thread, .write = true, .site = site});
  }
  void atomic(Agent thread, std::size_t offset, std::uint32_t site, bool write = true) {
    checker.access(&shared, offset, 4,
                   {.agent = thread, .issuer = thread, .write = write, .atomic = true, .updates = write, .site = site});
  }
  void async(Agent agent, std::uint32_t epoch, Agent issuer, bool write, std::size_t offset, std::size_t bytes,
             std::uint32_t site, const SyncState* known = nullptr) {
    checker.access(
        &shared, offset, bytes,
        {.agent = agent, .epoch = epoch, .issuer = issuer, .proxy = Proxy::async, .write = write, .site = site}, known);
  }
  void barrier(const std::vector<Agent>& threads) {
    SyncState state;
    for (const Agent t : threads) checker.release(t, &state);
    for (const Agent t : threads) checker.acquire(t, state);
  }
  void pass(Agent from, Agent to) {
    SyncState state;
    checker.release(from, &state);
    checker.acquire(to, state);
  }
  /// "race 1-2, proxy_race 3-4 x2": kinds, sites, counts over one.
  std::string findings() {
    std::string text;
    last = checker.take_findings();
    for (const Finding& f : last) {
      if (!text.empty()) text += ", ";
      text += std::string(finding_kind_name(f.kind)) + " " + std::to_string(f.at.ptx_line - 1);
      if (f.other_at) text += "-" + std::to_string(f.other_at->ptx_line - 1);
      if (f.count > 1) text += " x" + std::to_string(f.count);
    }
    return text;
  }

  ProgramImage image = image_of(100);
  Checker checker;
  ShadowRegion shared{"shared memory", ProxySpace::shared, 65536, true};
  std::vector<Finding> last;
};

}  // namespace

TEST_CASE("unordered accesses race if one of them writes") {
  Scene s;
  SUBCASE("reads do not") {
    s.read(kFirst, 0, 1);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "");
  }
  SUBCASE("read after write") {
    s.write(kFirst, 0x8400, 1);
    s.read(kSecond, 0x8400, 2);
    CHECK(s.findings() == "race 2-1");
    CHECK(s.last[0].message ==
          "thread (1,0,0) of block (0,0,0) reads shared memory at offset 0x8400 (33792), which thread (0,0,0) of block "
          "(0,0,0) wrote: no barrier or mbarrier orders them");
    CHECK(s.last[0].thread.thread == Dim3{1, 0, 0});
    CHECK(s.last[0].other_thread->thread == Dim3{0, 0, 0});
    CHECK(s.last[0].at.instruction == "instruction2");
    CHECK(s.last[0].other_at->instruction == "instruction1");
  }
  SUBCASE("write after read") {
    s.read(kFirst, 0, 1);
    s.write(kSecond, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("write after write") {
    s.write(kFirst, 0, 1);
    s.write(kSecond, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("a thread with itself does not") {
    s.write(kFirst, 0, 1);
    s.read(kFirst, 0, 2);
    s.write(kFirst, 0, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("what a barrier orders does not") {
    s.write(kFirst, 0, 1);
    s.barrier({kFirst, kSecond});
    s.read(kSecond, 0, 2);
    s.barrier({kFirst, kSecond});
    s.write(kFirst, 0, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("a barrier orders those who take part") {
    s.write(kFirst, 0, 1);
    s.barrier({kFirst, kSecond});
    s.read(kThird, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("a barrier does not order what comes after it") {
    s.barrier({kFirst, kSecond});
    s.write(kFirst, 0, 1);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("order goes one way") {
    s.read(kSecond, 0, 1);
    s.pass(kFirst, kSecond);
    s.write(kFirst, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("order is transitive") {
    s.write(kFirst, 0, 1);
    s.pass(kFirst, kSecond);
    s.pass(kSecond, kThird);
    s.read(kThird, 0, 2);
    CHECK(s.findings() == "");
  }
}

TEST_CASE("every reader is remembered") {
  Scene s;
  std::vector<Agent> but_last;
  for (std::uint32_t i = 0; i < 256; ++i) {
    s.read({0, i}, 64, 1);
    if (i < 255) but_last.push_back({0, i});
  }
  s.barrier(but_last);
  s.write(kFirst, 64, 2);
  CHECK(s.findings() == "race 2-1");
  CHECK(s.last[0].other_thread->thread.x == 255);
}

TEST_CASE("reads that a later read comes after are not what a write is checked against") {
  Scene s;
  s.read(kFirst, 0, 1);
  s.pass(kFirst, kSecond);
  s.read(kSecond, 0, 2);
  s.pass(kSecond, kThird);
  s.write(kThird, 0, 3);
  CHECK(s.findings() == "");
  s.read(kFirst, 4, 1);
  s.pass(kFirst, kSecond);
  s.read(kSecond, 4, 2);
  s.write(kThird, 4, 3);
  CHECK(s.findings() == "race 3-2");
}

TEST_CASE("bytes of one word are apart") {
  Scene s;
  s.write(kFirst, 100, 1, 2);
  s.write(kSecond, 102, 2, 2);
  s.read(kFirst, 100, 3, 2);
  s.read(kSecond, 102, 4, 2);
  s.write(kThird, 99, 5, 1);
  CHECK(s.findings() == "");
  s.read(kThird, 101, 6, 1);
  CHECK(s.findings() == "race 6-1");
  s.read(kThird, 100, 7, 4);
  CHECK(s.findings() == "race 7-2, race 7-1");
  s.barrier({kFirst, kSecond, kThird});
  s.write(kFirst, 100, 8, 4);
  CHECK(s.findings() == "");
  s.read(kSecond, 103, 9, 1);
  CHECK(s.findings() == "race 9-8");
}

TEST_CASE("ranges are checked to their last byte, over pages") {
  Scene s;
  s.write(kFirst, 4090, 1, 4110);
  s.read(kSecond, 4088, 2, 2);
  s.read(kSecond, 8200, 2, 4);
  CHECK(s.findings() == "");
  s.read(kSecond, 4000, 3, 91);
  s.read(kSecond, 8199, 4, 1);
  s.read(kSecond, 0, 5, 65536);
  CHECK(s.findings() == "race 3-1, race 4-1, race 5-1");
}

TEST_CASE("the first unwritten byte is found") {
  ShadowRegion region("memory", ProxySpace::global, 20000, false);
  CHECK(region.first_unwritten(0, 20000) == 0);
  region.mark_written(100, 1);
  CHECK(region.first_unwritten(100, 1) == 101);
  CHECK(region.first_unwritten(100, 2) == 101);
  region.mark_written(0, 12288);
  CHECK(region.first_unwritten(0, 12288) == 12288);
  CHECK(region.first_unwritten(5000, 9000) == 12288);
  region.mark_written(12288, 7712);
  CHECK(region.first_unwritten(3, 19997) == 20000);
  region.mark_written(8191, 2, false);
  CHECK(region.first_unwritten(0, 20000) == 8191);
  CHECK(region.first_unwritten(8192, 100) == 8192);
  CHECK(region.first_unwritten(8193, 100) == 8293);
}

TEST_CASE("reads of what nobody wrote") {
  Scene s;
  ShadowRegion fresh("global allocation of 4096 bytes", ProxySpace::global, 4096, false);
  const auto access = [&](std::size_t offset, std::size_t bytes, bool write, bool updates, std::uint32_t site) {
    s.checker.access(&fresh, offset, bytes,
                     {.agent = kFirst, .issuer = kFirst, .write = write, .updates = updates, .site = site});
  };
  access(512, 8, true, false, 1);
  access(512, 8, false, false, 2);
  CHECK(s.findings() == "");
  access(512, 16, false, false, 3);
  CHECK(s.findings() == "uninitialised_read 3");
  CHECK(s.last[0].message ==
        "thread (0,0,0) of block (0,0,0) reads 16 bytes of global allocation of 4096 bytes at offset 0x200 (512), but "
        "nothing was ever written at offset 0x208 (520)");
  CHECK_FALSE(s.last[0].other_thread.has_value());
  access(600, 4, true, true, 4);
  access(600, 4, false, false, 5);
  CHECK(s.findings() == "uninitialised_read 4");
}

TEST_CASE("bulk copies into shared memory") {
  Scene s;
  const Agent copy = s.checker.new_agent(0, AgentKind::bulk_on_mbarrier);
  SyncState phase;
  phase.happened.set(copy, 1);
  SUBCASE("the issuer itself must wait") {
    s.async(copy, 1, kFirst, true, 1024, 4096, 1);
    s.read(kFirst, 1024, 2);
    CHECK(s.findings() == "race 2-1");
    CHECK(
        s.last[0].message ==
        "thread (0,0,0) of block (0,0,0) reads shared memory at offset 0x400 (1024), which bulk copy issued by thread "
        "(0,0,0) of block (0,0,0) wrote: no wait for that phase of its mbarrier comes in between");
  }
  SUBCASE("who waits may read") {
    s.async(copy, 1, kFirst, true, 1024, 4096, 1);
    s.checker.acquire(kSecond, phase);
    s.read(kSecond, 2048, 2);
    s.pass(kSecond, kThird);
    s.read(kThird, 2048, 3);
    CHECK(s.findings() == "");
    s.async(copy, 2, kFirst, true, 1024, 4096, 4);
    CHECK(s.findings() == "race 4-1, race 4-3");
  }
  SUBCASE("a phase does not stand for the next one") {
    s.checker.acquire(kSecond, phase);
    s.checker.acquire(kFirst, phase);
    s.async(copy, 2, kFirst, true, 1024, 4096, 1);
    s.read(kSecond, 2048, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("copies of one phase are not ordered among themselves") {
    s.async(copy, 1, kFirst, true, 1024, 4096, 1);
    s.async(copy, 1, kFirst, true, 5120, 4096, 2);
    CHECK(s.findings() == "");
    s.async(copy, 1, kFirst, true, 4096, 4096, 3);
    CHECK(s.findings() == "race 3-1, race 3-2");
  }
  SUBCASE("reuse needs the readers' release") {
    s.async(copy, 1, kFirst, true, 1024, 4096, 1);
    s.checker.acquire(kSecond, phase);
    s.read(kSecond, 2048, 2);
    s.pass(kSecond, kFirst);
    s.async(copy, 2, kFirst, true, 1024, 4096, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("generic writes before it must be fenced") {
    s.write(kFirst, 1024, 1);
    s.async(copy, 1, kFirst, true, 1024, 16, 2);
    s.write(kFirst, 2048, 3);
    s.checker.fence_async(kFirst);
    s.async(copy, 1, kFirst, true, 2048, 16, 4);
    CHECK(s.findings() == "proxy_race 2-1");
  }
}

TEST_CASE("a wgmma reads what copies brought and holds the buffer until it is waited for") {
  Scene s;
  const Agent copy = s.checker.new_agent(0, AgentKind::bulk_on_mbarrier);
  const Agent wgmma = s.checker.new_agent(0, AgentKind::wgmma_group);
  const Agent consumer{0, 128};
  SyncState phase;
  phase.happened.set(copy, 1);
  s.async(copy, 1, kFirst, true, 0, 16384, 1);
  SUBCASE("skipped wait for the copy") {
    s.async(wgmma, 1, consumer, false, 0, 16384, 2);
    CHECK(s.findings() == "race 2-1");
    CHECK(s.last[0].message.starts_with("wgmma group 1 of warpgroup 1 of block (0,0,0) reads shared memory at offset"));
  }
  SUBCASE("skipped wait for the wgmma") {
    s.checker.acquire(consumer, phase);
    s.async(wgmma, 1, consumer, false, 0, 16384, 2);
    s.pass(consumer, kFirst);
    s.async(copy, 2, kFirst, true, 0, 16384, 3);
    CHECK(s.findings() == "race 3-2");
    CHECK(s.last[0].message.ends_with(
        "which wgmma group 1 of warpgroup 1 of block (0,0,0) read: no wgmma.wait_group for it comes in between"));
  }
  SUBCASE("waited for") {
    s.checker.acquire(consumer, phase);
    s.async(wgmma, 1, consumer, false, 0, 16384, 2);
    s.async(wgmma, 2, consumer, false, 0, 16384, 2);
    s.checker.learn(consumer, wgmma, 2);
    s.pass(consumer, kFirst);
    s.async(copy, 2, kFirst, true, 0, 16384, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("waited for one group too few") {
    s.checker.acquire(consumer, phase);
    s.async(wgmma, 1, consumer, false, 0, 8192, 2);
    s.async(wgmma, 2, consumer, false, 8192, 8192, 3);
    s.checker.learn(consumer, wgmma, 1);
    s.pass(consumer, kFirst);
    s.async(copy, 2, kFirst, true, 0, 16384, 4);
    CHECK(s.findings() == "race 4-3");
  }
}

TEST_CASE("stores through the async proxy need a fence between") {
  Scene s;
  const Agent reading = s.checker.new_agent(0, AgentKind::bulk_group_read);
  SUBCASE("none") {
    s.write(kFirst, 256, 1);
    s.async(reading, 1, kFirst, false, 0, 1024, 2);
    CHECK(s.findings() == "proxy_race 2-1");
    CHECK(s.last[0].message ==
          "bulk copy (group 1) issued by thread (0,0,0) of block (0,0,0) reads shared memory at offset 0x100 (256), "
          "which thread (0,0,0) of block (0,0,0) wrote through the generic proxy: no fence.proxy.async follows that "
          "write before this access of the async proxy");
  }
  SUBCASE("before the write") {
    s.checker.fence_async(kFirst);
    s.write(kFirst, 256, 1);
    s.async(reading, 1, kFirst, false, 0, 1024, 2);
    CHECK(s.findings() == "proxy_race 2-1");
  }
  SUBCASE("after it") {
    s.write(kFirst, 256, 1);
    s.checker.fence_async(kFirst);
    s.async(reading, 1, kFirst, false, 0, 1024, 2);
    CHECK(s.findings() == "");
  }
  SUBCASE("by the writers, then a barrier") {
    s.write(kFirst, 256, 1);
    s.write(kSecond, 512, 2);
    s.checker.fence_async(kFirst);
    s.checker.fence_async(kSecond);
    s.barrier({kFirst, kSecond, kThird});
    s.async(reading, 1, kThird, false, 0, 1024, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("by one of the writers only") {
    s.write(kFirst, 256, 1);
    s.write(kSecond, 512, 2);
    s.checker.fence_async(kFirst);
    s.barrier({kFirst, kSecond});
    s.async(reading, 1, kFirst, false, 0, 1024, 3);
    CHECK(s.findings() == "proxy_race 3-2");
  }
  SUBCASE("by the issuer after the barrier") {
    s.write(kSecond, 512, 2);
    s.barrier({kFirst, kSecond});
    s.checker.fence_async(kFirst);
    s.async(reading, 1, kFirst, false, 0, 1024, 3);
    CHECK(s.findings() == "");
  }
  SUBCASE("of the state space alone that the fence names") {
    ShadowRegion global("global allocation of 4096 bytes", ProxySpace::global, 4096, true);
    const auto write_both = [&](std::size_t offset) {
      s.write(kFirst, offset, 1);
      s.checker.access(&global, offset, 4, {.agent = kFirst, .issuer = kFirst, .write = true, .site = 2});
    };
    const auto read_both = [&](Agent issuer, std::size_t offset) {
      s.async(reading, 1, issuer, false, offset, 16, 3);
      s.checker.access(&global, offset, 16,
                       {.agent = reading, .epoch = 1, .issuer = issuer, .proxy = Proxy::async, .site = 4});
    };
    write_both(0);
    s.checker.fence_async(kFirst, ProxySpace::global);
    read_both(kFirst, 0);
    CHECK(s.findings() == "proxy_race 3-1");
    write_both(256);
    s.checker.fence_async(kFirst, ProxySpace::shared);
    read_both(kFirst, 256);
    CHECK(s.findings() == "proxy_race 4-2");
    write_both(512);
    s.checker.fence_async(kFirst, ProxySpace::shared);
    s.checker.fence_async(kFirst, ProxySpace::global);
    read_both(kFirst, 512);
    CHECK(s.findings() == "");
    // What others learn by a barrier is told apart, too.
    write_both(1024);
    s.checker.fence_async(kFirst, ProxySpace::global);
    s.barrier({kFirst, kSecond});
    read_both(kSecond, 1024);
    CHECK(s.findings() == "proxy_race 3-1");
    // And whoever learns of them may announce them.
    write_both(2048);
    s.pass(kFirst, kSecond);
    s.checker.fence_async(kSecond, ProxySpace::shared);
    read_both(kSecond, 2048);
    CHECK(s.findings() == "proxy_race 4-2");
  }
  SUBCASE("fenced but not ordered is a race") {
    s.write(kSecond, 512, 2);
    s.checker.fence_async(kSecond);
    s.async(reading, 1, kFirst, false, 0, 1024, 3);
    CHECK(s.findings() == "race 3-2");
  }
  SUBCASE("the staging buffer is free when the group has read") {
    s.write(kFirst, 256, 1);
    s.checker.fence_async(kFirst);
    s.async(reading, 1, kFirst, false, 0, 1024, 2);
    s.write(kFirst, 256, 3);
    CHECK(s.findings() == "race 3-2");
    s.checker.learn(kFirst, reading, 1);
    s.write(kFirst, 260, 4);
    CHECK(s.findings() == "");
  }
}

TEST_CASE("operations that run later know what their issuer knew") {
  Scene s;
  const Agent reading = s.checker.new_agent(0, AgentKind::bulk_group_read);
  s.write(kFirst, 0, 1);
  s.checker.fence_async(kFirst);
  const auto known = s.checker.snapshot(kFirst);
  SUBCASE("what was written before is seen") {
    s.async(reading, 1, kFirst, false, 0, 16, 2, known.get());
    CHECK(s.findings() == "");
  }
  SUBCASE("what the issuer wrote since is not ordered") {
    s.write(kFirst, 4, 3);
    s.async(reading, 1, kFirst, false, 0, 16, 2, known.get());
    CHECK(s.findings() == "race 2-3");
  }
  SUBCASE("nor what others did and the issuer has learned since") {
    s.write(kSecond, 4, 3);
    s.pass(kSecond, kFirst);
    s.async(reading, 1, kFirst, false, 0, 16, 2, known.get());
    CHECK(s.findings() == "race 2-3");
  }
  SUBCASE("even when block and issuer have ended") {
    s.checker.end_block(0);
    s.async(reading, 1, kFirst, false, 0, 16, 2, known.get());
    CHECK(s.findings() == "");
  }
}

TEST_CASE("cp.async writes through the generic proxy, complete when waited for") {
  Scene s;
  const Agent copies = s.checker.new_agent(0, AgentKind::cp_async_group);
  const auto copy = [&](std::uint32_t epoch, std::uint32_t site) {
    s.checker.access(&s.shared, 0, 16,
                     {.agent = copies, .epoch = epoch, .issuer = kFirst, .write = true, .site = site});
  };
  copy(1, 1);
  SUBCASE("not waited for") {
    s.read(kFirst, 0, 2);
    CHECK(s.findings() == "race 2-1");
    CHECK(s.last[0].message.ends_with("no cp.async.wait_group for it comes in between"));
  }
  SUBCASE("waited for") {
    s.checker.learn(kFirst, copies, 1);
    s.read(kFirst, 0, 2);
    s.read(kSecond, 0, 3);
    CHECK(s.findings() == "race 3-1");
    s.pass(kFirst, kSecond);
    s.read(kSecond, 4, 3);
    copy(2, 4);
    CHECK(s.findings() == "race 4-3");
  }
  SUBCASE("the async proxy needs the fence as well") {
    const Agent wgmma = s.checker.new_agent(0, AgentKind::wgmma_group);
    s.checker.learn(kFirst, copies, 1);
    s.async(wgmma, 1, kFirst, false, 0, 4, 2);
    s.checker.fence_async(kFirst);
    s.async(wgmma, 1, kFirst, false, 4, 4, 3);
    CHECK(s.findings() == "proxy_race 2-1");
  }
}

TEST_CASE("atomics do not race with each other but with what is plain") {
  Scene s;
  s.atomic(kFirst, 0, 1);
  s.atomic(kSecond, 0, 2);
  s.atomic(kThird, 0, 3, false);
  CHECK(s.findings() == "");
  SUBCASE("a plain read must come after all of them") {
    s.pass(kSecond, kThird);
    s.read(kThird, 0, 4);
    CHECK(s.findings() == "race 4-1");
    s.barrier({kFirst, kSecond, kThird});
    s.read(kThird, 0, 5);
    CHECK(s.findings() == "");
  }
  SUBCASE("a plain write too, after the atomic reads as well") {
    s.write(kSecond, 0, 4);
    CHECK(s.findings() == "race 4-3, race 4-1");
  }
  SUBCASE("an atomic after a plain write") {
    s.write(kFirst, 4, 4);
    s.atomic(kSecond, 4, 5);
    s.write(kFirst, 8, 6);
    s.pass(kFirst, kSecond);
    s.atomic(kSecond, 8, 7);
    CHECK(s.findings() == "race 5-4");
  }
  SUBCASE("a plain read before an atomic write") {
    s.read(kFirst, 4, 4);
    s.atomic(kSecond, 4, 5, false);
    CHECK(s.findings() == "");
    s.atomic(kSecond, 4, 6);
    CHECK(s.findings() == "race 6-4");
  }
}

TEST_CASE("release and acquire through an atomic location") {
  Scene s;
  const auto store = [&](Agent t, bool releases) {
    s.atomic(t, 64, 10);
    s.checker.atomic_access(t, &s.shared, 64, false, true, false, releases);
  };
  const auto load = [&](Agent t, bool acquires) {
    s.atomic(t, 64, 11, false);
    s.checker.atomic_access(t, &s.shared, 64, true, false, acquires, false);
  };
  const auto update = [&](Agent t, bool acquires, bool releases) {
    s.atomic(t, 64, 12);
    s.checker.atomic_access(t, &s.shared, 64, true, true, acquires, releases);
  };
  s.write(kFirst, 0, 1);
  SUBCASE("st.release, ld.acquire") {
    store(kFirst, true);
    load(kSecond, true);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "");
  }
  SUBCASE("fence; store; load; fence") {
    s.checker.fence(kFirst);
    store(kFirst, false);
    load(kSecond, false);
    s.checker.fence(kSecond);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "");
  }
  SUBCASE("no fence of the writer") {
    store(kFirst, false);
    load(kSecond, false);
    s.checker.fence(kSecond);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("no fence of the reader") {
    s.checker.fence(kFirst);
    store(kFirst, false);
    load(kSecond, false);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "race 2-1");
  }
  SUBCASE("the fence before the write does not count") {
    s.checker.fence(kFirst);
    s.write(kFirst, 4, 3);
    store(kFirst, false);
    load(kSecond, true);
    s.read(kSecond, 0, 2);
    s.read(kSecond, 4, 2);
    CHECK(s.findings() == "race 2-3");
  }
  SUBCASE("an atomic operation carries the release on, a store of another thread does not") {
    store(kFirst, true);
    update(kThird, false, false);
    load(kSecond, true);
    s.read(kSecond, 0, 2);
    CHECK(s.findings() == "");
    s.write(kFirst, 4, 3);
    store(kFirst, true);
    store(kThird, false);
    load(kSecond, true);
    s.read(kSecond, 4, 4);
    CHECK(s.findings() == "race 4-3");
  }
  SUBCASE("fences for the async proxy travel with it") {
    const Agent wgmma = s.checker.new_agent(0, AgentKind::wgmma_group);
    s.checker.fence_async(kFirst);
    store(kFirst, true);
    load(kSecond, true);
    s.async(wgmma, 1, kSecond, false, 0, 16, 2);
    CHECK(s.findings() == "");
  }
}

TEST_CASE("blocks of a grid are concurrent though they run one after another") {
  Scene s(2);
  const Agent other{1, 5};
  ShadowRegion global("global allocation of 131072 bytes", ProxySpace::global, 131072, true);
  const auto access = [&](Agent t, bool write, std::size_t offset, std::uint32_t site) {
    s.checker.access(&global, offset, 4, {.agent = t, .issuer = t, .write = write, .site = site});
  };
  access(kFirst, true, 512, 1);
  s.checker.end_block(0);
  access(other, false, 512, 2);
  CHECK(s.findings() == "race 2-1");
  CHECK(s.last[0].message ==
        "thread (5,0,0) of block (1,0,0) reads global allocation of 131072 bytes at offset 0x200 (512), which thread "
        "(0,0,0) of block (0,0,0) wrote: the blocks are concurrent, and no fence with an atomic and no cluster barrier "
        "orders them");
  CHECK(s.last[0].other_thread->block == Dim3{0, 0, 0});
}

TEST_CASE("the last block of a reduction may read what all have written") {
  for (const bool fenced : {true, false}) {
    constexpr std::uint32_t kBlocks = 5;
    Scene s(kBlocks);
    ShadowRegion partial("global allocation of 20 bytes", ProxySpace::global, 20, false),
        counter("variable counter", ProxySpace::global, 4, true);
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      const Agent leader{b, 0}, worker{b, 7};
      s.checker.access(&partial, b * 4, 4, {.agent = worker, .issuer = worker, .write = true, .site = 1});
      s.barrier({leader, worker});
      if (fenced) s.checker.fence(leader);
      s.checker.access(&counter, 0, 4,
                       {.agent = leader, .issuer = leader, .write = true, .atomic = true, .updates = true, .site = 2});
      s.checker.atomic_access(leader, &counter, 0, true, true, false, false);
      if (b + 1 == kBlocks) {
        if (fenced) s.checker.fence(leader);
        s.barrier({leader, worker});
        s.checker.access(&partial, 0, 20, {.agent = worker, .issuer = worker, .site = 3});
      }
      s.checker.end_block(b);
    }
    CHECK(s.findings() == (fenced ? "" : "race 3-1"));
  }
}

TEST_CASE("findings are kept once for a pair of instructions") {
  Scene s(1, 2);
  for (std::size_t i = 0; i < 10; ++i) {
    s.write(kFirst, i * 4, 1);
    s.read(kSecond, i * 4, 2);
  }
  CHECK_FALSE(s.checker.full());
  s.read(kSecond, 0, 3);
  CHECK(s.checker.full());
  s.read(kSecond, 0, 4);
  s.read(kSecond, 0, 2);
  CHECK(s.findings() == "race 2-1 x11, race 3-1");
  s.checker.add(FindingKind::trap, kThird, 7, "trap");
  s.checker.add(FindingKind::trap, kThird, 7, "trap again");
  CHECK(s.findings() == "trap 7 x2");
  CHECK(s.last[0].message == "trap");
  CHECK(s.last[0].thread.thread.x == 2);
}

TEST_CASE("a report reads well") {
  Scene s;
  s.write(kFirst, 0, 1);
  s.read(kSecond, 0, 2);
  Report report;
  report.findings = s.checker.take_findings();
  CHECK(report.text() ==
        "race: thread (1,0,0) of block (0,0,0) reads shared memory at offset 0x0 (0), which thread (0,0,0) of block "
        "(0,0,0) wrote: no barrier or mbarrier orders them\n"
        "  at `instruction2`, PTX line 3, thread (1,0,0) of block (0,0,0)\n"
        "  against `instruction1`, PTX line 2, thread (0,0,0) of block (0,0,0)\n\n");
}

TEST_CASE("regions and checkers may end in any order, and a launch does not see the last one's accesses") {
  ShadowRegion kept("kept", ProxySpace::global, 4096, false);
  {
    Scene s;
    auto gone = std::make_unique<ShadowRegion>("gone", ProxySpace::global, 4096, true);
    s.checker.access(gone.get(), 0, 4, {.agent = kFirst, .issuer = kFirst, .write = true, .site = 1});
    s.checker.access(&kept, 0, 4, {.agent = kFirst, .issuer = kFirst, .write = true, .site = 1});
    gone.reset();
  }
  Scene s;
  s.checker.access(&kept, 0, 4, {.agent = kSecond, .issuer = kSecond, .site = 2});
  CHECK(s.findings() == "");
}

TEST_CASE("records that no cell holds are forgotten, the others not") {
  Scene s;
  s.write(kFirst, 60000, 1);
  s.read(kThird, 60004, 2);
  for (int i = 0; i < 1'200'000; ++i) {
    s.read(kSecond, static_cast<std::size_t>(i % 1000) * 4, 3);
    if (i % 2 == 0) (void)s.checker.snapshot(kSecond);
  }
  s.write(kThird, 60000, 4);
  s.write(kFirst, 60004, 5);
  s.write(kSecond, 0, 6);
  CHECK(s.findings() == "race 4-1, race 5-2");
}

TEST_CASE("a tile's way through shared memory is cheap") {
  Scene s;
  const Agent copy = s.checker.new_agent(0, AgentKind::bulk_on_mbarrier);
  const Agent wgmma = s.checker.new_agent(0, AgentKind::wgmma_group);
  const Agent consumer{0, 128};
  const auto start = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  for (std::uint32_t round = 1; bytes < 20'000'000; ++round) {
    for (std::size_t row = 0; row < 65536; row += 128) s.async(copy, round, kFirst, true, row, 128, 1);
    SyncState phase;
    phase.happened.set(copy, round);
    for (std::uint32_t i = 0; i < 128; ++i) s.checker.acquire({0, 128 + i}, phase);
    for (std::size_t row = 0; row < 65536; row += 128) s.async(wgmma, round, consumer, false, row, 128, 2);
    for (std::uint32_t i = 0; i < 128; ++i) s.checker.learn({0, 128 + i}, wgmma, round);
    SyncState empty;
    for (std::uint32_t i = 0; i < 128; ++i) s.checker.release({0, 128 + i}, &empty);
    s.checker.acquire(kFirst, empty);
    bytes += std::size_t{2} * 65536;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(s.findings() == "");
  MESSAGE("20 MB of tiles: " << seconds.count() * 1e3 << " ms");
  CHECK(seconds.count() < 5);  // some hundred times what it takes
}

TEST_CASE("matrices that all threads of all blocks read cost little") {
  Scene s(4);
  ShadowRegion matrix("global allocation of 65536 bytes", ProxySpace::global, 65536, true);
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t b = 0; b < 4; ++b) {
    for (std::uint32_t t = 0; t < 256; ++t) {
      const Agent thread{b, t};
      for (std::size_t at = 0; at < 65536; at += 64)
        s.checker.access(&matrix, at, 16, {.agent = thread, .issuer = thread, .site = 1});
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  MESSAGE("1 million reads by 1024 threads: " << seconds.count() * 1e3 << " ms");
  CHECK(seconds.count() < 10);
  s.write({0, 0}, 0, 2);
  CHECK(s.findings() == "");
}
