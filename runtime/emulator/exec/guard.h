// Exceptions on a thread's stack. Translated code cannot be unwound, and above it there is nobody to catch: what is
// thrown there ends the launch and is thrown again where the launch was asked for.
#pragma once

#include <exception>
#include <utility>

#include "runtime/emulator/exec/grid.h"

namespace attune::emulator {

/// Calls it on the thread's own stack.
template <typename Call>
decltype(auto) guarded(ThreadContext* thread, const Call& call) {
  std::exception_ptr error;
  try {
    return call();
  } catch (...) {
    error = std::current_exception();
  }
  // Only here, where nothing is caught any more: the stack is left for good.
  thread->grid().fail(thread, std::move(error));
}

/// Guarded<f>::call is f for translated code.
template <auto function>
struct Guarded;
template <typename Result, typename... Arguments, Result (*function)(ThreadContext*, Arguments...)>
struct Guarded<function> {
  static Result call(ThreadContext* context, Arguments... arguments) {
    return guarded(context, [&]() -> Result { return function(context, arguments...); });
  }
};

}  // namespace attune::emulator
