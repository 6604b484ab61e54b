#include "runtime/emulator/translate/callees.h"

#include <type_traits>

#include "runtime/emulator/exec/guard.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/translate/math_helpers.h"
#include "runtime/emulator/translate/slots.h"

namespace attune::emulator {
namespace {

template <typename T>
constexpr Callee::Kind kind_of() {
  if constexpr (std::is_void_v<T>) {
    return Callee::Kind::none;
  } else if constexpr (std::is_pointer_v<T>) {
    return Callee::Kind::pointer;
  } else if constexpr (std::is_same_v<T, float>) {
    return Callee::Kind::f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return Callee::Kind::f64;
  } else {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    return sizeof(T) == 8 ? Callee::Kind::i64 : Callee::Kind::i32;
  }
}

template <typename Result, typename... Arguments>
Callee describe(const char* name, Result (*function)(Arguments...)) {
  static_assert(sizeof...(Arguments) <= 8);
  return {name, reinterpret_cast<void*>(function), kind_of<Result>(), {kind_of<Arguments>()...}, sizeof...(Arguments)};
}

/// What does not get the thread computes and no more.
template <auto function>
Callee describe(const char* name) {
  if constexpr (requires { &Guarded<function>::call; }) {
    return describe(name, &Guarded<function>::call);
  } else {
    return describe(name, function);
  }
}

}  // namespace

const std::array<Callee, static_cast<std::size_t>(CalleeId::count)>& callees() {
  static const std::array<Callee, static_cast<std::size_t>(CalleeId::count)> table = {
#define ATTUNE_EMULATOR_CALLEE(name) describe<name>(#name),
      ATTUNE_EMULATOR_CALLEES(ATTUNE_EMULATOR_CALLEE)
#undef ATTUNE_EMULATOR_CALLEE
  };
  return table;
}

}  // namespace attune::emulator
