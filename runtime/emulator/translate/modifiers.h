// The dotted parts of an instruction, taken one by one by what translates it; a part that nobody took is an error.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator {

/// "ptx:120: fma.rn.bf16x4: <what>".
[[noreturn]] void fail_at(ErrorCode code, const ptx::Instruction& instruction, std::string_view what);

class Modifiers {
 public:
  explicit Modifiers(const ptx::Instruction& instruction);

  bool take(std::string_view modifier);
  /// The first untaken one that is a type.
  std::optional<ptx::Type> take_type();
  ptx::Type need_type();
  /// The value beside the first name of the table that is there.
  template <typename T>
  std::optional<T> take_one_of(std::initializer_list<std::pair<std::string_view, T>> table) {
    for (const auto& [name, value] : table) {
      if (take(name)) return value;
    }
    return std::nullopt;
  }
  template <typename T>
  T need_one_of(std::initializer_list<std::pair<std::string_view, T>> table) {
    if (const std::optional<T> value = take_one_of(table)) return *value;
    refuse("a modifier is missing");
  }
  /// .rn, .rz, .rm, .rp
  std::optional<Rounding> take_rounding();
  std::optional<Scope> take_scope();
  /// Cache operators, eviction priorities and prefetch sizes: hints without meaning here. True where an operand with
  /// the cache policy follows.
  bool take_cache_hints();
  /// .shared::cta and so on; nothing: generic.
  AddressSpace take_space();
  /// The next untaken one, whatever it is; empty if none.
  std::string_view take_next();

  /// Fails if a modifier is left.
  void finish() const;
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  const ptx::Instruction& instruction_;
  std::uint64_t left_;  ///< bit i: modifier i is untaken
};

}  // namespace attune::emulator
