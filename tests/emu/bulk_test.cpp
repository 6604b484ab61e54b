// Bulk copies, contiguous and of tensors: data, completion, and what is done wrong with them.
#include <bit>

#include "runtime/emulator/exec/formats.h"
#include "tests/emu/copy_scene.h"

using namespace attune::emulator;
using namespace attune::emulator::tests;

namespace {

constexpr BulkInfo::Reduce kNoReduce = BulkInfo::Reduce::none;
constexpr BulkInfo load_info(std::uint8_t rank, bool multicast = false) {
  return {
      BulkInfo::Direction::global_to_shared, kNoReduce, AtomicType::b32, rank, true, multicast, BulkInfo::Mode::tile, 0,
      AddressSpace::shared_cluster};
}
constexpr BulkInfo store_info(std::uint8_t rank, BulkInfo::Reduce reduce = kNoReduce,
                              AtomicType type = AtomicType::b32) {
  return {BulkInfo::Direction::shared_to_global,
          reduce,
          type,
          rank,
          false,
          false,
          BulkInfo::Mode::tile,
          0,
          AddressSpace::shared};
}
constexpr BulkInfo to_other_block(BulkInfo::Reduce reduce = kNoReduce) {
  return {BulkInfo::Direction::shared_to_shared_cluster,
          reduce,
          AtomicType::s32,
          0,
          true,
          false,
          BulkInfo::Mode::tile,
          0,
          AddressSpace::shared_cluster};
}
constexpr BulkInfo kLoad = load_info(0), kLoad2d = load_info(2), kLoad2dMulticast = load_info(2, true);
constexpr BulkInfo kStore = store_info(0), kStore2d = store_info(2);
constexpr BulkInfo kToOtherBlock = to_other_block();

void load_linear(ThreadContext* c, std::uint32_t destination, std::uint64_t source, std::uint32_t bytes,
                 std::uint32_t site) {
  BulkOperands operands{};
  operands.destination = destination;
  operands.source = source;
  operands.bytes = bytes;
  operands.mbarrier = kBarrier;
  att_bulk_copy(c, &kLoad, &operands, site);
}

void store_linear(ThreadContext* c, std::uint64_t destination, std::uint32_t source, std::uint32_t bytes,
                  std::uint32_t site, const BulkInfo& info = kStore) {
  BulkOperands operands{};
  operands.destination = destination;
  operands.source = source;
  operands.bytes = bytes;
  att_bulk_copy(c, &info, &operands, site);
}

BulkOperands tensor_operands(std::uint64_t map, std::uint32_t shared, std::int32_t x, std::int32_t y) {
  BulkOperands operands{};
  operands.map = map;
  operands.destination = operands.source = shared;
  operands.mbarrier = kBarrier;
  operands.coordinates[0] = x;
  operands.coordinates[1] = y;
  return operands;
}

// -- kernels ----------------------------------------------------------------------------------------------

constexpr std::uint32_t kBytes = 1024;

/// Global to shared, doubled there by ordinary code, back to global.
void round_trip(ThreadContext* c) {
  initialise(c);
  if (c->index == 0) {
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, kBytes, 3);
    load_linear(c, kBox, input_of(c), kBytes, 4);
  }
  wait(c, 0, 5);
  for (std::uint32_t i = c->index; i < kBytes / 4; i += 32) {
    const auto value = load<std::uint32_t>(c, AddressSpace::shared, kBox + 4 * i, 6);
    store(c, AddressSpace::shared, kBox + 4 * i, 2 * value, 7);
  }
  att_fence(c, FenceKind::proxy_async, 8);
  sync(c, 0, 0, 9);
  if (c->index == 0) {
    store_linear(c, output_of(c), kBox, kBytes, 10);
    att_bulk_commit(c, 11);
    att_bulk_wait(c, 0, 0, 12);
  }
}

/// A box at (16, 12), half of its rows outside, from one tensor to the other.
void tensor_round_trip(ThreadContext* c) {
  initialise(c);
  if (c->index == 0) {
    att_prefetch_tensormap(c, input_map_of(c), 3);
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 32 * 8 * 4, 4);
    const BulkOperands operands = tensor_operands(input_map_of(c), kBox, 16, 12);
    att_bulk_copy(c, &kLoad2d, &operands, 5);
  }
  wait(c, 0, 6);
  sync(c, 0, 0, 7);
  if (c->index == 0) {
    const BulkOperands operands = tensor_operands(output_map_of(c), kBox, 40, -2);
    att_bulk_copy(c, &kStore2d, &operands, 8);
    att_bulk_commit(c, 9);
    att_bulk_wait(c, 0, 1, 10);
  }
}

}  // namespace

TEST_CASE("bulk: contiguous copies to shared memory and back, whenever they happen") {
  for (std::uint64_t seed : kSeeds) {
    Fixture f;
    Launch launch = with_memory();
    launch.options.seed = seed;
    const Report report = f.run(round_trip, launch);
    CHECK_MESSAGE(report.clean(), report.text());
    for (std::size_t i = 0; i < f.output.size(); ++i) {
      REQUIRE(f.output[i] == (i < kBytes / 4 ? 2 * f.input[i] : 7));
    }
  }
}

TEST_CASE("bulk: tensor copies with boxes partly outside") {
  for (std::uint64_t seed : kSeeds) {
    Fixture f;
    Launch launch = with_memory();
    launch.options.seed = seed;
    const Report report = f.run(tensor_round_trip, launch);
    CHECK_MESSAGE(report.clean(), report.text());
    // Rows 12 to 15 and zeros; the store leaves out its first two rows and its last 8 columns.
    for (std::uint32_t row = 0; row < Fixture::kRows; ++row) {
      for (std::uint32_t column = 0; column < Fixture::kColumns; ++column) {
        std::uint32_t expected = 7;
        if (row < 6 && column >= 40) {
          expected = row + 2 < 4 ? f.input[(row + 14) * Fixture::kColumns + column - 24] : 0;
        }
        REQUIRE(f.output[row * Fixture::kColumns + column] == expected);
      }
    }
  }
}

TEST_CASE("bulk: reductions of contiguous copies and of tensors") {
  static constexpr BulkInfo kAdd = store_info(0, BulkInfo::Reduce::add, AtomicType::u32);
  static constexpr BulkInfo kMin2d = store_info(2, BulkInfo::Reduce::min);
  const Entry kernel = [](ThreadContext* c) {
    for (std::uint32_t i = c->index; i < 256; i += 32) store(c, AddressSpace::shared, kBox + 4 * i, 3 + i % 8, 1);
    att_fence(c, FenceKind::proxy_async, 2);
    sync(c, 0, 0, 3);
    if (c->index != 0) return;
    store_linear(c, output_of(c), kBox, 64, 4, kAdd);
    store_linear(c, output_of(c), kBox, 64, 5, kAdd);
    const BulkOperands operands = tensor_operands(output_map_of(c), kBox, 32, 8);
    att_bulk_copy(c, &kMin2d, &operands, 6);
    att_bulk_commit(c, 7);
    att_bulk_wait(c, 0, 0, 8);
  };
  Fixture f;
  const Report report = f.run(kernel);
  CHECK_MESSAGE(report.clean(), report.text());
  CHECK(f.output[0] == 7 + 2 * 3);
  CHECK(f.output[9] == 7 + 2 * (3 + 1));
  CHECK(f.output[16] == 7);
  // Chunks are permuted by the row, elements within chunks are not.
  for (std::uint32_t row = 8; row < 16; ++row) {
    for (std::uint32_t column = 32; column < 64; ++column) {
      const std::uint32_t address = swizzled(kBox + (row - 8) * 128 + (column - 32) * 4, Swizzle::bytes128);
      CHECK(f.output[row * 64 + column] == std::min(7u, 3 + (address - kBox) / 4 % 8));
    }
  }
}

TEST_CASE("bulk: floats are added in their own formats") {
  static constexpr BulkInfo kAddF32 = store_info(0, BulkInfo::Reduce::add, AtomicType::f32);
  static constexpr BulkInfo kAddBf16 = store_info(0, BulkInfo::Reduce::add, AtomicType::bf16);
  const Entry kernel = [](ThreadContext* c) {
    for (std::uint32_t i = 0; i < 4; ++i) store(c, AddressSpace::shared, kBox + 4 * i, 1.5f, 1);
    for (std::uint32_t i = 0; i < 8; ++i) store(c, AddressSpace::shared, kBox + 16 + 2 * i, encode<Bf16>(0.5), 2);
    att_fence(c, FenceKind::proxy_async, 3);
    store_linear(c, output_of(c), kBox, 16, 4, kAddF32);
    store_linear(c, output_of(c) + 16, kBox + 16, 16, 5, kAddBf16);
    att_bulk_commit(c, 6);
    att_bulk_wait(c, 0, 0, 7);
  };
  Fixture f;
  for (std::size_t i = 0; i < 4; ++i) f.output[i] = std::bit_cast<std::uint32_t>(0.25f);
  const std::uint32_t two = encode<Bf16>(2.0);
  for (std::size_t i = 4; i < 8; ++i) f.output[i] = two << 16 | two;
  const Report report = f.run(kernel, with_memory(1));
  CHECK_MESSAGE(report.clean(), report.text());
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::bit_cast<float>(f.output[i]) == 1.75f);
  for (std::size_t i = 4; i < 8; ++i) CHECK(bf16_to_float(static_cast<std::uint16_t>(f.output[i])) == 2.5f);
}

TEST_CASE("bulk: a multicast box arrives in every block of the mask") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    if (c->index == 0) att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 1024, 3);
    att_cluster_arrive(c, Semantics::release, 0, 4);
    att_cluster_wait(c, Semantics::acquire, 0, 5);
    if (c->index == 0 && c->block->rank == 1) {
      BulkOperands operands = tensor_operands(input_map_of(c), kBox, 0, 8);
      operands.mask = 0b1011;
      att_bulk_copy(c, &kLoad2dMulticast, &operands, 6);
    }
    if (c->block->rank != 2) {
      wait(c, 0, 7);
      const std::uint32_t address = swizzled(kBox + 3 * 128 + c->index * 4, Swizzle::bytes128);
      const auto value = load<std::uint32_t>(c, AddressSpace::shared, address, 8);
      store(c, AddressSpace::global, output_of(c) + 4 * (c->block->rank * 32 + c->index), value, 9);
    }
    att_cluster_arrive(c, Semantics::release, 0, 10);
    att_cluster_wait(c, Semantics::acquire, 0, 11);
  };
  for (std::uint64_t seed : kSeeds) {
    Fixture f;
    Launch launch = with_memory();
    launch.options.seed = seed;
    launch.options.grid.x = 4;
    launch.options.cluster.x = 4;
    const Report report = f.run(kernel, launch);
    CHECK_MESSAGE(report.clean(), report.text());
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      for (std::uint32_t i = 0; i < 32; ++i) {
        REQUIRE(f.output[rank * 32 + i] == (rank == 2 ? 7 : f.input[11 * Fixture::kColumns + i]));
      }
    }
  }
}

TEST_CASE("bulk: shared memory is copied and added to another block's") {
  static constexpr BulkInfo kAdd = to_other_block(BulkInfo::Reduce::add);
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    store(c, AddressSpace::shared, kBox + 4 * c->index, 100 * c->block->rank + c->index, 3);
    att_fence(c, FenceKind::proxy_async, 4);
    if (c->index == 0) att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 256, 5);
    att_cluster_arrive(c, Semantics::release, 0, 6);
    att_cluster_wait(c, Semantics::acquire, 0, 7);
    if (c->index == 0) {
      const std::uint32_t other = c->block->rank ^ 1;
      BulkOperands operands{};
      operands.source = kBox;
      operands.bytes = 128;
      operands.destination = att_mapa(c, kSecond, other, 8);
      operands.mbarrier = att_mapa(c, kBarrier, other, 8);
      att_bulk_copy(c, &kToOtherBlock, &operands, 9);
      operands.destination = att_mapa(c, kBox + 4096, other, 8);
      att_bulk_copy(c, &kAdd, &operands, 10);
    }
    wait(c, 0, 11);
    const auto value = load<std::uint32_t>(c, AddressSpace::shared, kSecond + 4 * c->index, 12);
    store(c, AddressSpace::global, output_of(c) + 4 * (c->block->rank * 32 + c->index), value, 13);
    att_cluster_arrive(c, Semantics::release, 0, 14);
    att_cluster_wait(c, Semantics::acquire, 0, 15);
  };
  Fixture f;
  Launch launch = with_memory();
  launch.options.grid.x = launch.options.cluster.x = 2;
  const Report report = f.run(kernel, launch);
  // The sum adds to memory that nobody wrote.
  CHECK(only(report, FindingKind::uninitialised_read).at.ptx_line == 10);
  for (std::uint32_t i = 0; i < 32; ++i) {
    CHECK(f.output[i] == 100 + i);
    CHECK(f.output[32 + i] == i);
  }
}

// -- what is done wrong -----------------------------------------------------------------------------------

TEST_CASE("bulk: reading the box without waiting is a race, waiting for it is not") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    if (c->index == 0) {
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, kBytes, 3);
      load_linear(c, kBox, input_of(c), kBytes, 4);
    }
    sync(c, 0, 0, 5);
    load<std::uint32_t>(c, AddressSpace::shared, kBox + 4 * c->index, 6);
    wait(c, 0, 7);
    load<std::uint32_t>(c, AddressSpace::shared, kBox + 4 * c->index, 8);
  };
  Fixture f;
  const Finding finding = only(f.run(kernel), FindingKind::race);
  CHECK(finding.at.ptx_line == 6);
  CHECK(finding.other_at->ptx_line == 4);
  CHECK(finding.count == 32);
}

TEST_CASE("bulk: a copy over a buffer that others still read is a race") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    if (c->index == 0) {
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, kBytes, 3);
      load_linear(c, kBox, input_of(c), kBytes, 4);
    }
    wait(c, 0, 5);
    load<std::uint32_t>(c, AddressSpace::shared, kBox + 4 * c->index, 6);
    sync(c, 1, 0, 7);
    if (c->index == 0) {
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, kBytes, 8);
      load_linear(c, kBox, input_of(c), kBytes, 9);
    }
    wait(c, 1, 10);
    // Nothing orders these before the next copy.
    load<std::uint32_t>(c, AddressSpace::shared, kBox + 4 * c->index, 11);
    if (c->index == 31) {
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, kBytes, 12);
      load_linear(c, kBox, input_of(c), kBytes, 13);
      while (!att_mbarrier_wait(c, &kTryParity, kBarrier, 0, 14)) loop(c, 4, 14);
    }
  };
  Fixture f;
  const Report report = f.run(kernel);
  CHECK(!report.clean());
  for (const Finding& finding : report.findings) {
    CHECK(finding.kind == FindingKind::race);
    CHECK(finding.at.ptx_line + finding.other_at->ptx_line == 11 + 13);
  }
}

TEST_CASE("bulk: stores need fence.proxy.async after ordinary writes") {
  const Entry kernel = [](ThreadContext* c) {
    store(c, AddressSpace::shared, kBox + 4 * c->index, c->index, 1);
    sync(c, 0, 0, 2);
    if (c->index != 0) return;
    store_linear(c, output_of(c), kBox, 128, 3);
    att_bulk_commit(c, 4);
    att_bulk_wait(c, 0, 0, 5);
  };
  Fixture f;
  const Finding finding = only(f.run(kernel), FindingKind::proxy_race);
  CHECK(finding.at.ptx_line == 3);
  CHECK(finding.other_at->ptx_line == 1);
}

template <FenceKind fence>
void store_after(ThreadContext* c) {
  store(c, AddressSpace::shared, kBox + 4 * c->index, c->index, 1);
  att_fence(c, fence, 6);
  sync(c, 0, 0, 2);
  if (c->index != 0) return;
  store_linear(c, output_of(c), kBox, 128, 3);
  att_bulk_commit(c, 4);
  att_bulk_wait(c, 0, 0, 5);
}

template <FenceKind fence>
void load_after(ThreadContext* c) {
  initialise(c);
  store(c, AddressSpace::global, output_of(c) + 4 * c->index, c->index, 3);
  att_fence(c, fence, 4);
  sync(c, 0, 0, 5);
  if (c->index == 0) {
    load_linear(c, kBox, output_of(c), 128, 6);
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 128, 7);
  }
  wait(c, 0, 8);
}

TEST_CASE("bulk: fence.proxy.async of one state space announces no writes to the other") {
  const auto found = [](Entry kernel) {
    const Report report = Fixture().run(kernel);
    if (report.clean()) return std::string("nothing");
    return std::string(finding_kind_name(report.findings.front().kind));
  };
  CHECK(found(store_after<FenceKind::proxy_async>) == "nothing");
  CHECK(found(store_after<FenceKind::proxy_async_shared>) == "nothing");
  CHECK(found(store_after<FenceKind::proxy_async_global>) == "proxy_race");
  CHECK(found(load_after<FenceKind::proxy_async>) == "nothing");
  CHECK(found(load_after<FenceKind::proxy_async_global>) == "nothing");
  CHECK(found(load_after<FenceKind::proxy_async_shared>) == "proxy_race");
}

TEST_CASE("bulk: sources may be overwritten after wait_group.read, results read after wait_group only") {
  static constexpr auto prepare = [](ThreadContext* c) {
    for (std::uint32_t i = 0; i < 4; ++i) store(c, AddressSpace::shared, kBox + 4 * i, i, 1);
    att_fence(c, FenceKind::proxy_async, 2);
    store_linear(c, output_of(c), kBox, 16, 3);
    att_bulk_commit(c, 4);
  };
  Fixture f;
  const Launch one = with_memory(1);
  Report report = f.run(
      [](ThreadContext* c) {
        prepare(c);
        att_bulk_wait(c, 0, 1, 5);
        store(c, AddressSpace::shared, kBox, 9u, 6);
        att_bulk_wait(c, 0, 0, 7);
        load<std::uint32_t>(c, AddressSpace::global, output_of(c), 8);
      },
      one);
  CHECK_MESSAGE(report.clean(), report.text());
  report = f.run(
      [](ThreadContext* c) {
        prepare(c);
        store(c, AddressSpace::shared, kBox, 9u, 6);
        att_bulk_wait(c, 0, 0, 7);
      },
      one);
  CHECK(only(report, FindingKind::race).at.ptx_line == 6);
  report = f.run(
      [](ThreadContext* c) {
        prepare(c);
        att_bulk_wait(c, 0, 1, 5);
        load<std::uint32_t>(c, AddressSpace::global, output_of(c), 8);
      },
      one);
  CHECK(only(report, FindingKind::race).at.ptx_line == 8);
  // The newest group may stay pending: what it reads is not known to be done.
  report = f.run(
      [](ThreadContext* c) {
        prepare(c);
        store_linear(c, output_of(c) + 64, kBox, 16, 5);
        att_bulk_commit(c, 6);
        att_bulk_wait(c, 1, 1, 7);
        store(c, AddressSpace::shared, kBox, 9u, 8);
        att_bulk_wait(c, 0, 0, 9);
      },
      one);
  const Finding finding = only(report, FindingKind::race);
  CHECK(finding.at.ptx_line == 8);
  CHECK(finding.other_at->ptx_line == 5);
}

TEST_CASE("bulk: a wait for reading does not make an older wait of the whole weaker") {
  const Entry kernel = [](ThreadContext* c) {
    for (std::uint32_t i = 0; i < 4; ++i) store(c, AddressSpace::shared, kBox + 4 * i, i, 1);
    att_fence(c, FenceKind::proxy_async, 2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      store_linear(c, output_of(c) + 64 * i, kBox, 16, 3 + i);
      att_bulk_commit(c, 5);
    }
    att_bulk_wait(c, 0, 1, 6);
    att_bulk_wait(c, 1, 0, 7);
    load<std::uint32_t>(c, AddressSpace::global, output_of(c), 8);
    load<std::uint32_t>(c, AddressSpace::global, output_of(c) + 64, 9);
  };
  Fixture f;
  CHECK(only(f.run(kernel, with_memory(1)), FindingKind::race).at.ptx_line == 9);
}

TEST_CASE("bulk: a thread must not exit while its stores read shared memory") {
  const Entry kernel = [](ThreadContext* c) {
    for (std::uint32_t i = 0; i < 4; ++i) store(c, AddressSpace::shared, kBox + 4 * i, i, 1);
    att_fence(c, FenceKind::proxy_async, 2);
    store_linear(c, output_of(c), kBox, 16, 3);
    att_bulk_commit(c, 4);
  };
  Fixture f;
  CHECK(only(f.run(kernel, with_memory(1)), FindingKind::bulk_leak).other_at->ptx_line == 3);
  // Groups without operations may stay.
  CHECK(f.run([](ThreadContext* c) { att_bulk_commit(c, 1); }, with_memory(1)).clean());
}

TEST_CASE("bulk: a block must not end while loads write its shared memory") {
  // Loads in two phases; `waits` of them are waited for.
  static std::uint32_t waits;
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    for (std::uint32_t phase = 0; phase < 2; ++phase) {
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 64, 3);
      load_linear(c, kBox + 64 * phase, input_of(c), 64, 4 + phase);
      if (phase < waits) wait(c, phase, 6);
    }
  };
  // A wait that passes because nothing has begun, and one for an older phase, are none for the load.
  const Entry others = [](ThreadContext* c) {
    initialise(c);
    wait(c, 1, 3);
    att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 4);
    wait(c, 0, 5);
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 64, 6);
    load_linear(c, kBox, input_of(c), 64, 7);
  };
  for (const std::uint64_t seed : kSeeds) {
    CAPTURE(seed);
    Fixture f;
    Launch launch = with_memory(1);
    launch.options.seed = seed;
    waits = 2;
    CHECK(f.run(kernel, launch).clean());
    waits = 1;
    const Finding finding = only(f.run(kernel, launch), FindingKind::bulk_leak);
    CHECK(finding.at.ptx_line == 5);
    CHECK(finding.other_at->ptx_line == 1);
    CHECK(contains(finding.message, "block 0 of the cluster may end"));
    CHECK(only(f.run(others, launch), FindingKind::bulk_leak).at.ptx_line == 7);
  }
}

TEST_CASE("bulk: a multicast box must be waited for in every block that it reaches") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 1024, 3);
    att_cluster_arrive(c, Semantics::release, 0, 4);
    att_cluster_wait(c, Semantics::acquire, 0, 5);
    if (c->block->rank != 0) return;
    BulkOperands operands = tensor_operands(input_map_of(c), kBox, 0, 0);
    operands.mask = 0b11;
    att_bulk_copy(c, &kLoad2dMulticast, &operands, 6);
    wait(c, 0, 7);
  };
  for (const std::uint64_t seed : kSeeds) {
    CAPTURE(seed);
    Fixture f;
    Launch launch = with_memory(1);
    launch.options.seed = seed;
    launch.options.grid.x = launch.options.cluster.x = 2;
    const Finding finding = only(f.run(kernel, launch), FindingKind::bulk_leak);
    CHECK(finding.at.ptx_line == 6);
    CHECK(contains(finding.message, "block 1 of the cluster may end"));
  }
}

TEST_CASE("bulk: a block must not end while a copy to another block reads its shared memory") {
  static constexpr MbarrierArriveInfo kArriveThere{
      AddressSpace::shared_cluster, Semantics::release, Scope::cluster, false, false, false};
  static constexpr std::uint32_t kRead = kBarrier + 8;  // mbarrier where the other block says that the copy is over
  enum class Says { nothing, too_early, when_it_is };
  static Says says;
  const Entry kernel = [](ThreadContext* c) {
    att_mbarrier_init(c, kRead, 1, 1);
    initialise(c);
    att_cluster_arrive(c, Semantics::release, 0, 3);
    att_cluster_wait(c, Semantics::acquire, 0, 4);
    if (c->block->rank == 0) {
      for (std::uint32_t i = 0; i < 4; ++i) store(c, AddressSpace::shared, kBox + 4 * i, i, 5);
      att_fence(c, FenceKind::proxy_async, 6);
      BulkOperands operands{};
      operands.source = kBox;
      operands.bytes = 16;
      operands.destination = att_mapa(c, kSecond, 1, 7);
      operands.mbarrier = att_mapa(c, kBarrier, 1, 7);
      att_bulk_copy(c, &kToOtherBlock, &operands, 8);
      while (says != Says::nothing && !att_mbarrier_wait(c, &kTryParity, kRead, 0, 9)) loop(c, 4, 9);
    } else {
      const auto tell = [&] { att_mbarrier_arrive(c, &kArriveThere, att_mapa(c, kRead, 0, 10), 1, 0, 11); };
      att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 16, 12);
      if (says == Says::too_early) tell();
      wait(c, 0, 13);
      if (says == Says::when_it_is) tell();
    }
  };
  for (const std::uint64_t seed : kSeeds) {
    CAPTURE(seed);
    Fixture f;
    Launch launch = with_memory(1);
    launch.options.seed = seed;
    launch.options.grid.x = launch.options.cluster.x = 2;
    says = Says::when_it_is;
    const Report report = f.run(kernel, launch);
    CHECK_MESSAGE(report.clean(), report.text());
    for (const Says other : {Says::too_early, Says::nothing}) {
      says = other;
      const Finding finding = only(f.run(kernel, launch), FindingKind::bulk_leak);
      CHECK(finding.at.ptx_line == 8);
      CHECK(finding.other_at->ptx_line == 1);
      CHECK(contains(finding.message, "block 0 of the cluster may end while this copy still reads"));
      CHECK(contains(finding.message, "of block 1 of the cluster"));
    }
  }
}

TEST_CASE("bulk: unwritten sources are found, where they are used") {
  const Entry kernel = [](ThreadContext* c) {
    // Two of the box's rows lie in the tensor; the rest need not have been written.
    for (std::uint32_t i = 0; i < 63; ++i) store(c, AddressSpace::shared, kBox + 6 * 128 + 4 * i, i, 1);
    att_fence(c, FenceKind::proxy_async, 2);
    const BulkOperands operands = tensor_operands(output_map_of(c), kBox, 0, -6);
    att_bulk_copy(c, &kStore2d, &operands, 3);
    att_bulk_commit(c, 4);
    att_bulk_wait(c, 0, 0, 5);
  };
  Fixture f;
  const Finding finding = only(f.run(kernel, with_memory(1)), FindingKind::uninitialised_read);
  CHECK(contains(finding.message, std::to_string(kBox + 6 * 128 + 4 * 63)));
}

TEST_CASE("bulk: operands that the instruction does not allow") {
  const auto finding_of = [](Entry entry, FindingKind kind) {
    Fixture f;
    return only(f.run(entry, with_memory(1)), kind).message;
  };
  const auto tensor = [](ThreadContext* c, const BulkInfo& info, std::uint64_t map, std::uint32_t shared,
                         std::int32_t x = 0) {
    initialise(c);
    const BulkOperands operands = tensor_operands(map, shared, x, 0);
    att_bulk_copy(c, &info, &operands, 3);
  };
  static const auto copy = tensor;
  static constexpr BulkInfo kLoad3d = load_info(3);
  CHECK(
      contains(finding_of([](ThreadContext* c) { copy(c, kLoad3d, input_map_of(c), kBox); }, FindingKind::bad_operand),
               "3 coordinates for a tensor map of rank 2"));
  CHECK(contains(
      finding_of([](ThreadContext* c) { copy(c, kLoad2d, input_map_of(c), kBox + 64); }, FindingKind::misaligned),
      "not a multiple of 128"));
  CHECK(contains(
      finding_of([](ThreadContext* c) { copy(c, kLoad2d, input_map_of(c) + 32, kBox); }, FindingKind::misaligned),
      "tensor map"));
  CHECK(contains(finding_of([](ThreadContext* c) { copy(c, kLoad2d, input_of(c), kBox); }, FindingKind::bad_operand),
                 "not an encoded tensor map"));
  CHECK(contains(finding_of([](ThreadContext* c) { copy(c, kLoad2d, 64, kBox); }, FindingKind::out_of_bounds),
                 "tensor map"));
  CHECK(contains(finding_of([](ThreadContext* c) { copy(c, kLoad2d, input_map_of(c), kShared + (32 << 10) - 512); },
                            FindingKind::out_of_bounds),
                 "1024 bytes"));
  for (Entry entry : {Entry([](ThreadContext* c) { copy(c, kLoad2d, input_map_of(c), kBox, -6); }),
                      Entry([](ThreadContext* c) { copy(c, kStore2d, output_map_of(c), kBox, -6); })}) {
    CHECK(contains(finding_of(entry, FindingKind::bad_operand),
                   "coordinate 0 is -6, -24 bytes of u32 (allowed: multiples of 16 bytes)"));
  }
  CHECK(contains(finding_of(
                     [](ThreadContext* c) {
                       initialise(c);
                       load_linear(c, kBox, input_of(c), 24, 3);
                     },
                     FindingKind::bad_operand),
                 "24 bytes"));
  finding_of(
      [](ThreadContext* c) {
        initialise(c);
        load_linear(c, kBox, input_of(c) + 8, 16, 3);
      },
      FindingKind::misaligned);
  finding_of(
      [](ThreadContext* c) {
        initialise(c);
        load_linear(c, kBox, input_of(c) + Fixture::kColumns * Fixture::kRows * 4, 16, 3);
      },
      FindingKind::out_of_bounds);
  finding_of([](ThreadContext* c) { load_linear(c, kBox, input_of(c), 16, 3); }, FindingKind::mbarrier_misuse);
  static constexpr BulkInfo kAddB32 = store_info(0, BulkInfo::Reduce::add, AtomicType::b32);
  CHECK(contains(finding_of([](ThreadContext* c) { store_linear(c, output_of(c), kBox, 16, 3, kAddB32); },
                            FindingKind::bad_operand),
                 ".add of this type"));
  static constexpr BulkInfo kInc2d = store_info(2, BulkInfo::Reduce::inc);
  Fixture f;
  f.map(f.output.data());
  *f.output_map = *f.map(f.output.data(), TensorType::f32);
  CHECK(contains(only(f.run([](ThreadContext* c) { copy(c, kInc2d, output_map_of(c), kBox); }, with_memory(1)),
                      FindingKind::bad_operand)
                     .message,
                 ".inc of elements of f32"));
}

TEST_CASE("bulk: a tensor that reaches beyond its allocation is found where rows are missing") {
  Fixture f;
  TensorMapDescription d = *decode_tensor_map(f.input_map);
  d.dims[1] = 20;
  *f.input_map = encode_tensor_map(d);
  const Report report = f.run(tensor_round_trip);
  const Finding finding = only(report, FindingKind::out_of_bounds);
  CHECK(finding.at.ptx_line == 5);
  CHECK(finding.count == 4);
  CHECK(contains(finding.message, "row of the tensor"));
}

TEST_CASE("bulk: expecting other bytes than come is a deadlock or an overflow of the phase") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c);
    att_mbarrier_arrive(c, &kArriveExpect, kBarrier, 1, 32, 3);
    load_linear(c, kBox, input_of(c), 16, 4);
    wait(c, 0, 5);
  };
  Fixture f;
  CHECK(has(f.run(kernel, with_memory(1)), FindingKind::deadlock));
}

// -- cp.async ---------------------------------------------------------------------------------------------
