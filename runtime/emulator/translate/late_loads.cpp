// FunctionTranslator: loads from shared memory that may be late (check/loads.h). A load is over when an instruction has
// used a register that it fills, or has waited for it. Most are used before the thread tells others anything, and
// nobody need follow them. Found here are those that some path brings unused to an instruction that does, and the
// instructions that can be the first to use them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Instruction;
using ptx::Statement;

namespace {

bool reads_shared(const Instruction& instruction) {
  if (instruction.opcode == "ldmatrix") return true;
  if (instruction.opcode != "ld") return false;
  // Without a state space it may. What follows an acquire cannot overtake it.
  constexpr std::string_view kOthers[] = {"global",       "local",       "const",  "param",
                                          "param::entry", "param::func", "acquire"};
  return std::ranges::none_of(kOthers, [&](std::string_view modifier) { return instruction.has(modifier); });
}

/// When bar.sync is over the thread's loads have been performed, and fence.proxy.async puts them before what the async
/// proxy does later.
bool waits_for_loads(const Instruction& instruction) {
  if (!instruction.guard.predicate.empty()) return false;
  if (instruction.opcode == "fence") {
    return instruction.has("proxy") && instruction.has("async") && !instruction.has("global");
  }
  return (instruction.opcode == "bar" || instruction.opcode == "barrier") && !instruction.has("arrive") &&
         !instruction.has("warp") && !instruction.has("cluster");
}

/// Whether others, or an asynchronous operation, may come after what the thread did before.
bool orders_others(const Statement& statement) {
  if (statement.call) return true;
  const Instruction& instruction = statement.instruction;
  const std::string& opcode = instruction.opcode;
  if (opcode == "mbarrier") return !instruction.has("test_wait") && !instruction.has("try_wait");
  if (opcode == "st") return instruction.has("release");
  return opcode == "bar" || opcode == "barrier" || opcode == "atom" || opcode == "red" || opcode == "fence" ||
         opcode == "membar" || opcode == "cp" || opcode == "griddepcontrol" || opcode == "ret";
}

}  // namespace

void FunctionTranslator::find_late_loads() {
  if (!module_.checks()) return;
  std::vector<std::optional<Touched>> known(source_.body.size());
  for (std::size_t i = 0; i < source_.body.size(); ++i) {
    const Statement& statement = source_.body[i];
    if (statement.kind == Statement::Kind::instruction && reads_shared(statement.instruction)) {
      follow_load(i, &known);
    }
  }
}

/// Along every path from the load to where it is over.
void FunctionTranslator::follow_load(std::size_t load, std::vector<std::optional<Touched>>* known) {
  const auto touched = [&](std::size_t i) -> const Touched& {
    if (!(*known)[i]) {
      instruction_ = &source_.body[i].instruction;
      (*known)[i] = touched_by(source_.body[i]);
    }
    return *(*known)[i];
  };
  // What a path from the load brings along: the registers that hold what was loaded, copies among them.
  using Held = std::vector<std::int32_t>;
  const auto holds = [](const Held& held, std::int32_t index) { return std::ranges::find(held, index) != held.end(); };

  std::vector<std::size_t> uses;
  bool unused = false;  // somewhere, when the thread orders others
  std::unordered_map<std::size_t, Held> at_entry;
  std::vector<std::size_t> waiting;  // blocks
  const auto walk = [&](std::size_t block, std::size_t begin, Held held) {
    for (std::size_t i = begin; i < blocks_[block].end; ++i) {
      const Statement& statement = source_.body[i];
      if (statement.kind != Statement::Kind::instruction && statement.kind != Statement::Kind::call) continue;
      if (i == load || waits_for_loads(statement.instruction)) return;
      const Touched& registers = touched(i);
      const bool uses_held = std::ranges::any_of(registers.used, [&](std::int32_t r) { return holds(held, r); });
      const bool copies = statement.instruction.opcode == "mov" && uses_held;
      if (uses_held && !copies) {
        uses.push_back(i);
        return;
      }
      unused = unused || orders_others(statement);
      for (const std::int32_t r : registers.defined) {
        if (copies) {
          if (!holds(held, r)) held.push_back(r);
        } else if (statement.instruction.guard.predicate.empty()) {
          std::erase(held, r);
        }
      }
      if (held.empty()) return;
    }
    for (const std::size_t next : blocks_[block].successors) {
      const auto [entry, added] = at_entry.try_emplace(next, held);
      bool grown = added;
      for (const std::int32_t r : held) {
        if (holds(entry->second, r)) continue;
        entry->second.push_back(r);
        grown = true;
      }
      if (grown) waiting.push_back(next);
    }
  };

  const std::size_t home =
      static_cast<std::size_t>(std::prev(std::ranges::upper_bound(blocks_, load, {}, &Block::begin)) - blocks_.begin());
  walk(home, load + 1, touched(load).defined);
  while (!waiting.empty()) {
    const std::size_t block = waiting.back();
    waiting.pop_back();
    walk(block, blocks_[block].begin, at_entry.at(block));
  }
  if (!unused) return;
  late_loads_.insert(load);
  std::ranges::sort(uses);
  const auto [first, last] = std::ranges::unique(uses);
  uses.erase(first, last);
  for (const std::size_t use : uses) load_uses_[use].push_back(site_of(load));
}

}  // namespace attune::emulator
