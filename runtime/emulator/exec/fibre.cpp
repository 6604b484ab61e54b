#include "runtime/emulator/exec/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <utility>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define ATTUNE_FIBRE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTUNE_FIBRE_ASAN 1
#endif
#endif
#ifdef ATTUNE_FIBRE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace attune::emulator {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {

/// Instrumented frames are several times as large.
#ifdef ATTUNE_FIBRE_ASAN
constexpr std::size_t kStackFactor = 4;
#else
constexpr std::size_t kStackFactor = 1;
#endif

void leave_stack([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to,
                 [[maybe_unused]] std::size_t bytes) {
#ifdef ATTUNE_FIBRE_ASAN
  __sanitizer_start_switch_fiber(fake_stack, to, bytes);
#endif
}

void enter_stack([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from,
                 [[maybe_unused]] std::size_t* bytes) {
#ifdef ATTUNE_FIBRE_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#endif
}

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

struct Fibre::Entry {
  static void run(transfer_t transfer) {
    Fibre* self = static_cast<Fibre*>(transfer.data);
    enter_stack(nullptr, &self->scheduler_stack_, &self->scheduler_bytes_);
    self->scheduler_ = transfer.fctx;
    self->body_(self->argument_);
  }
};

void Fibre::prepare(std::uint8_t* stack, std::size_t bytes, Body body, void* argument) {
#ifdef ATTUNE_FIBRE_ASAN
  // Frames that were left for good are still poisoned.
  ASAN_UNPOISON_MEMORY_REGION(stack, bytes);
#endif
  stack_ = stack;
  bytes_ = bytes;
  body_ = body;
  argument_ = argument;
  own_fake_stack_ = nullptr;
  context_ = make_fcontext(stack + bytes, bytes, Entry::run);
}

void Fibre::resume() {
  leave_stack(&scheduler_fake_stack_, stack_, bytes_);
  context_ = jump_fcontext(context_, this).fctx;
  enter_stack(scheduler_fake_stack_, nullptr, nullptr);
}

void Fibre::suspend(bool for_good) {
  leave_stack(for_good ? nullptr : &own_fake_stack_, scheduler_stack_, scheduler_bytes_);
  scheduler_ = jump_fcontext(scheduler_, nullptr).fctx;
  enter_stack(own_fake_stack_, &scheduler_stack_, &scheduler_bytes_);
}

StackSlab::StackSlab(std::size_t stacks, std::size_t bytes_each) : count_(stacks), guard_bytes_(page_bytes()) {
  stack_bytes_ = (bytes_each * kStackFactor + page_bytes() - 1) / page_bytes() * page_bytes();
  const std::size_t total = count_ * (guard_bytes_ + stack_bytes_);
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(ErrorCode::out_of_memory, "{} bytes of address space for {} stacks", total, count_);
  memory_ = static_cast<std::uint8_t*>(memory);
  for (std::size_t i = 0; i < count_; ++i) {
    if (mprotect(memory_ + i * (guard_bytes_ + stack_bytes_), guard_bytes_, PROT_NONE) != 0) {
      munmap(memory_, total);
      memory_ = nullptr;
      fail(ErrorCode::out_of_memory, "guard pages of {} stacks: the process has too many mappings", count_);
    }
  }
}

StackSlab::~StackSlab() {
  if (memory_) {
#ifdef ATTUNE_FIBRE_ASAN
    ASAN_UNPOISON_MEMORY_REGION(memory_, count_ * (guard_bytes_ + stack_bytes_));
#endif
    munmap(memory_, count_ * (guard_bytes_ + stack_bytes_));
  }
}

StackSlab::StackSlab(StackSlab&& other) noexcept { *this = std::move(other); }

StackSlab& StackSlab::operator=(StackSlab&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(count_, other.count_);
  std::swap(stack_bytes_, other.stack_bytes_);
  std::swap(guard_bytes_, other.guard_bytes_);
  return *this;
}

}  // namespace attune::emulator
