#include "runtime/emulator/ptx/names.h"

#include <charconv>
#include <utility>

#include "runtime/emulator/ptx/lexer.h"

namespace attune::emulator::ptx {
namespace {

constexpr std::size_t kLongestIndex = 7;  // ranges have at most 2^20 members

bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void fail_duplicate(Position at, std::string_view name, int line) {
  fail_at(at, "{} is already declared in line {}", quoted(name), line);
}

}  // namespace

std::string Names::unique(const Scope& scope, std::string_view name) {
  std::string result(name);
  if (scope.serial != 0) result.append("#").append(std::to_string(scope.serial));
  return result;
}

/// The range that has a member of this name. A prefix may itself end in digits, so every split is tried.
std::optional<Names::Member> Names::member(const Scope& scope, std::string_view name) {
  if (scope.ranges.empty()) return std::nullopt;
  std::size_t split = name.size();
  while (split > 1 && is_digit(name[split - 1]) && name.size() - split < kLongestIndex) --split;
  for (; split < name.size(); ++split) {
    if (name[split] == '0' && split + 1 != name.size()) continue;
    const auto found = scope.ranges.find(name.substr(0, split));
    if (found == scope.ranges.end()) continue;
    std::uint64_t index = 0;
    std::from_chars(name.data() + split, name.data() + name.size(), index);
    if (index < found->second.count) return Member{&found->second, name.substr(split)};
  }
  return std::nullopt;
}

std::string Names::declare(Position at, std::string_view name, Kind kind, int width) {
  Scope& scope = scopes_.back();
  if (const auto range = member(scope, name)) fail_duplicate(at, name, range->range->line);
  const auto [entry, inserted] = scope.names.try_emplace(name, Entry{kind, width, at.line});
  if (!inserted) fail_duplicate(at, name, entry->second.line);
  return unique(scope, name);
}

std::string Names::declare_range(Position at, std::string_view prefix, std::uint64_t count) {
  Scope& scope = scopes_.back();
  std::string name = unique(scope, prefix);
  // What a member's index is must be plain from its name.
  if (scope.serial != 0) {
    name += ".";
  } else if (is_digit(prefix.back())) {
    name += "#0.";
  }
  const auto [range, inserted] = scope.ranges.try_emplace(prefix, Range{name, count, at.line});
  if (!inserted) fail_duplicate(at, prefix, range->second.line);
  // No name may be a member too. Whichever list is shorter is gone through, so that all ranges of a function together
  // cost no more than the registers that it may have.
  const auto refuse_member = [this_range = &range->second, at, &scope](const auto& entry) {
    const auto taken = member(scope, entry.first);
    if (taken && taken->range == this_range) fail_duplicate(at, entry.first, entry.second.line);
  };
  if (scope.names.size() <= count) {
    for (const auto& entry : scope.names) refuse_member(entry);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string candidate = std::string(prefix) + std::to_string(i);
      if (const auto entry = scope.names.find(candidate); entry != scope.names.end()) refuse_member(*entry);
    }
  }
  return name;
}

std::string Names::declare_label(Position at, std::string_view name) {
  Scope& scope = scopes_.back();
  const auto [label, inserted] = scope.labels.try_emplace(name, at.line);
  if (!inserted) fail_at(at, "label {} already stands in line {}", quoted(name), label->second);
  return unique(scope, name);
}

std::optional<Names::Found> Names::find(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto in_range = member(*scope, name)) {
      return Found{Kind::reg, 1, in_range->range->unique_prefix + std::string(in_range->index)};
    }
    const auto entry = scope->names.find(name);
    if (entry != scope->names.end()) return Found{entry->second.kind, entry->second.width, unique(*scope, name)};
  }
  return std::nullopt;
}

void Names::use_label(Position at, std::string* name, bool must_be_label) {
  scopes_.back().uses.push_back({at, name, must_be_label});
}

void Names::open() {
  scopes_.emplace_back();
  scopes_.back().serial = opened_++;
}

void Names::close() {
  const Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const Use& use : scope.uses) {
    if (scope.labels.contains(*use.name)) {
      *use.name = unique(scope, *use.name);
    } else {
      scopes_.back().uses.push_back(use);
    }
  }
}

std::vector<Names::Use> Names::finish() {
  Scope& scope = scopes_.back();
  std::erase_if(scope.uses, [&scope](const Use& use) { return scope.labels.contains(*use.name); });
  return std::move(scope.uses);
}

}  // namespace attune::emulator::ptx
