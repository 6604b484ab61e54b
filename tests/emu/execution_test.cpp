// Warps, barriers, atomics and the scheduler.

#include <bit>
#include <cmath>
#include <set>

#include "tests/emu/native_kernel.h"

using namespace attune::emulator;
using namespace attune::emulator::tests;

namespace {

Launch seeded(Launch launch, std::uint64_t seed) {
  launch.options.seed = seed;
  return launch;
}

}  // namespace

TEST_CASE("shuffles") {
  // value, lane operand and clamp of each mode, against what the lanes must see.
  for (const std::uint64_t seed : kSeeds) {
    const auto up = clean_results<std::uint64_t>(
        [](ThreadContext* c) { result(c, att_shfl(c, ShuffleMode::up, c->lane + 100, 3, 0, kAll, 1)); },
        seeded(threads(64), seed));
    const auto down = clean_results<std::uint64_t>(
        [](ThreadContext* c) { result(c, att_shfl(c, ShuffleMode::down, c->lane + 100, 3, 31, kAll, 1)); },
        seeded(threads(64), seed));
    const auto butterfly = clean_results<std::uint64_t>(
        [](ThreadContext* c) { result(c, att_shfl(c, ShuffleMode::bfly, c->lane + 100, 5, 31, kAll, 1)); },
        seeded(threads(64), seed));
    // Segments of eight lanes.
    const auto index = clean_results<std::uint64_t>(
        [](ThreadContext* c) { result(c, att_shfl(c, ShuffleMode::idx, c->lane + 100, 2, 0x181F, kAll, 1)); },
        seeded(threads(64), seed));
    const std::uint64_t in_range = std::uint64_t{1} << 32;
    for (std::uint64_t i = 0; i < 64; ++i) {
      const std::uint64_t lane = i % 32;
      CHECK(up[i] == (lane >= 3 ? in_range | (lane + 97) : lane + 100));
      CHECK(down[i] == (lane <= 28 ? in_range | (lane + 103) : lane + 100));
      CHECK(butterfly[i] == (in_range | ((lane ^ 5) + 100)));
      CHECK(index[i] == (in_range | (lane / 8 * 8 + 2 + 100)));
    }
  }
}

TEST_CASE("a shuffle reads a lane that does not take part") {
  const Report report = run(
      [](ThreadContext* c) {
        if (c->lane < 16) att_shfl(c, ShuffleMode::idx, c->lane, 20, 31, 0xFFFF, 3);
      },
      threads(32));
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].kind == FindingKind::divergence);
  CHECK(report.findings[0].at.ptx_line == 3);
  CHECK(contains(report.findings[0].message, "reads lane 20"));
}

TEST_CASE("votes, matches and reductions") {
  for (const std::uint64_t seed : kSeeds) {
    const Launch launch = seeded(threads(32), seed);
    const auto ballot = clean_results<std::uint32_t>(
        [](ThreadContext* c) { result(c, att_vote(c, VoteMode::ballot, c->lane % 3 == 0, kAll, 1)); }, launch);
    const auto any = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          result(c, att_vote(c, VoteMode::any, c->lane == 7, kAll, 1) |
                        att_vote(c, VoteMode::all, c->lane != 7, kAll, 2) << 1 |
                        att_vote(c, VoteMode::uni, 0, kAll, 3) << 2);
        },
        launch);
    const auto match = clean_results<std::uint64_t>(
        [](ThreadContext* c) { result(c, att_match(c, 0, 32, c->lane / 8, kAll, 1)); }, launch);
    const auto match_all =
        clean_results<std::uint64_t>([](ThreadContext* c) { result(c, att_match(c, 1, 64, 5, kAll, 1)); }, launch);
    const auto sum = clean_results<std::uint32_t>(
        [](ThreadContext* c) { result(c, att_redux(c, ReduxOp::add_u32, c->lane, kAll, 1)); }, launch);
    const auto least = clean_results<std::uint32_t>(
        [](ThreadContext* c) { result(c, att_redux(c, ReduxOp::min_s32, 5 - c->lane, kAll, 1)); }, launch);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      CHECK(ballot[lane] == 0x49249249);
      CHECK(any[lane] == 5);
      CHECK(match[lane] == 0xFFu << lane / 8 * 8);
      CHECK(match_all[lane] == 0x1FFFFFFFF);
      CHECK(sum[lane] == 496);
      CHECK(static_cast<std::int32_t>(least[lane]) == -26);
    }
  }
}

TEST_CASE("one lane is elected, the same for the same mask, not always the first") {
  std::set<std::uint64_t> leaders;
  for (const std::uint64_t seed : kSeeds) {
    const auto elected = clean_results<std::uint64_t>(
        [](ThreadContext* c) {
          const std::uint64_t first = att_elect(c, kAll, 1);
          CHECK(att_elect(c, kAll, 2) == first);
          result(c, first);
        },
        seeded(threads(32), seed));
    int count = 0;
    for (std::uint64_t lane = 0; lane < 32; ++lane) {
      CHECK((elected[lane] & 0xFFFFFFFF) == (elected[0] & 0xFFFFFFFF));
      if (elected[lane] >> 32) {
        ++count;
        CHECK((elected[lane] & 0xFFFFFFFF) == lane);
        leaders.insert(lane);
      }
    }
    CHECK(count == 1);
  }
  CHECK(leaders.size() > 1);
  CHECK(leaders.count(0) == 1);
}

TEST_CASE("lanes of a warp go their own ways and meet by mask") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          std::uint32_t value = 0;
          if (c->lane < 8) {
            value = att_redux(c, ReduxOp::add_u32, 1, 0xFF, 1);
          } else if (c->lane < 24) {
            for (int i = 0; i < 3; ++i) value += att_redux(c, ReduxOp::add_u32, 1, 0xFFFF00, 2);
          }
          att_warp_sync(c, kAll, 3);
          // The same instruction at another place is as good.
          value += c->lane & 1 ? att_vote(c, VoteMode::ballot, 1, kAll, 4) & 1
                               : att_vote(c, VoteMode::ballot, 1, kAll, 5) & 1;
          result(c, value);
        },
        seeded(threads(32), seed));
    for (std::uint32_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == (lane < 8 ? 9u : lane < 24 ? 49u : 1u));
  }
}

TEST_CASE("the active mask is of those that come there") {
  for (const std::uint64_t seed : kSeeds) {
    const auto masks = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          std::uint32_t mask = 0;
          if (c->lane % 2) {
            mask = att_activemask(c, 1);
          } else if (c->lane < 8) {
            mask = att_activemask(c, 2);
          }
          att_warp_sync(c, kAll, 3);
          result(c, mask);
        },
        seeded(threads(32), seed));
    for (std::uint32_t lane = 0; lane < 32; ++lane)
      CHECK(masks[lane] == (lane % 2 ? 0xAAAAAAAA : lane < 8 ? 0x55u : 0u));
  }
}

TEST_CASE("exited lanes are not waited for") {
  const auto values = clean_results<std::uint32_t>(
      [](ThreadContext* c) {
        result(c, 0u);
        if (c->lane >= 20) att_exit(c, 1);
        result(c, att_vote(c, VoteMode::ballot, 1, kAll, 2));
      },
      threads(32));
  CHECK(values[0] == 0xFFFFF);
  CHECK(values[31] == 0);
}

TEST_CASE("lanes that wait for each other at different instructions are found at once") {
  const Report report = run(
      [](ThreadContext* c) {
        if (c->lane < 4) {
          sync(c, 0, 0, 5);
        } else {
          att_vote(c, VoteMode::any, 1, kAll, 6);
        }
      },
      threads(32));
  const Finding divergence = find(report, FindingKind::divergence);
  CHECK(divergence.at.ptx_line == 6);
  CHECK(contains(divergence.message, "threads 0-3 (warp 0), which wait for this thread at bar.sync"));
  const Finding deadlock = find(report, FindingKind::deadlock);
  CHECK(contains(deadlock.message, "threads 0-3 (warp 0) wait for bar.sync with threads 4-31 (warp 0) [PTX line 5]"));
}

TEST_CASE("bar.sync orders a block") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          std::uint32_t sum = 0;
          for (std::uint32_t round = 0; round < 4; ++round) {
            store(c, AddressSpace::shared, kShared + c->index * 4, c->index + round, 1);
            sync(c, 0, 0, 2);
            sum += load<std::uint32_t>(c, AddressSpace::shared, kShared + (c->index + 77) % 128 * 4, 3);
            sync(c, 0, 0, 4);
          }
          result(c, sum);
        },
        seeded(threads(128), seed));
    for (std::uint32_t i = 0; i < 128; ++i) CHECK(values[i] == 4 * ((i + 77) % 128) + 6);
  }
}

TEST_CASE("producers arrive and consumers wait") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          std::uint32_t sum = 0;
          for (std::uint32_t round = 0; round < 5; ++round) {
            if (c->index < 64) {
              att_barrier(c, BarrierMode::sync, 2, 128, 0, 1, 1);  // the buffer is free
              store(c, AddressSpace::shared, kShared + c->index * 4, c->index + round, 2);
              att_barrier(c, BarrierMode::arrive, 1, 128, 0, 1, 3);
            } else {
              att_barrier(c, BarrierMode::arrive, 2, 128, 0, 1, 4);
              att_barrier(c, BarrierMode::sync, 1, 128, 0, 1, 5);
              sum += load<std::uint32_t>(c, AddressSpace::shared, kShared + (c->index - 64) * 4, 6);
            }
          }
          result(c, sum);
        },
        seeded(threads(128), seed));
    for (std::uint32_t i = 64; i < 128; ++i) CHECK(values[i] == 5 * (i - 64) + 10);
  }
}

TEST_CASE("barriers reduce predicates") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          const std::uint32_t count = att_barrier(c, BarrierMode::red_popc, 0, 0, c->index % 3 == 0, 1, 1);
          const std::uint32_t all = att_barrier(c, BarrierMode::red_and, 0, 96, c->index != 50, 1, 2);
          const std::uint32_t any = att_barrier(c, BarrierMode::red_or, 0, 0, c->index == 50, 0, 3);
          result(c, count << 2 | all << 1 | any);
        },
        seeded(threads(96), seed));
    for (const std::uint32_t value : values) CHECK(value == (32u << 2 | 1));
  }
}

TEST_CASE("barrier.sync without .aligned takes lanes one by one") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          store(c, AddressSpace::shared, kShared + c->index * 4, c->index, 1);
          if (c->lane % 2) {
            att_barrier(c, BarrierMode::sync, 1, 64, 0, 0, 2);
          } else {
            att_barrier(c, BarrierMode::sync, 1, 64, 0, 0, 3);
          }
          result(c, load<std::uint32_t>(c, AddressSpace::shared, kShared + (63 - c->index) * 4, 4));
        },
        seeded(threads(64), seed));
    for (std::uint32_t i = 0; i < 64; ++i) CHECK(values[i] == 63 - i);
  }
}

TEST_CASE("a block goes on when a warp has exited") {
  for (const std::uint64_t seed : kSeeds) {
    const auto values = clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          result(c, 7u);
          if (c->warp->index == 1) return;
          sync(c, 0, 0, 2);
          result(c, 8u);
        },
        seeded(threads(96), seed));
    CHECK(values[0] == 8);
    CHECK(values[40] == 7);
    CHECK(values[95] == 8);
  }
}

TEST_CASE("misused barriers") {
  const auto misuse = [](Entry entry, unsigned block) {
    const Report report = run(entry, threads(block));
    const Finding finding = find(report, FindingKind::barrier_misuse);
    return finding.message + (finding.other_at ? " / " + std::to_string(finding.other_at->ptx_line) : "");
  };
  CHECK(contains(misuse([](ThreadContext* c) { sync(c, 16, 0, 1); }, 32), "bar.sync 16, 0: there are 16 barriers"));
  CHECK(contains(misuse([](ThreadContext* c) { sync(c, 0, 40, 1); }, 64), "not a multiple of the warp size"));
  CHECK(contains(misuse([](ThreadContext* c) { sync(c, 0, 96, 1); }, 64), "the block has 64 threads"));
  CHECK(contains(misuse([](ThreadContext* c) { att_barrier(c, BarrierMode::arrive, 1, 0, 0, 1, 1); }, 32),
                 "bar.arrive needs a thread count"));
  CHECK(contains(misuse([](ThreadContext* c) { sync(c, 1, c->index < 32 ? 64 : 96, 1 + c->index / 32); }, 96),
                 "the barrier was begun for 64 threads / 1"));
  CHECK(contains(misuse(
                     [](ThreadContext* c) {
                       if (c->index >= 32) return;
                       att_barrier(c, BarrierMode::arrive, 3, 64, 0, 1, 1);
                       att_barrier(c, BarrierMode::arrive, 3, 64, 0, 1, 2);
                     },
                     64),
                 "warp 0 arrives once more before the barrier has completed (32 of 64 threads are there) / 1"));
  CHECK(contains(misuse(
                     [](ThreadContext* c) {
                       const BarrierMode mode = c->index < 32 ? BarrierMode::sync : BarrierMode::red_or;
                       att_barrier(c, mode, 3, 64, 0, 1, 1);
                     },
                     64),
                 "meet in one barrier"));
}

TEST_CASE("a deadlock says who waits for what") {
  for (const std::uint64_t seed : kSeeds) {
    const Report report = run(
        [](ThreadContext* c) {
          if (c->index < 64) {
            sync(c, 1, 128, 10);
          } else if (c->index < 96) {
            sync(c, 0, 0, 11);
          }
        },
        seeded(threads(128), seed));
    REQUIRE(report.findings.size() == 1);
    const Finding& finding = report.findings[0];
    CHECK(finding.kind == FindingKind::deadlock);
    CHECK(finding.at.ptx_line == 10);
    CHECK(finding.message ==
          "no thread can go on: threads 0-63 (warps 0-1) wait for named barrier 1: 64 of 128 threads have arrived "
          "[PTX line 10]; threads 64-95 (warp 2) wait for named barrier 0: threads 0-63 (warps 0-1) are missing "
          "[PTX line 11]; 32 threads have exited");
  }
}

TEST_CASE("atomics") {
  const std::unique_ptr<Machine> machine = Machine::create();
  auto* memory = static_cast<std::uint64_t*>(machine->allocate(1024));
  std::memset(memory, 0, 1024);
  machine->mark_written(memory, 1024);
  const auto once = [&](AtomicOp op, AtomicType type, std::uint64_t initial, std::uint64_t operand,
                        std::uint64_t second) {
    static AtomicInfo info;
    info = {op, type, AddressSpace::global, Semantics::relaxed, Scope::gpu, 1, false};
    memory[0] = initial;
    Launch launch = threads(1);
    launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory);
    launch.parameters[1] = operand;
    launch.parameters[2] = second;
    const Report report = run(
        *machine,
        [](ThreadContext* c) {
          const auto address = parameter<std::uint64_t>(c, 0);
          const std::uint64_t old =
              att_atomic(c, &info, address, parameter<std::uint64_t>(c, 1), parameter<std::uint64_t>(c, 2), 1);
          store(c, AddressSpace::global, address + 8, old, 2);
        },
        launch);
    CHECK_MESSAGE(report.clean(), report.text());
    CHECK(memory[1] == initial);
    return memory[0];
  };
  const auto bits = [](float value) { return std::uint64_t{std::bit_cast<std::uint32_t>(value)}; };
  CHECK(once(AtomicOp::add, AtomicType::u32, 0xFFFFFFFF, 3, 0) == 2);
  CHECK(once(AtomicOp::add, AtomicType::u64, 0xFFFFFFFF, 3, 0) == 0x100000002);
  CHECK(once(AtomicOp::min, AtomicType::s32, 5, 0xFFFFFFFE, 0) == 0xFFFFFFFE);
  CHECK(once(AtomicOp::min, AtomicType::u32, 5, 0xFFFFFFFE, 0) == 5);
  CHECK(once(AtomicOp::max, AtomicType::s64, ~std::uint64_t{0}, 4, 0) == 4);
  CHECK(once(AtomicOp::inc, AtomicType::u32, 4, 4, 0) == 0);
  CHECK(once(AtomicOp::inc, AtomicType::u32, 3, 4, 0) == 4);
  CHECK(once(AtomicOp::dec, AtomicType::u32, 0, 9, 0) == 9);
  CHECK(once(AtomicOp::dec, AtomicType::u32, 7, 9, 0) == 6);
  CHECK(once(AtomicOp::cas, AtomicType::b64, 7, 7, 11) == 11);
  CHECK(once(AtomicOp::cas, AtomicType::b16, 7, 8, 11) == 7);
  CHECK(once(AtomicOp::exch, AtomicType::b32, 7, 8, 0) == 8);
  CHECK(once(AtomicOp::bit_xor, AtomicType::b32, 6, 3, 0) == 5);
  CHECK(once(AtomicOp::bit_and, AtomicType::b64, 6, 3, 0) == 2);
  CHECK(once(AtomicOp::add, AtomicType::f32, bits(1.5f), bits(2.25f), 0) == bits(3.75f));
  CHECK(once(AtomicOp::add, AtomicType::f32, 1, 1, 0) == 0);  // subnormals are flushed in global memory
  CHECK(once(AtomicOp::add, AtomicType::f64, std::bit_cast<std::uint64_t>(1e300), std::bit_cast<std::uint64_t>(1e300),
             0) == std::bit_cast<std::uint64_t>(2e300));
  CHECK(once(AtomicOp::add, AtomicType::f16x2, 0x3C004000, 0x3C003C00, 0) == 0x40004200);
  CHECK(once(AtomicOp::max, AtomicType::bf16x2, 0x3F80BF80, 0x40003F80, 0) == 0x40003F80);
}

TEST_CASE("wide atomics") {
  const std::unique_ptr<Machine> machine = Machine::create();
  auto* memory = static_cast<std::uint64_t*>(machine->allocate(64));
  const std::uint64_t initial[4] = {1, 2, 0, 0};
  std::memcpy(memory, initial, sizeof initial);
  machine->mark_written(memory, sizeof initial);
  Launch launch = threads(1);
  launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory);
  const Report report = run(
      *machine,
      [](ThreadContext* c) {
        static const AtomicInfo cas{
            AtomicOp::cas, AtomicType::b128, AddressSpace::global, Semantics::relaxed, Scope::gpu, 1, false};
        static const AtomicInfo add{
            AtomicOp::add, AtomicType::f32, AddressSpace::global, Semantics::relaxed, Scope::gpu, 4, false};
        const auto address = parameter<std::uint64_t>(c, 0);
        const std::uint64_t swap[4] = {1, 2, 3, 4};
        std::uint64_t old[2];
        att_atomic_wide(c, &cas, address, swap, old, 1);
        CHECK(old[0] == 1);
        CHECK(old[1] == 2);
        const float values[4] = {1, 2, 3, 4};
        att_atomic_wide(c, &add, address + 16, values, nullptr, 2);
        att_atomic_wide(c, &add, address + 16, values, nullptr, 3);
      },
      launch);
  CHECK_MESSAGE(report.clean(), report.text());
  CHECK(memory[0] == 3);
  CHECK(memory[1] == 4);
  float sums[4];
  std::memcpy(sums, memory + 2, sizeof sums);
  for (int i = 0; i < 4; ++i) CHECK(sums[i] == 2.0f * static_cast<float>(i + 1));
}

TEST_CASE("blocks count together, and release and acquire through an atomic") {
  static const AtomicInfo add{AtomicOp::add, AtomicType::u32, AddressSpace::global, Semantics::acq_rel, Scope::gpu, 1,
                              false};
  for (const std::uint64_t seed : kSeeds) {
    for (const int resident : {1, 3}) {
      const std::unique_ptr<Machine> machine = Machine::create();
      auto* memory = static_cast<std::uint32_t*>(machine->allocate(4096));
      memory[0] = 0;
      machine->mark_written(memory, 4);
      Launch launch = seeded(threads(32, 7), seed);
      launch.options.resident_blocks = resident;
      launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory);
      const Report report = run(
          *machine,
          [](ThreadContext* c) {
            const auto address = parameter<std::uint64_t>(c, 0);
            if (c->index != 0) return;
            store(c, AddressSpace::global, address + 64 + c->block->serial * 4, c->block->serial + 1, 1);
            if (att_atomic(c, &add, address, 1, 0, 2) != 6) return;
            std::uint32_t sum = 0;
            for (std::uint32_t i = 0; i < 7; ++i)
              sum += load<std::uint32_t>(c, AddressSpace::global, address + 64 + i * 4, 3);
            store(c, AddressSpace::global, address + 4, sum, 4);
          },
          launch);
      CHECK_MESSAGE(report.clean(), report.text());
      CHECK(memory[0] == 7);
      CHECK(memory[1] == 28);
    }
  }
}

TEST_CASE("a block that waits for a later one needs it to be resident") {
  const auto attempt = [](int resident, std::uint64_t seed) {
    const std::unique_ptr<Machine> machine = Machine::create();
    auto* memory = static_cast<std::uint32_t*>(machine->allocate(64));
    memory[0] = 0;
    machine->mark_written(memory, 4);
    Launch launch = seeded(threads(32, 2), seed);
    launch.options.resident_blocks = resident;
    launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory);
    return run(
        *machine,
        [](ThreadContext* c) {
          const auto address = parameter<std::uint64_t>(c, 0);
          if (c->block->serial == 1) {
            store(c, AddressSpace::global, address, 1u, 1, Semantics::release);
          } else {
            while (load<std::uint32_t>(c, AddressSpace::global, address, 2, Semantics::acquire) == 0) loop(c, 10, 3);
          }
        },
        launch);
  };
  for (const std::uint64_t seed : kSeeds) {
    const Report good = attempt(2, seed);
    CHECK_MESSAGE(good.clean(), good.text());
  }
  const Finding finding = find(attempt(1, 0), FindingKind::no_progress);
  CHECK(contains(finding.message, "limit of 10000000 instructions was reached (1 of 2 blocks have started)"));
  CHECK(finding.at.ptx_line == 3);
}

TEST_CASE("the same seed gives the same order, another one another") {
  const auto order = [](std::uint64_t seed) {
    return clean_results<std::uint32_t>(
        [](ThreadContext* c) {
          static const AtomicInfo add{
              AtomicOp::add, AtomicType::u32, AddressSpace::shared, Semantics::relaxed, Scope::cta, 1, false};
          if (c->index == 0) store(c, AddressSpace::shared, kShared, 0u, 1);
          sync(c, 0, 0, 2);
          result(c, static_cast<std::uint32_t>(att_atomic(c, &add, kShared, 1, 0, 3)));
        },
        seeded(threads(64), seed));
  };
  CHECK(order(5) == order(5));
  CHECK(order(5) != order(6));
  CHECK(order(0) != order(1));
}

TEST_CASE("registers move between warpgroups") {
  for (const std::uint64_t seed : kSeeds) {
    const auto kernel = [](ThreadContext* c) {
      if (c->index < 128) {
        att_setmaxnreg(c, 0, 40, 1);
      } else {
        att_setmaxnreg(c, 1, parameter<std::uint32_t>(c, 1), 2);
      }
    };
    Launch launch = seeded(threads(384), seed);
    launch.options.registers_per_thread = 168;
    launch.parameters[1] = 232;
    CHECK(run(kernel, launch).clean());
    launch.parameters[1] = 240;
    const Report report = run(kernel, launch);
    const Finding finding = find(report, FindingKind::register_pool);
    CHECK(contains(finding.message, "setmaxnreg.inc 240 is never granted: it needs 9216 registers more, 7168 of the"));
    CHECK(has(report, FindingKind::deadlock));
    launch.parameters[1] = 160;
    CHECK(contains(find(run(kernel, launch), FindingKind::register_pool).message,
                   "the warpgroup has 168 registers a thread, which is more"));
    launch.parameters[1] = 236;
    CHECK(contains(find(run(kernel, launch), FindingKind::register_pool).message, "multiples of 8 from 24 to 256"));
  }
}

TEST_CASE("setmaxnreg is for whole warpgroups") {
  Launch launch = threads(128);
  const Report report = run(
      [](ThreadContext* c) {
        if (c->index < 96) att_setmaxnreg(c, 0, 40, 1);
      },
      launch);
  const Finding finding = find(report, FindingKind::divergence);
  CHECK(contains(finding.message, "setmaxnreg.dec: threads 96-127 (warp 3) do not take part"));
}
