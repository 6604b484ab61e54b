// Stacks and switches between them: one fibre is one CUDA thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attune::emulator {

/// A suspended or running flow of control on a stack of its own. Resumed by one scheduler, to which it switches back.
class Fibre {
 public:
  using Body = void (*)(void* argument);  ///< never returns: ends with suspend()

  /// Starts over on this stack, whatever was on it before.
  void prepare(std::uint8_t* stack, std::size_t bytes, Body body, void* argument);
  /// From the scheduler: runs it until it suspends.
  void resume();
  /// From the fibre. `for_good`: it is not resumed before it is prepared again.
  void suspend(bool for_good);

 private:
  struct Entry;

  void* context_ = nullptr;    ///< where it is suspended
  void* scheduler_ = nullptr;  ///< where its scheduler is
  std::uint8_t* stack_ = nullptr;
  std::size_t bytes_ = 0;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  // For AddressSanitizer.
  void* own_fake_stack_ = nullptr;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
};

/// Stacks of one size with a guard page below each, mapped at once and reused.
class StackSlab {
 public:
  StackSlab() = default;
  /// Throws Error(out_of_memory).
  StackSlab(std::size_t stacks, std::size_t bytes_each);
  ~StackSlab();
  StackSlab(StackSlab&& other) noexcept;
  StackSlab& operator=(StackSlab&& other) noexcept;

  std::size_t stack_bytes() const { return stack_bytes_; }
  std::size_t count() const { return count_; }
  std::uint8_t* stack(std::size_t index) const {
    return memory_ + index * (guard_bytes_ + stack_bytes_) + guard_bytes_;
  }

 private:
  std::uint8_t* memory_ = nullptr;
  std::size_t count_ = 0, stack_bytes_ = 0, guard_bytes_ = 0;
};

}  // namespace attune::emulator
