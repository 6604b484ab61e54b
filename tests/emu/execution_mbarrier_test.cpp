// mbarriers, asynchronous operations and clusters.

#include <utility>

#include "runtime/emulator/exec/async.h"
#include "runtime/emulator/exec/mbarrier.h"
#include "tests/emu/native_kernel.h"

using namespace attune::emulator;
using namespace attune::emulator::tests;

namespace {

constexpr std::uint32_t kBarrier = kShared + 1024;

constexpr MbarrierArriveInfo kArrive{AddressSpace::shared, Semantics::release, Scope::cta, false, false, false};
constexpr MbarrierArriveInfo kArriveExpect{AddressSpace::shared, Semantics::release, Scope::cta, false, false, true};
constexpr MbarrierArriveInfo kArriveDrop{AddressSpace::shared, Semantics::release, Scope::cta, true, false, false};
constexpr MbarrierArriveInfo kArriveNoComplete{
    AddressSpace::shared, Semantics::release, Scope::cta, false, true, false};
constexpr MbarrierArriveInfo kArriveRemote{
    AddressSpace::shared_cluster, Semantics::release, Scope::cluster, false, false, false};
constexpr MbarrierWaitInfo kTryParity{true, true, Semantics::acquire, Scope::cta};
constexpr MbarrierWaitInfo kTestParity{false, true, Semantics::acquire, Scope::cta};
constexpr MbarrierWaitInfo kTryState{true, false, Semantics::acquire, Scope::cta};

Launch seeded(Launch launch, std::uint64_t seed) {
  launch.options.seed = seed;
  return launch;
}

/// As kernels wait: in a loop.
void wait(ThreadContext* c, std::uint32_t address, std::uint32_t parity, std::uint32_t site) {
  while (!att_mbarrier_wait(c, &kTryParity, address, parity, site)) loop(c, 4, site);
}

void initialise(ThreadContext* c, std::uint32_t address, std::uint32_t count, std::uint32_t site) {
  if (c->index == 0) att_mbarrier_init(c, address, count, site);
  sync(c, 0, 0, site);
}

/// Copies one word to shared memory, some time, and completes on an mbarrier: what TMA does.
class Copy final : public AsyncOperation {
 public:
  Copy(ThreadContext* issuer, std::uint32_t offset, std::uint32_t value, std::uint32_t mbarrier)
      : AsyncOperation(issuer->block), issuer_(issuer), offset_(offset), value_(value), mbarrier_(mbarrier) {
    if (Checker* checker = issuer->checker()) known_ = checker->snapshot(issuer->agent());
  }

 private:
  void run() override {
    if (Checker* checker = issuer_->checker()) {
      Mbarrier* mbarrier = block()->mbarriers.find(mbarrier_);
      Access access;
      access.agent = mbarrier_agent(mbarrier);
      access.epoch = mbarrier->epoch();
      access.issuer = issuer_->agent();
      access.proxy = Proxy::async;
      access.write = true;
      access.site = 90;
      checker->access(block()->shared_region, offset_, 4, access, known_.get());
    }
    std::memcpy(block()->shared + offset_, &value_, 4);
    mbarrier_complete_tx(issuer_, block(), mbarrier_, 4, 90);
  }

  ThreadContext* issuer_;
  std::uint32_t offset_, value_, mbarrier_;
  std::shared_ptr<const SyncState> known_;
};

void copy(ThreadContext* c, std::uint32_t offset, std::uint32_t value, std::uint32_t mbarrier) {
  c->grid().async().submit(std::make_shared<Copy>(c, offset, value, mbarrier));
}

std::string misuse(Entry entry, unsigned block = 1) {
  return find(run(entry, threads(block)), FindingKind::mbarrier_misuse).message;
}

}  // namespace

TEST_CASE("threads meet at an mbarrier, phase after phase") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 64, 1);
          std::uint32_t sum = 0;
          for (std::uint32_t phase = 0; phase < 6; ++phase) {
            // Two buffers: the next phase's writes meet no reads of this one.
            const std::uint32_t buffer = kShared + phase % 2 * 256;
            store(c, AddressSpace::shared, buffer + c->index * 4, c->index + phase, 2);
            att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 3);
            wait(c, kBarrier, phase & 1, 4);
            sum += load<std::uint32_t>(c, AddressSpace::shared, buffer + (63 - c->index) * 4, 5);
          }
          result(c, sum);
        },
        seeded(threads(64), seed));
    for (std::uint32_t i = 0; i < 64; ++i) CHECK(values[i] == 6 * (63 - i) + 15);
  }
}

TEST_CASE("waits with a state, test_wait and the parity of the phase before") {
  for (const std::uint64_t seed : kSeeds) {
    clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 3, 1);
          // The phase before the first counts as complete.
          CHECK(att_mbarrier_wait(c, &kTestParity, kBarrier, 1, 2) == 1);
          const std::uint64_t state = att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 3);
          const std::uint32_t missing = att_mbarrier_pending_count(state);
          CHECK(missing >= 1);
          CHECK(missing <= 3);
          while (!att_mbarrier_wait(c, &kTryState, kBarrier, state, 4)) loop(c, 4, 4);
          while (!att_mbarrier_wait(c, &kTestParity, kBarrier, 0, 5)) loop(c, 4, 5);
          result(c, 0u);
        },
        seeded(threads(3), seed));
  }
}

TEST_CASE("copies complete on mbarriers, early or late") {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          // Full and empty barriers of two buffers; warp 0 produces, the others consume.
          if (c->index == 0) {
            for (std::uint32_t i = 0; i < 2; ++i) {
              att_mbarrier_init(c, kBarrier + i * 8, 1, 1);
              att_mbarrier_init(c, kBarrier + 16 + i * 8, 64, 1);
            }
          }
          sync(c, 0, 0, 2);
          std::uint32_t sum = 0;
          for (std::uint32_t i = 0; i < 10; ++i) {
            const std::uint32_t buffer = i % 2, parity = i / 2 & 1;
            const std::uint32_t full = kBarrier + buffer * 8, empty = full + 16;
            if (c->index == 0) {
              wait(c, empty, parity ^ 1, 3);
              att_mbarrier_arrive(c, &kArriveExpect, full, 1, 8, 4);
              copy(c, kShared + buffer * 8, i, full);
              copy(c, kShared + buffer * 8 + 4, i * 100, full);
            } else if (c->index >= 32) {
              wait(c, full, parity, 5);
              sum += load<std::uint32_t>(c, AddressSpace::shared, kShared + buffer * 8, 6);
              sum += load<std::uint32_t>(c, AddressSpace::shared, kShared + buffer * 8 + 4, 7);
              att_mbarrier_arrive(c, &kArrive, empty, 1, 0, 8);
            }
          }
          result(c, sum);
        },
        seeded(threads(96), seed));
    for (std::uint32_t i = 32; i < 96; ++i) CHECK(values[i] == 45 * 101);
  }
}

TEST_CASE("a copy that nobody waits for is found whenever it runs") {
  for (const std::uint64_t seed : kSeeds) {
    const Report report = run(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 1, 1);
          if (c->index == 0) {
            att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 4, 2);
            copy(c, kShared, 5, kBarrier);
            load<std::uint32_t>(c, AddressSpace::shared, kShared, 3);
          }
        },
        seeded(threads(32), seed));
    CHECK_MESSAGE((has(report, FindingKind::race) || has(report, FindingKind::uninitialised_read)), report.text());
  }
}

TEST_CASE("operations that depend on others run after them") {
  class Step final : public AsyncOperation {
   public:
    Step(Block* block, int* counter, int expected) : AsyncOperation(block), counter_(counter), expected_(expected) {}

   private:
    void run() override { CHECK(++*counter_ == expected_); }
    int* counter_;
    int expected_;
  };
  for (const std::uint64_t seed : kSeeds) {
    AsyncQueue queue(seed);
    int counter = 0;
    std::vector<std::shared_ptr<AsyncOperation>> steps;
    for (int i = 1; i <= 20; ++i) {
      steps.push_back(std::make_shared<Step>(nullptr, &counter, i));
      if (i > 1) steps.back()->after.push_back(steps[steps.size() - 2]);
      queue.submit(steps.back());
    }
    queue.finish(steps[9].get());
    CHECK(counter == (seed == 0 ? 20 : 10));
    while (queue.run_one()) {
    }
    CHECK(counter == 20);
    CHECK(queue.empty());
  }
}

TEST_CASE("drops lower the count of the phases that follow") {
  for (const std::uint64_t seed : kSeeds) {
    clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 32, 1);
          if (c->lane >= 20) {
            att_mbarrier_arrive(c, &kArriveDrop, kBarrier, 1, 0, 2);
          } else {
            for (std::uint32_t phase = 0; phase < 3; ++phase) {
              att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 3);
              wait(c, kBarrier, phase & 1, 4);
            }
          }
          result(c, 0u);
        },
        seeded(threads(32), seed));
  }
}

TEST_CASE("a thread that only looks goes on") {
  for (const std::uint64_t seed : kSeeds) {
    clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 1, 1);
          // Thread 1 waits for what thread 0 does after it has looked in vain, a few times.
          if (c->index == 0) {
            for (int i = 0; i < 40; ++i)
              CHECK(att_mbarrier_wait(c, i % 2 ? &kTryParity : &kTestParity, kBarrier, 0, 2) == 0);
            att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 3);
          } else {
            wait(c, kBarrier, 0, 4);
          }
          result(c, 0u);
        },
        seeded(threads(2), seed));
  }
}

TEST_CASE("misused mbarriers") {
  CHECK(contains(misuse([](ThreadContext* c) { att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 1); }),
                 "mbarrier.arrive: the mbarrier at shared address 0x800 was never initialised"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 1, 1);
                   att_mbarrier_inval(c, kBarrier, 2);
                   att_mbarrier_wait(c, &kTryParity, kBarrier, 0, 3);
                 }),
                 "was invalidated"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 1, 1);
                   att_mbarrier_init(c, kBarrier, 1, 2);
                 }),
                 "initialised again without mbarrier.inval"));
  CHECK(contains(misuse([](ThreadContext* c) { att_mbarrier_init(c, kBarrier, 0, 1); }), "count 0"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 3, 1);
                   att_mbarrier_arrive(c, &kArrive, kBarrier, 2, 0, 2);
                   att_mbarrier_arrive(c, &kArrive, kBarrier, 2, 0, 3);
                 }),
                 "2 arrivals where 1 are missing of 3"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 2, 1);
                   att_mbarrier_tx(c, AddressSpace::shared, kBarrier, 1 << 20, 2);
                 }),
                 "1048576 outstanding bytes"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 1, 1);
                   att_mbarrier_arrive(c, &kArriveNoComplete, kBarrier, 1, 0, 2);
                 }),
                 ".noComplete"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 1, 1);
                   store(c, AddressSpace::shared, kBarrier + 4, 5u, 2);
                 }),
                 "4 bytes written at shared address 0x804 overwrite the mbarrier at 0x800"));
  CHECK(contains(misuse([](ThreadContext* c) {
                   att_mbarrier_init(c, kBarrier, 1, 1);
                   const std::uint64_t state = att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 2);
                   att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 3);
                   att_mbarrier_wait(c, &kTryState, kBarrier, state, 4);
                 }),
                 "waits with a state of phase 0"));
  const Report report = run([](ThreadContext* c) { att_mbarrier_init(c, kBarrier + 4, 1, 1); }, threads(1));
  CHECK(contains(find(report, FindingKind::misaligned).message, "mbarrier.init"));
}

TEST_CASE("a wait that never ends says what is missing") {
  for (const std::uint64_t seed : kSeeds) {
    const Report report = run(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 2, 1);
          if (c->index == 0) att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 4096, 2);
          wait(c, kBarrier, 0, 3);
        },
        seeded(threads(64), seed));
    REQUIRE(report.findings.size() == 1);
    CHECK(report.findings[0].kind == FindingKind::deadlock);
    CHECK(report.findings[0].message ==
          "no thread can go on: threads 0-63 (warps 0-1) wait for the mbarrier at shared address 0x800 (offset 1024), "
          "phase 0 (parity 0): 1 of 2 arrivals are missing, 4096 bytes are outstanding [PTX line 3]");
    // A loop of test_wait is no different.
    const Report polling = run(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 2, 1);
          while (!att_mbarrier_wait(c, &kTestParity, kBarrier, 0, 3)) loop(c, 4, 4);
        },
        seeded(threads(64), seed));
    CHECK(has(polling, FindingKind::deadlock));
  }
}

TEST_CASE("initialising an mbarrier is a write that others must be ordered after") {
  const Report report = run(
      [](ThreadContext* c) {
        if (c->index == 0) {
          att_mbarrier_init(c, kBarrier, 2, 1);
        } else if (c->index == 32) {
          att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 2);
        }
      },
      threads(64));
  const Finding race = find(report, FindingKind::race);
  CHECK(race.at.ptx_line == 2);
}

TEST_CASE("blocks of a cluster share memory and barriers") {
  for (const std::uint64_t seed : kSeeds) {
    Launch launch = seeded(threads(32, 8), seed);
    launch.options.cluster.x = 4;
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          const auto rank =
              static_cast<std::uint32_t>(att_special(c, static_cast<std::uint32_t>(SpecialRegister::cluster_ctarank)));
          const std::uint32_t next = att_mapa(c, kShared, (rank + 1) % 4, 1);
          CHECK(att_getctarank(c, next) == (rank + 1) % 4);
          store(c, AddressSpace::shared_cluster, next + c->index * 4, c->block->serial * 100 + c->index, 2);
          att_cluster_arrive(c, Semantics::release, 1, 3);
          att_cluster_wait(c, Semantics::acquire, 1, 4);
          const auto own = load<std::uint32_t>(c, AddressSpace::shared, kShared + c->index * 4, 5);
          // The same by a generic address.
          const std::uint64_t generic = att_cvta_from(c, next, AddressSpace::shared_cluster);
          CHECK(load<std::uint32_t>(c, AddressSpace::generic, generic + c->index * 4, 6) ==
                c->block->serial * 100 + c->index);
          att_cluster_arrive(c, Semantics::release, 1, 7);
          att_cluster_wait(c, Semantics::acquire, 1, 8);
          result(c, own);
        },
        launch);
    for (std::uint32_t i = 0; i < 256; ++i) {
      const std::uint32_t block = i / 32;
      CHECK(values[i] == (block / 4 * 4 + (block + 3) % 4) * 100 + i % 32);
    }
  }
}

TEST_CASE("remote arrivals") {
  for (const std::uint64_t seed : kSeeds) {
    Launch launch = seeded(threads(32, 2), seed);
    launch.options.cluster.x = 2;
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          initialise(c, kBarrier, 32, 1);
          att_cluster_arrive(c, Semantics::release, 1, 2);
          att_cluster_wait(c, Semantics::acquire, 1, 3);
          const std::uint32_t other = 1 - c->block->rank;
          store(c, AddressSpace::shared_cluster, att_mapa(c, kShared + c->index * 4, other, 4), c->block->rank + 5, 5);
          att_mbarrier_arrive(c, &kArriveRemote, att_mapa(c, kBarrier, other, 6), 1, 0, 7);
          wait(c, kBarrier, 0, 8);
          result(c, load<std::uint32_t>(c, AddressSpace::shared, kShared + c->index * 4, 9));
          att_cluster_arrive(c, Semantics::release, 1, 10);
          att_cluster_wait(c, Semantics::acquire, 1, 11);
        },
        launch);
    for (std::uint32_t i = 0; i < 64; ++i) CHECK(values[i] == (i < 32 ? 6u : 5u));
  }
}

TEST_CASE("faults in clusters") {
  Launch launch = threads(32, 2);
  launch.options.cluster.x = 2;
  const Report exited = run(
      [](ThreadContext* c) {
        if (c->block->rank == 0) return;
        for (int i = 0; i < 100; ++i) att_yield(c, 1);
        load<std::uint32_t>(c, AddressSpace::shared_cluster, att_mapa(c, kShared, 0, 2), 3);
      },
      launch);
  CHECK(contains(find(exited, FindingKind::out_of_bounds).message,
                 "belongs to block 0 of the cluster, which has exited"));
  const Report space = run(
      [](ThreadContext* c) {
        load<std::uint32_t>(c, AddressSpace::shared, att_mapa(c, kShared, 1 - c->block->rank, 2), 3);
        att_mapa(c, kShared, 2, 4);
      },
      launch);
  CHECK(contains(find(space, FindingKind::out_of_bounds).message, "which needs .shared::cluster"));
  CHECK(contains(find(space, FindingKind::bad_operand).message, "rank 2 in a cluster of 2 blocks"));
  const Report twice = run(
      [](ThreadContext* c) {
        att_cluster_arrive(c, Semantics::release, 1, 1);
        att_cluster_arrive(c, Semantics::release, 1, 2);
        att_cluster_wait(c, Semantics::acquire, 1, 3);
        att_cluster_wait(c, Semantics::acquire, 1, 4);
      },
      launch);
  REQUIRE(twice.findings.size() == 2);
  CHECK(contains(twice.findings[0].message, "barrier.cluster.arrive twice"));
  CHECK(contains(twice.findings[1].message, "without barrier.cluster.arrive before"));
  const Report alone = run(
      [](ThreadContext* c) {
        att_cluster_arrive(c, Semantics::release, 1, 1);
        if (c->block->rank == 1) att_barrier(c, BarrierMode::sync, 1, 64, 0, 1, 2);
        att_cluster_wait(c, Semantics::acquire, 1, 3);
      },
      [] {
        Launch two = threads(64, 2);
        two.options.cluster.x = 2;
        return two;
      }());
  CHECK(alone.clean());
  const Report missing = run(
      [](ThreadContext* c) {
        if (c->block->rank == 1) {
          att_barrier(c, BarrierMode::sync, 1, 32, 0, 1, 1);
          att_barrier(c, BarrierMode::sync, 1, 64, 0, 1, 1);
        }
        att_cluster_arrive(c, Semantics::release, 1, 2);
        att_cluster_wait(c, Semantics::acquire, 1, 3);
      },
      launch);
  CHECK(has(missing, FindingKind::barrier_misuse));
}
