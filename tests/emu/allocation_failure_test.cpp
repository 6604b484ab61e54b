// What is thrown while a thread runs reaches whoever launched, wherever on the way memory runs out.
#include <doctest/doctest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>

#include "tests/emu/kernel_text.h"
#include "tests/emu/native_kernel.h"

namespace {

/// Allocations of this thread until one fails; 0: none does.
thread_local std::size_t allocations_left = 0;

void* allocate(std::size_t bytes) {
  if (allocations_left > 0 && --allocations_left == 0) throw std::bad_alloc();
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Of the whole program; they do what the library's do until a test asks for a failure.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace attune::emulator::tests {
namespace {

TEST_CASE("exceptions: what a thread throws is thrown by launch") {
  const auto machine = Machine::create();
  const Entry throws = [](ThreadContext* c) {
    sync(c, 0, 0, 1);
    if (c->index == 3) throw std::runtime_error("of thread 3");
    sync(c, 0, 0, 2);
  };
  CHECK_THROWS_WITH_AS(run(*machine, throws, threads(64)), "of thread 3", std::runtime_error);
  // The machine is as good as before.
  const Report report = run(*machine, [](ThreadContext* c) { sync(c, 0, 0, 1); }, threads(64));
  CHECK_MESSAGE(report.clean(), report.text());
}

TEST_CASE("exceptions: memory runs out at every allocation of a launch") {
  const auto program = Program::load(stage_text());
  const auto machine = Machine::create();
  auto* out = static_cast<std::uint32_t*>(machine->allocate(256));
  void* arguments[] = {&out};
  LaunchOptions options;
  options.block = {64, 1, 1};
  for (const std::uint64_t seed : {0, 1}) {
    CAPTURE(seed);
    options.seed = seed;
    std::size_t failures = 0;
    for (bool ended = false; !ended;) {
      allocations_left = failures + 1;
      try {
        const Report report = machine->launch(*program, "stage", options, arguments);
        ended = allocations_left > 0;
        allocations_left = 0;
        CHECK_MESSAGE(report.clean(), report.text());
      } catch (const std::bad_alloc&) {
        ++failures;
      }
    }
    CHECK(failures > 100);
    CHECK(out[63] == 63);
  }
}

}  // namespace
}  // namespace attune::emulator::tests
