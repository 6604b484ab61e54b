#include <algorithm>
#include <array>

#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator::ptx {
namespace {

struct TypeRow {
  std::string_view name;
  int bytes;
};

/// In the order of Type.
constexpr std::array kTypes = {
    TypeRow{"", 0},       TypeRow{"pred", 1},  TypeRow{"b8", 1},    TypeRow{"b16", 2},  TypeRow{"b32", 4},
    TypeRow{"b64", 8},    TypeRow{"b128", 16}, TypeRow{"u8", 1},    TypeRow{"u16", 2},  TypeRow{"u32", 4},
    TypeRow{"u64", 8},    TypeRow{"s8", 1},    TypeRow{"s16", 2},   TypeRow{"s32", 4},  TypeRow{"s64", 8},
    TypeRow{"f16", 2},    TypeRow{"f16x2", 4}, TypeRow{"f32", 4},   TypeRow{"f64", 8},  TypeRow{"bf16", 2},
    TypeRow{"bf16x2", 4}, TypeRow{"tf32", 4},  TypeRow{"e4m3", 1},  TypeRow{"e5m2", 1}, TypeRow{"e4m3x2", 2},
    TypeRow{"e5m2x2", 2}, TypeRow{"u16x2", 4}, TypeRow{"s16x2", 4},
};
static_assert(kTypes.size() == static_cast<std::size_t>(Type::s16x2) + 1);

}  // namespace

int byte_size(Type type) { return kTypes[static_cast<std::size_t>(type)].bytes; }

std::string_view type_name(Type type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::optional<Type> type_of(std::string_view name) {
  const auto found =
      std::find_if(kTypes.begin() + 1, kTypes.end(), [name](const TypeRow& row) { return row.name == name; });
  if (found == kTypes.end()) return std::nullopt;
  return static_cast<Type>(found - kTypes.begin());
}

bool Instruction::has(std::string_view modifier) const {
  return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

}  // namespace attune::emulator::ptx
