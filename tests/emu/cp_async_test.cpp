// cp.async: groups, arrivals on mbarriers, and what is done wrong with them.
#include "tests/emu/copy_scene.h"

using namespace attune::emulator;
using namespace attune::emulator::tests;

TEST_CASE("cp.async: groups, zero fill and arrivals, whenever the copies happen") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c, 32);
    const std::uint32_t at = kBox + 16 * c->index;
    att_cp_async(c, at, input_of(c) + 16 * c->index, 16, 16, 3);
    att_cp_async_commit(c, 4);
    att_cp_async(c, at + 1024, input_of(c) + 16 * c->index, 16, 4, 5);
    att_cp_async_commit(c, 6);
    att_cp_async_wait(c, 1, 7);
    std::uint32_t sum = load<std::uint32_t>(c, AddressSpace::shared, at + 12, 8);
    att_cp_async_wait(c, ~0u, 9);
    sum += load<std::uint32_t>(c, AddressSpace::shared, at + 1024, 10);
    sum += load<std::uint32_t>(c, AddressSpace::shared, at + 1024 + 12, 11);
    // Others' copies are known by an mbarrier that each thread's copies arrive on.
    att_cp_async(c, at + 2048, input_of(c) + 16 * c->index, 8, 0, 12);
    att_cp_async(c, at + 2056, input_of(c) + 16 * c->index + 8, 8, 8, 13);
    att_mbarrier_arrive_on_copies(c, kBarrier, 1, 14);
    wait(c, 0, 15);
    const std::uint32_t other = kBox + 16 * (31 - c->index) + 2048;
    sum += load<std::uint32_t>(c, AddressSpace::shared, other, 16) +
           load<std::uint32_t>(c, AddressSpace::shared, other + 8, 17);
    store(c, AddressSpace::global, output_of(c) + 4 * c->index, sum, 18);
  };
  for (std::uint64_t seed : kSeeds) {
    Fixture f;
    Launch launch = with_memory();
    launch.options.seed = seed;
    const Report report = f.run(kernel, launch);
    CHECK_MESSAGE(report.clean(), report.text());
    for (std::uint32_t i = 0; i < 32; ++i) {
      REQUIRE(f.output[i] == f.input[4 * i + 3] + f.input[4 * i] + f.input[4 * (31 - i) + 2]);
    }
  }
}

TEST_CASE("cp.async: an arrival that counts itself") {
  const Entry kernel = [](ThreadContext* c) {
    initialise(c, 1);
    att_cp_async(c, kBox, input_of(c), 16, 16, 3);
    att_mbarrier_arrive_on_copies(c, kBarrier, 0, 4);
    att_mbarrier_arrive(c, &kArrive, kBarrier, 1, 0, 5);
    wait(c, 0, 6);
    load<std::uint32_t>(c, AddressSpace::shared, kBox, 7);
  };
  for (std::uint64_t seed : kSeeds) {
    Fixture f;
    Launch launch = with_memory(1);
    launch.options.seed = seed;
    const Report report = f.run(kernel, launch);
    CHECK_MESSAGE(report.clean(), report.text());
  }
}

TEST_CASE("cp.async: reading early is a race, also of what was copied after the arrival") {
  Fixture f;
  Report report = f.run(
      [](ThreadContext* c) {
        att_cp_async(c, kBox, input_of(c), 16, 16, 1);
        att_cp_async_commit(c, 2);
        att_cp_async_wait(c, 1, 3);
        load<std::uint32_t>(c, AddressSpace::shared, kBox, 4);
      },
      with_memory(1));
  CHECK(only(report, FindingKind::race).other_at->ptx_line == 1);
  report = f.run(
      [](ThreadContext* c) {
        initialise(c, 1);
        att_cp_async(c, kBox, input_of(c), 16, 16, 3);
        att_mbarrier_arrive_on_copies(c, kBarrier, 1, 4);
        att_cp_async(c, kBox + 16, input_of(c), 16, 16, 5);
        wait(c, 0, 6);
        load<std::uint32_t>(c, AddressSpace::shared, kBox, 7);
        load<std::uint32_t>(c, AddressSpace::shared, kBox + 16, 8);
      },
      with_memory(1));
  CHECK(only(report, FindingKind::race).at.ptx_line == 8);
}

TEST_CASE("cp.async: operands") {
  Fixture f;
  const Launch one = with_memory(1);
  CHECK(has(f.run([](ThreadContext* c) { att_cp_async(c, kBox + 8, input_of(c), 16, 16, 1); }, one),
            FindingKind::misaligned));
  CHECK(has(f.run([](ThreadContext* c) { att_cp_async(c, kBox, input_of(c), 8, 16, 1); }, one),
            FindingKind::bad_operand));
  CHECK(has(f.run([](ThreadContext* c) { att_cp_async(c, kBox, 16, 16, 16, 1); }, one), FindingKind::out_of_bounds));
  // Nothing is read there.
  CHECK(f.run([](ThreadContext* c) { att_cp_async(c, kBox, 16, 16, 0, 1); }, one).clean());
}
