#include <algorithm>
#include <array>
#include <utility>

#include "runtime/emulator/ptx/parser_state.h"

namespace attune::emulator::ptx {
namespace {

constexpr std::array<std::string_view, 8> kTriples = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
};

constexpr std::array<std::string_view, 31> kScalars = {
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "%reserved_smem_offset_0",
    "%reserved_smem_offset_1",
    "%current_graph_exec",
    "%pm0",
    "%envreg0",
};

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Numbered ones by their stem.
bool is_special_scalar(std::string_view name) {
  if (is_one_of(name, kScalars)) return true;
  for (const std::string_view stem : {"%pm", "%envreg"}) {
    if (name.starts_with(stem) && name.size() > stem.size() && name.size() <= stem.size() + 5 &&
        name[stem.size()] >= '0' && name[stem.size()] <= '9') {
      return true;
    }
  }
  return false;
}

/// Of %tid.x and of vector registers: 0 to 3, or -1.
int component_index(std::string_view name) {
  if (name.size() != 1) return -1;
  const std::size_t xyzw = std::string_view("xyzw").find(name.front());
  if (xyzw != std::string_view::npos) return static_cast<int>(xyzw);
  const std::size_t rgba = std::string_view("rgba").find(name.front());
  return rgba == std::string_view::npos ? -1 : static_cast<int>(rgba);
}

}  // namespace

// -- instructions ---------------------------------------------------------------------------------------

void Parser::add(Statement statement) {
  function_->body.push_back(std::move(statement));
  if (!has_unknown_names_) return;
  // The lists of operands stay where they are from here on.
  Statement& added = function_->body.back();
  const std::string& opcode = added.instruction.opcode;
  use_labels(&added.instruction.operands, opcode == "bra" || opcode == "brx");
  if (added.call) {
    use_labels(&added.call->results, false);
    use_labels(&added.call->arguments, false);
    if (!added.call->prototype.empty()) names_->use_label(added.instruction.at, &added.call->prototype, true);
  }
}

void Parser::use_labels(std::vector<Operand>* operands, bool must_be_label) {
  for (Operand& operand : *operands) {
    if (operand.kind == OperandKind::symbol) {
      const bool is_variable = operand.name.find('#') != std::string::npos || names_->find(operand.name);
      if (must_be_label || !is_variable) names_->use_label(operand.at, &operand.name, must_be_label);
    } else {
      use_labels(&operand.items, false);
    }
  }
}

void Parser::guard(Instruction* instruction) {
  advance();
  instruction->guard.negated = take('!');
  const Position at = token_.at;
  const std::string_view name = identifier("a predicate");
  const auto found = names_->find(name);
  if (!found || found->kind != Names::Kind::reg) fail_at(at, "expected a predicate, found {}", quoted(name));
  instruction->guard.predicate = found->name;
}

void Parser::instruction() {
  Statement statement;
  Instruction& instruction = statement.instruction;
  has_unknown_names_ = false;
  if (token_.is('@')) guard(&instruction);
  instruction.at = token_.at;
  instruction.loc = location_;
  instruction.opcode = identifier("an instruction");
  for (; token_.kind == TokenKind::dot; advance()) {
    if (instruction.modifiers.size() == kMaxOperands) fail_at(token_.at, "more than {} modifiers", kMaxOperands);
    instruction.modifiers.emplace_back(token_.name());
  }
  if (instruction.opcode == "call") {
    call(&statement);
    add(std::move(statement));
    return;
  }
  const bool jump = instruction.opcode == "bra" || instruction.opcode == "brx";
  if (!token_.is(';')) {
    do {
      if (instruction.operands.size() == kMaxOperands) fail_at(token_.at, "more than {} operands", kMaxOperands);
      instruction.operands.push_back(operand(jump));
    } while (take(','));
  }
  expect(';', instruction.operands.empty() ? "an operand" : "','");
  add(std::move(statement));
}

/// call (results), callee, (arguments), prototype; where all but the callee may be missing.
void Parser::call(Statement* statement) {
  statement->kind = Statement::Kind::call;
  statement->call = std::make_unique<Call>();
  Call& call = *statement->call;
  if (token_.is('(')) {
    call.results = operand_list("a result");
    expect(',');
  }
  const Position at = token_.at;
  if (token_.kind != TokenKind::identifier) fail_expected("a function");
  call.callee = named();
  if (call.callee.kind == OperandKind::symbol) {
    const auto global = globals_.find(call.callee.name);
    if (global == globals_.end() || global->second.kind != GlobalKind::function) {
      fail_at(at, "{} is not a function declared above", quoted(call.callee.name));
    }
  } else if (call.callee.kind != OperandKind::reg) {
    fail_at(at, "expected a function or a register, found {}", quoted(call.callee.name));
  }
  if (take(',')) {
    bool more = true;
    if (token_.is('(')) {
      call.arguments = operand_list("an argument");
      more = take(',');
    }
    if (more) {
      call.prototype = identifier("'(' or a prototype's name");
      has_unknown_names_ = true;
    }
  }
  expect(';', "','");
}

std::vector<Operand> Parser::operand_list(std::string_view what) {
  std::vector<Operand> result;
  expect('(');
  if (take(')')) return result;
  do {
    if (result.size() == kMaxParameters) fail_at(token_.at, "more than {} arguments", kMaxParameters);
    if (token_.kind != TokenKind::identifier && token_.kind != TokenKind::integer && token_.kind != TokenKind::real &&
        !token_.is('-')) {
      fail_expected(what);
    }
    result.push_back(primary());
  } while (take(','));
  expect(')', "','");
  return result;
}

// -- operands -------------------------------------------------------------------------------------------

Operand Parser::operand(bool jump_target) {
  if (jump_target && token_.kind == TokenKind::identifier) {
    // Labels may have the name of anything else.
    const auto found = names_->find(token_.text);
    if (!found || found->kind != Names::Kind::reg) {
      Operand label;
      label.kind = OperandKind::symbol;
      label.at = token_.at;
      label.name = token_.text;
      has_unknown_names_ = true;
      advance();
      return label;
    }
  }
  if (token_.is('{')) return vector();
  if (token_.is('[')) return address();
  Operand first = primary();
  if (!token_.is('|')) {
    if (first.kind == OperandKind::symbol) addend(&first);
    return first;
  }
  Operand pair;
  pair.kind = OperandKind::pair;
  pair.at = first.at;
  pair.items.push_back(std::move(first));
  advance();
  pair.items.push_back(primary());
  for (const Operand& item : pair.items) {
    if (item.kind != OperandKind::reg && item.kind != OperandKind::sink) {
      fail_at(item.at, "expected a register or '_' beside '|'");
    }
  }
  return pair;
}

/// A register, a symbol, a number or _.
Operand Parser::primary() {
  const Position at = token_.at;
  switch (token_.kind) {
    case TokenKind::identifier: return named();
    case TokenKind::integer:
    case TokenKind::real: return number();
    case TokenKind::punctuation: break;
    default: fail_expected("an operand");
  }
  if (token_.is('!')) {
    advance();
    if (token_.kind != TokenKind::identifier) fail_expected("a predicate");
    Operand result = named();
    if (result.kind != OperandKind::reg) fail_at(result.at, "expected a predicate after '!'");
    result.at = at;
    result.negated = true;
    return result;
  }
  if (!token_.is('-')) fail_expected("an operand");
  advance();
  if (token_.kind == TokenKind::integer || token_.kind == TokenKind::real) {
    Operand result = number();
    result.at = at;
    if (result.is_float) {
      result.bits ^= std::uint64_t{1} << (result.float_bits - 1);
    } else {
      result.bits = ~result.bits + 1;
    }
    return result;
  }
  if (token_.kind != TokenKind::identifier) fail_expected("a number or a register after '-'");
  Operand result = named();
  if (result.kind != OperandKind::reg) fail_at(result.at, "expected a number or a register after '-'");
  result.at = at;
  result.minus = true;
  return result;
}

Operand Parser::number() {
  Operand result;
  result.kind = OperandKind::immediate;
  result.at = token_.at;
  result.bits = token_.bits;
  result.is_float = token_.kind == TokenKind::real;
  result.float_bits = token_.float_bits;
  advance();
  return result;
}

Operand Parser::named() {
  Operand result;
  const Token name = token_;
  result.at = name.at;
  advance();
  if (name.text == "_") {
    result.kind = OperandKind::sink;
    return result;
  }
  const bool has_component = token_.kind == TokenKind::dot && token_.adjacent;
  if (auto found = names_->find(name.text)) {
    result.name = std::move(found->name);
    if (found->kind == Names::Kind::variable) {
      result.kind = OperandKind::symbol;
      return result;
    }
    result.kind = OperandKind::reg;
    if (found->kind == Names::Kind::reg) return result;
    if (has_component) {
      const int index = component_index(token_.name());
      if (index < 0 || index >= found->width) fail_expected(fmt::format("a component of {}", quoted(name.text)));
      advance();
      result.name = result.name + '.' + "xyzw"[index];
      return result;
    }
    result.kind = OperandKind::vector;
    for (int i = 0; i < found->width; ++i) {
      Operand item;
      item.kind = OperandKind::reg;
      item.at = name.at;
      item.name = result.name + '.' + "xyzw"[i];
      result.items.push_back(std::move(item));
    }
    result.name.clear();
    return result;
  }
  if (name.text == "WARP_SZ") {
    result.kind = OperandKind::immediate;
    result.bits = 32;
    return result;
  }
  if (name.text.front() == '%') {
    result.kind = OperandKind::special;
    result.name = name.text;
    if (is_special_scalar(name.text)) return result;
    if (!is_one_of(name.text, kTriples)) fail_at(name.at, "unknown register {}", quoted(name.text));
    if (!has_component || component_index(token_.name()) < 0) {
      fail_expected(fmt::format("'.x', '.y' or '.z' after {}", quoted(name.text)));
    }
    result.name += token_.text;
    advance();
    return result;
  }
  result.kind = OperandKind::symbol;
  result.name = name.text;
  if (!globals_.contains(name.text)) has_unknown_names_ = true;
  return result;
}

Operand Parser::vector() {
  Operand result;
  result.kind = OperandKind::vector;
  result.at = token_.at;
  expect('{');
  do {
    if (result.items.size() == kMaxVector) fail_at(token_.at, "more than {} elements in a vector", kMaxVector);
    result.items.push_back(primary());
    if (result.items.back().kind == OperandKind::vector) {
      fail_at(result.items.back().at, "expected a scalar in a vector");
    }
  } while (take(','));
  expect('}', "','");
  return result;
}

/// [base], [base+8], [base+-8], [map, {x, y}], [base, register]
Operand Parser::address() {
  Operand result;
  result.kind = OperandKind::address;
  result.at = token_.at;
  expect('[');
  Operand base = primary();
  if (base.kind != OperandKind::reg && base.kind != OperandKind::symbol && base.kind != OperandKind::immediate) {
    fail_at(base.at, "expected a register, a variable or a number as address");
  }
  result.items.push_back(std::move(base));
  addend(&result);
  while (take(',')) {
    if (result.items.size() == kMaxOperands) fail_at(token_.at, "more than {} parts in an address", kMaxOperands);
    result.items.push_back(token_.is('{') ? vector() : primary());
  }
  expect(']', result.items.size() == 1 ? "'+', ','" : "','");
  return result;
}

void Parser::addend(Operand* operand) {
  if (!token_.is('+') && !token_.is('-')) return;
  const bool negative = token_.is('-');
  advance();
  const std::int64_t value = signed_integer("offset");
  operand->addend = negative ? -value : value;
}

}  // namespace attune::emulator::ptx
