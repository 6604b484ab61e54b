// FunctionTranslator: control flow and the homes of registers.
#include <algorithm>
#include <bit>
#include <charconv>
#include <unordered_set>

#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Statement;

namespace {

const std::unordered_set<std::string_view> kWithoutResult = {
    "st",        "stmatrix",      "red", "wgmma", "cp",  "fence", "membar", "prefetch", "prefetchu",  "discard",
    "nanosleep", "applypriority", "bra", "brx",   "ret", "exit",  "trap",   "brkpt",    "setmaxnreg", "griddepcontrol",
};

bool is_terminator(const std::string& opcode) {
  return opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit" || opcode == "trap" ||
         opcode == "brkpt";
}

/// Calls visit(name) for each register of the operand.
template <typename Visit>
void visit_names(const Operand& operand, const Visit& visit) {
  if (operand.kind == OperandKind::reg) {
    visit(std::string_view(operand.name));
    return;
  }
  for (const Operand& item : operand.items) visit_names(item, visit);
}

}  // namespace

// -- registers by name ------------------------------------------------------------------------------------

void FunctionTranslator::index_registers() {
  const auto declare = [this](const ptx::Variable& variable) {
    const auto base = static_cast<std::int32_t>(registers_.size());
    const std::uint64_t count = variable.is_array ? variable.elements : 1;
    if (variable.is_array) {
      ranges_.emplace(variable.name, RegisterRange{base, count});
    } else {
      scalars_.emplace(variable.name, base);
    }
    registers_.resize(registers_.size() + count);
    for (auto i = static_cast<std::size_t>(base); i < registers_.size(); ++i) registers_[i].type = variable.type;
  };
  for (const ptx::Variable& variable : source_.registers) declare(variable);
  for (const ptx::Variable& variable : source_.results) {
    if (variable.space == ptx::Space::reg) declare(variable);
  }
  for (const ptx::Variable& variable : source_.parameters) {
    if (variable.space == ptx::Space::reg) declare(variable);
  }
}

std::int32_t FunctionTranslator::find_register(std::string_view name) const {
  std::size_t split = name.size();
  while (split > 0 && name[split - 1] >= '0' && name[split - 1] <= '9') --split;
  if (split != name.size()) {
    const auto range = ranges_.find(name.substr(0, split));
    if (range != ranges_.end()) {
      std::uint64_t index = 0;
      std::from_chars(name.data() + split, name.data() + name.size(), index);
      if (index < range->second.count) return range->second.base + static_cast<std::int32_t>(index);
    }
  }
  const auto scalar = scalars_.find(name);
  return scalar == scalars_.end() ? -1 : scalar->second;
}

std::int32_t FunctionTranslator::need_register(std::string_view name) const {
  const std::int32_t index = find_register(name);
  if (index < 0) invalid("unknown register " + std::string(name));
  return index;
}

// -- control flow -----------------------------------------------------------------------------------------

bool FunctionTranslator::ends_block(const Statement& statement) const {
  return statement.kind == Statement::Kind::instruction && is_terminator(statement.instruction.opcode);
}

void FunctionTranslator::find_blocks() {
  const std::vector<Statement>& body = source_.body;
  instructions_before_.reserve(body.size() + 1);
  std::uint32_t instructions = 0;
  std::vector<std::string_view> waiting;  // labels of the next statement that is one
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    blocks_.emplace_back();
    blocks_.back().begin = begin;
    blocks_.back().end = end;
    begin = end;
  };
  for (std::size_t i = 0; i < body.size(); ++i) {
    instructions_before_.push_back(instructions);
    switch (body[i].kind) {
      case Statement::Kind::label:
        if (i != begin) close(i);
        labels_.emplace(body[i].label, blocks_.size());
        break;
      case Statement::Kind::branch_targets: break;
      default:
        ++instructions;
        if (ends_block(body[i])) close(i + 1);
    }
  }
  instructions_before_.push_back(instructions);
  close(body.size());

  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    const Statement* last = block.begin == block.end ? nullptr : &body[block.end - 1];
    const bool jumps = last && ends_block(*last);
    if ((!jumps || !last->instruction.guard.predicate.empty()) && b + 1 < blocks_.size()) {
      block.successors.push_back(b + 1);
    }
    if (!jumps) continue;
    instruction_ = &last->instruction;
    const std::vector<Operand>& operands = last->instruction.operands;
    if (last->instruction.opcode == "bra" && !operands.empty()) {
      block.successors.push_back(block_of_label(operands[0].name));
    } else if (last->instruction.opcode == "brx" && operands.size() == 2) {
      for (const std::string& target : branch_targets(operands[1].name)) {
        block.successors.push_back(block_of_label(target));
      }
    }
  }
}

const std::vector<std::string>& FunctionTranslator::branch_targets(std::string_view list) const {
  for (const Statement& statement : source_.body) {
    if (statement.kind == Statement::Kind::branch_targets && statement.label == list) return statement.targets;
  }
  invalid("there is no .branchtargets list of that name");
}

std::size_t FunctionTranslator::block_of_label(const std::string& label) const {
  const auto found = labels_.find(label);
  if (found == labels_.end()) invalid("there is no label " + label);
  return found->second;
}

// -- uses and definitions -----------------------------------------------------------------------------------

bool FunctionTranslator::writes_first_operand(const ptx::Instruction& instruction) {
  if (instruction.operands.empty()) return false;
  const OperandKind kind = instruction.operands[0].kind;
  if (kind != OperandKind::reg && kind != OperandKind::pair && kind != OperandKind::vector) return false;
  if (kWithoutResult.contains(instruction.opcode)) return false;
  if (instruction.opcode == "bar" || instruction.opcode == "barrier") return instruction.has("red");
  return true;
}

template <typename Visit>
void FunctionTranslator::visit_registers(const Statement& statement, const Visit& visit, bool merges) const {
  if (statement.kind != Statement::Kind::instruction && statement.kind != Statement::Kind::call) return;
  const ptx::Instruction& instruction = statement.instruction;
  const bool guarded = !instruction.guard.predicate.empty();
  if (guarded) visit(need_register(instruction.guard.predicate), false);
  const auto use = [&](std::string_view name) { visit(need_register(name), false); };
  const auto define = [&](std::string_view name) {
    const std::int32_t index = need_register(name);
    if (guarded && merges) visit(index, false);
    visit(index, true);
  };
  if (statement.call) {
    visit_names(statement.call->callee, use);
    for (const Operand& argument : statement.call->arguments) visit_names(argument, use);
    for (const Operand& result : statement.call->results) visit_names(result, define);
    return;
  }
  const bool has_result = writes_first_operand(instruction);
  for (std::size_t i = has_result ? 1 : 0; i < instruction.operands.size(); ++i) {
    visit_names(instruction.operands[i], use);
  }
  if (has_result) visit_names(instruction.operands[0], define);
}

FunctionTranslator::Touched FunctionTranslator::touched_by(const Statement& statement) const {
  Touched touched;
  visit_registers(
      statement,
      [&](std::int32_t index, bool definition) { (definition ? touched.defined : touched.used).push_back(index); },
      false);
  return touched;
}

void FunctionTranslator::find_slots() {
  for (const Statement& statement : source_.body) {
    if (statement.kind != Statement::Kind::instruction || statement.instruction.opcode != "wgmma") continue;
    function_.uses_wgmma = true;
    instruction_ = &statement.instruction;
    for (const Operand& list : statement.instruction.operands) {
      if (list.kind != OperandKind::vector) continue;
      visit_names(list, [&](std::string_view name) {
        Register& reg = registers_[static_cast<std::size_t>(need_register(name))];
        if (reg.home == Register::Home::slot) return;
        if (bit_width(reg.type) != 32) invalid("the lists of wgmma take 32-bit registers");
        reg.home = Register::Home::slot;
        reg.slot = module_.new_slot(statement.instruction);
      });
    }
  }
}

void FunctionTranslator::find_homes() {
  std::vector<std::size_t> defined_in(registers_.size(), ~std::size_t{0});
  std::vector<std::uint8_t> definitions(registers_.size(), 0);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    for (std::size_t i = blocks_[b].begin; i < blocks_[b].end; ++i) {
      instruction_ = &source_.body[i].instruction;
      visit_registers(source_.body[i], [&](std::int32_t index, bool definition) {
        const auto at = static_cast<std::size_t>(index);
        if (definition) {
          defined_in[at] = b;
          definitions[at] = static_cast<std::uint8_t>(std::min(definitions[at] + 1, 2));
        } else if (defined_in[at] != b && registers_[at].home == Register::Home::value) {
          registers_[at].home = Register::Home::memory;
        }
      });
    }
  }
  // Registers of a function's own parameters and results live from its beginning to its end.
  for (const auto* list : {&source_.results, &source_.parameters}) {
    for (const ptx::Variable& variable : *list) {
      if (variable.space == ptx::Space::reg) {
        registers_[static_cast<std::size_t>(need_register(variable.name))].home = Register::Home::memory;
      }
    }
  }
  if (!source_.is_entry) return;
  for (const Statement& statement : source_.body) {
    const ptx::Instruction& instruction = statement.instruction;
    if (statement.kind != Statement::Kind::instruction || instruction.opcode != "mov" ||
        !instruction.guard.predicate.empty() || instruction.operands.size() != 2) {
      continue;
    }
    const Operand& to = instruction.operands[0];
    const Operand& from = instruction.operands[1];
    if (to.kind != OperandKind::reg || from.kind != OperandKind::symbol) continue;
    const auto offset = parameter_offsets_.find(from.name);
    const std::int32_t index = need_register(to.name);
    if (offset == parameter_offsets_.end() || definitions[static_cast<std::size_t>(index)] != 1) continue;
    parameter_addresses_.emplace(index, offset->second + static_cast<std::uint64_t>(from.addend));
  }
}

/// Registers in memory that some path reads before it writes them: they start as zero, so that what LLVM sees is
/// defined.
std::vector<std::size_t> FunctionTranslator::live_at_entry() {
  std::vector<std::size_t> in_memory;
  for (std::size_t i = 0; i < registers_.size(); ++i) {
    if (registers_[i].home != Register::Home::memory) continue;
    registers_[i].dense = static_cast<std::int32_t>(in_memory.size());
    in_memory.push_back(i);
  }
  const std::size_t words = (in_memory.size() + 63) / 64;
  using Bits = std::vector<std::uint64_t>;
  std::vector<Bits> live(blocks_.size(), Bits(words)), killed(blocks_.size(), Bits(words));
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    for (std::size_t i = blocks_[b].begin; i < blocks_[b].end; ++i) {
      visit_registers(source_.body[i], [&](std::int32_t index, bool definition) {
        const std::int32_t dense = registers_[static_cast<std::size_t>(index)].dense;
        if (dense < 0) return;
        const auto word = static_cast<std::size_t>(dense) / 64;
        const std::uint64_t bit = std::uint64_t{1} << (dense % 64);
        if (definition) {
          killed[b][word] |= bit;
        } else if (!(killed[b][word] & bit)) {
          live[b][word] |= bit;
        }
      });
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks_.size(); b-- > 0;) {
      for (const std::size_t successor : blocks_[b].successors) {
        for (std::size_t w = 0; w < words; ++w) {
          const std::uint64_t more = live[successor][w] & ~killed[b][w] & ~live[b][w];
          live[b][w] |= more;
          changed |= more != 0;
        }
      }
    }
  }
  std::vector<std::size_t> result;
  for (std::size_t w = 0; w < words; ++w) {
    for (std::uint64_t bits = live[0][w]; bits != 0; bits &= bits - 1) {
      result.push_back(in_memory[w * 64 + static_cast<std::size_t>(std::countr_zero(bits))]);
    }
  }
  return result;
}

// -- slots --------------------------------------------------------------------------------------------------

bool FunctionTranslator::changes_slots(const Statement& statement) {
  return statement.kind == Statement::Kind::call ||
         (statement.kind == Statement::Kind::instruction && statement.instruction.opcode == "wgmma");
}

bool FunctionTranslator::touches_slots(const Statement& statement) const {
  if (changes_slots(statement)) return false;
  bool touches = false;
  visit_registers(statement, [&](std::int32_t index, bool) {
    touches |= registers_[static_cast<std::size_t>(index)].home == Register::Home::slot;
  });
  return touches;
}

void FunctionTranslator::add_slot_accesses(std::size_t statement, SlotAccesses* accesses) {
  visit_registers(
      source_.body[statement],
      [&](std::int32_t index, bool definition) {
        Register& reg = registers_[static_cast<std::size_t>(index)];
        if (reg.home != Register::Home::slot) return;
        std::uint32_t& seen = definition ? reg.written_in : reg.read_in;
        if (seen == segment_) return;
        seen = segment_;
        accesses->push_back({reg.slot, definition, site_of(statement)});
      },
      false);
}

/// Checks what the statements from `begin` on touch until slot states may change again.
void FunctionTranslator::begin_segment(std::size_t begin, std::size_t end) {
  if (!module_.checks() || !function_.uses_wgmma) return;
  ++segment_;
  SlotAccesses accesses;
  for (std::size_t i = begin; i < end; ++i) {
    const Statement& statement = source_.body[i];
    if (changes_slots(statement)) break;
    if (statement.instruction.guard.predicate.empty()) add_slot_accesses(i, &accesses);
  }
  check_slots(std::move(accesses));
}

}  // namespace attune::emulator
