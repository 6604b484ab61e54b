#include "runtime/emulator/translate/modifiers.h"

#include <algorithm>
#include <bit>
#include <string>

namespace attune::emulator {
namespace {

constexpr std::string_view kHints[] = {
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_unchanged",
    "L2::cache_hint",
    "L2::64B",
    "L2::128B",
    "L2::256B",
};

}  // namespace

void fail_at(ErrorCode code, const ptx::Instruction& instruction, std::string_view what) {
  std::string name = instruction.opcode;
  for (const std::string& modifier : instruction.modifiers) name += "." + modifier;
  fail(code, "ptx:{}: {}: {}", instruction.at.line, name, what);
}

Modifiers::Modifiers(const ptx::Instruction& instruction) : instruction_(instruction) {
  const std::size_t count = instruction.modifiers.size();
  if (count > 63) fail_at(ErrorCode::invalid_argument, instruction, "too many modifiers");
  left_ = (std::uint64_t{1} << count) - 1;
}

bool Modifiers::take(std::string_view modifier) {
  for (std::uint64_t left = left_; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    if (instruction_.modifiers[static_cast<std::size_t>(i)] == modifier) {
      left_ &= ~(std::uint64_t{1} << i);
      return true;
    }
  }
  return false;
}

std::optional<ptx::Type> Modifiers::take_type() {
  for (std::uint64_t left = left_; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    if (const auto type = ptx::type_of(instruction_.modifiers[static_cast<std::size_t>(i)])) {
      left_ &= ~(std::uint64_t{1} << i);
      return type;
    }
  }
  return std::nullopt;
}

ptx::Type Modifiers::need_type() {
  if (const auto type = take_type()) return *type;
  refuse("the type is missing or unknown");
}

std::optional<Rounding> Modifiers::take_rounding() {
  return take_one_of<Rounding>(
      {{"rn", Rounding::nearest_even}, {"rz", Rounding::toward_zero}, {"rm", Rounding::down}, {"rp", Rounding::up}});
}

std::optional<Scope> Modifiers::take_scope() {
  return take_one_of<Scope>(
      {{"cta", Scope::cta}, {"cluster", Scope::cluster}, {"gpu", Scope::gpu}, {"sys", Scope::sys}});
}

bool Modifiers::take_cache_hints() {
  bool policy = false;
  for (std::uint64_t left = left_; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    const std::string_view name = instruction_.modifiers[static_cast<std::size_t>(i)];
    const auto is_name = [name](std::string_view known) { return known == name; };
    const bool hint = std::ranges::any_of(kHints, is_name);
    if (!hint) continue;
    policy |= name == "L2::cache_hint";
    left_ &= ~(std::uint64_t{1} << i);
  }
  return policy;
}

AddressSpace Modifiers::take_space() {
  return take_one_of<AddressSpace>({{"global", AddressSpace::global},
                                    {"shared", AddressSpace::shared},
                                    {"shared::cta", AddressSpace::shared},
                                    {"shared::cluster", AddressSpace::shared_cluster},
                                    {"local", AddressSpace::local},
                                    {"const", AddressSpace::constant}})
      .value_or(AddressSpace::generic);
}

std::string_view Modifiers::take_next() {
  if (left_ == 0) return {};
  const int i = std::countr_zero(left_);
  left_ &= left_ - 1;
  return instruction_.modifiers[static_cast<std::size_t>(i)];
}

void Modifiers::finish() const {
  if (left_ == 0) return;
  const std::string& name = instruction_.modifiers[static_cast<std::size_t>(std::countr_zero(left_))];
  fail_at(ErrorCode::unsupported, instruction_, "unknown modifier ." + name);
}

void Modifiers::refuse(std::string_view what) const { fail_at(ErrorCode::unsupported, instruction_, what); }

}  // namespace attune::emulator
