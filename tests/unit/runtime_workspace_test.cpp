#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "runtime/workspace_pool.h"
#include "tests/unit/fake_device.h"

namespace attune::runtime {
namespace {

Stream stream(std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); }

TEST_CASE("workspaces: a stream keeps its own, zeroed, and no two streams share") {
  tests::FakeDevice device;
  WorkspacePool pool(device);
  std::set<void*> seen;
  for (std::uintptr_t handle = 0x5000; seen.size() < WorkspacePool::kStreams; handle += 0x10) {
    void* memory = pool.acquire(stream(handle));
    CHECK(seen.insert(memory).second);
    CHECK(*static_cast<std::uint64_t*>(memory) == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 8 == 0);
    if (seen.size() % 512 == 0) CHECK(pool.acquire(stream(handle)) == memory);
  }
  CHECK_THROWS_AS(pool.acquire(stream(0x10)), Error);
  CHECK(pool.acquire(stream(0x5000)) != nullptr);
}

TEST_CASE("workspaces: both names of the default stream mean the same one") {
  tests::FakeDevice device;
  WorkspacePool pool(device);
  CHECK(pool.slot_of(stream(0)) == pool.slot_of(stream(1)));
  CHECK(pool.slot_of(stream(0)) != pool.slot_of(stream(2)));
}

TEST_CASE("workspaces: the per-thread default stream is another one in every thread") {
  tests::FakeDevice device;
  WorkspacePool pool(device);
  std::size_t here = pool.slot_of(stream(2)), there = here;
  std::thread([&] { there = pool.slot_of(stream(2)); }).join();
  CHECK(here != there);
  CHECK(pool.slot_of(stream(2)) == here);
}

TEST_CASE("workspaces: captured launches never share") {
  tests::FakeDevice device;
  WorkspacePool pool(device);
  device.captured.insert(stream(0x100));
  std::set<void*> seen{pool.acquire(stream(0x200))};
  for (int i = 0; i < 1000; ++i) CHECK(seen.insert(pool.acquire(stream(0x100))).second);
}

TEST_CASE("workspaces: threads that claim at once agree") {
  tests::FakeDevice device;
  WorkspacePool pool(device);
  constexpr int kThreads = 4, kHandles = 1000;
  std::vector<std::vector<std::size_t>> slots(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::uintptr_t i = 0; i < kHandles; ++i) slots[t].push_back(pool.slot_of(stream(0x1000 + 16 * i)));
      });
    }
  }
  for (const auto& each : slots) CHECK(each == slots[0]);
  CHECK(std::set<std::size_t>(slots[0].begin(), slots[0].end()).size() == kHandles);
}

}  // namespace
}  // namespace attune::runtime
