#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/emulator/ptx/parser_state.h"

namespace attune::emulator::ptx {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

/// False where the product is above `limit`.
bool multiply(std::uint64_t* value, std::uint64_t factor, std::uint64_t limit) {
  if (factor != 0 && *value > limit / factor) return false;
  *value *= factor;
  return true;
}

bool is_floating(Type type) { return type == Type::f32 || type == Type::f64; }

}  // namespace

std::optional<Space> Parser::space_of(std::string_view directive) {
  if (directive == "reg") return Space::reg;
  if (directive == "global") return Space::global;
  if (directive == "shared") return Space::shared;
  if (directive == "local") return Space::local;
  if (directive == "param") return Space::param;
  if (directive == "const") return Space::constant;
  return std::nullopt;
}

// -- what stands before the names -----------------------------------------------------------------------

int Parser::alignment() {
  const Position at = token_.at;
  const std::uint64_t value = integer("alignment", 1, kMaxAlignment);
  if (!std::has_single_bit(value)) fail_at(at, "alignment is {} (allowed: powers of two)", value);
  return static_cast<int>(value);
}

/// .attribute(.managed): where a variable lies is all the same here.
void Parser::attribute() {
  advance();
  expect('(');
  if (!token_.is_dot("managed")) {
    throw_at(ErrorCode::unsupported, token_.at, fmt::format("attribute {}", describe(token_)));
  }
  advance();
  expect(')');
}

Parser::Declaration Parser::declaration(Space space) {
  Declaration result;
  Variable& variable = result.variable;
  variable.space = space;
  for (; token_.kind == TokenKind::dot;) {
    const std::string_view name = token_.name();
    if (name == "align") {
      advance();
      const int value = alignment();
      // After .ptr it is the alignment of what is pointed to.
      if (!result.opaque_pointer) variable.alignment = value;
    } else if (name == "v2" || name == "v4" || name == "v8") {
      variable.vector = name[1] - '0';
      advance();
    } else if (name == "ptr" && space == Space::param && variable.type != Type::none) {
      result.opaque_pointer = true;
      advance();
    } else if (result.opaque_pointer && space_of(name)) {
      advance();
    } else if (name == "attribute") {
      attribute();
    } else if (const auto type = type_of(name); type && variable.type == Type::none) {
      variable.type = *type;
      advance();
    } else {
      fail_expected(variable.type == Type::none ? "a type, a vector size or '.align'" : "a name");
    }
  }
  if (variable.type == Type::none) fail_expected("a type");
  if (variable.type == Type::pred && (space != Space::reg || variable.vector != 1)) {
    fail_at(token_.at, "predicates are registers of one element");
  }
  return result;
}

// -- names and dimensions -------------------------------------------------------------------------------

std::vector<std::uint64_t> Parser::dimensions(bool may_be_open) {
  std::vector<std::uint64_t> result;
  while (token_.is('[')) {
    if (result.size() == kMaxDimensions) fail_at(token_.at, "more than {} dimensions", kMaxDimensions);
    advance();
    const bool open = may_be_open && result.empty() && token_.is(']');
    result.push_back(open ? 0 : integer("array size", result.empty() && may_be_open ? 0 : 1, kNoLimit));
    expect(']');
  }
  return result;
}

Variable Parser::declarator(const Declaration& declaration, std::vector<std::uint64_t>* dims) {
  Variable variable = declaration.variable;
  variable.at = token_.at;
  variable.name = identifier("a name");
  *dims = dimensions(variable.space != Space::local);
  variable.is_array = !dims->empty();
  std::uint64_t bytes = static_cast<std::uint64_t>(byte_size(variable.type) * variable.vector);
  for (const std::uint64_t dimension : *dims) {
    // An open first dimension must not hide an overflow of the others.
    if (!multiply(&bytes, std::max<std::uint64_t>(dimension, 1), kMaxVariableBytes)) {
      fail_at(variable.at, "{} has more than 2^40 bytes", quoted(variable.name));
    }
    variable.elements *= dimension;
  }
  return variable;
}

void Parser::module_variables(Space space, const Linkage& linkage) {
  const Declaration common = declaration(space);
  do {
    const std::string_view name = token_.text;
    std::vector<std::uint64_t> dims;
    Variable variable = declarator(common, &dims);
    variable.is_extern = linkage.is_extern;
    variable.visible = linkage.visible;
    declare_global(variable.at, name, GlobalKind::variable, true);
    if (token_.is('=')) {
      if (space != Space::global && space != Space::constant)
        fail_expected("';': only .global and .const have initial values");
      advance();
      initialiser(&variable, std::move(dims));
    } else if (variable.is_array && variable.elements == 0 && !variable.is_extern) {
      fail_at(variable.at, "{} has no size, and is neither .extern nor initialised", quoted(variable.name));
    }
    module_.variables.push_back(std::move(variable));
  } while (take(','));
  expect(';', "'=', ','");
}

std::vector<Variable> Parser::parameters(bool in_prototype) {
  std::vector<Variable> result;
  expect('(');
  if (take(')')) return result;
  do {
    if (result.size() == kMaxParameters) fail_at(token_.at, "more than {} parameters", kMaxParameters);
    const bool is_param = token_.is_dot("param");
    if (!is_param && !token_.is_dot("reg")) fail_expected("'.param' or '.reg'");
    advance();
    const Declaration kind = declaration(is_param ? Space::param : Space::reg);
    const std::string_view name = token_.text;
    std::vector<std::uint64_t> dims;
    Variable variable = declarator(kind, &dims);
    if (!is_param && (variable.is_array || variable.vector != 1)) {
      fail_at(variable.at, "a register parameter is one scalar");
    }
    if (variable.elements == 0 && function_->is_entry && !in_prototype) {
      fail_at(variable.at, "{} has no size", quoted(variable.name));
    }
    if (!in_prototype) names_->declare(variable.at, name, is_param ? Names::Kind::variable : Names::Kind::reg);
    result.push_back(std::move(variable));
  } while (take(','));
  expect(')', "','");
  return result;
}

void Parser::registers() {
  const Declaration kind = declaration(Space::reg);
  const auto count = [this](Position at, std::uint64_t more) {
    register_count_ += more;
    if (register_count_ > kMaxRegisters) fail_at(at, "more than {} registers in a function", kMaxRegisters);
  };
  do {
    Variable variable = kind.variable;
    variable.at = token_.at;
    variable.vector = 1;
    const std::string_view name = identifier("a register name");
    if (token_.is('<')) {
      advance();
      if (kind.variable.vector != 1) {
        throw_at(ErrorCode::unsupported, variable.at, "a range of vector registers");
      }
      variable.elements = integer("register count", 1, kMaxRegisters);
      variable.is_array = true;
      expect('>');
      count(variable.at, variable.elements);
      variable.name = names_->declare_range(variable.at, name, variable.elements);
      function_->registers.push_back(std::move(variable));
    } else if (kind.variable.vector == 1) {
      count(variable.at, 1);
      variable.name = names_->declare(variable.at, name, Names::Kind::reg);
      function_->registers.push_back(std::move(variable));
    } else {
      const int width = kind.variable.vector;
      if (width > 4) fail_at(variable.at, "vector registers have 2 or 4 elements");
      count(variable.at, static_cast<std::uint64_t>(width));
      const std::string whole = names_->declare(variable.at, name, Names::Kind::vector_reg, width);
      for (int i = 0; i < width; ++i) {
        variable.name = whole + '.' + "xyzw"[i];
        function_->registers.push_back(variable);
      }
    }
  } while (take(','));
  expect(';', "','");
}

void Parser::body_variables(Space space) {
  const Declaration kind = declaration(space);
  do {
    const std::string_view name = token_.text;
    std::vector<std::uint64_t> dims;
    Variable variable = declarator(kind, &dims);
    if (variable.is_array && variable.elements == 0) {
      fail_at(variable.at, "{} has no size", quoted(variable.name));
    }
    variable.name = names_->declare(variable.at, name, Names::Kind::variable);
    if (token_.is('=')) {
      throw_at(ErrorCode::unsupported, token_.at, "an initial value of a variable in a function");
    }
    function_->variables.push_back(std::move(variable));
  } while (take(','));
  expect(';', "','");
}

// -- initial values -------------------------------------------------------------------------------------

void Parser::initialiser(Variable* variable, std::vector<std::uint64_t> dims) {
  if (variable->vector != 1) dims.push_back(static_cast<std::uint64_t>(variable->vector));
  if (dims.empty()) {
    // A scalar may stand in braces too.
    const bool braces = take('{');
    initial_value(variable, 0);
    if (braces) expect('}');
  } else {
    if (!token_.is('{')) fail_expected("'{'");
    const std::uint64_t rows = initial_list(variable, dims, 0, 0);
    if (dims.front() == 0) {
      std::uint64_t elements = rows;
      for (std::size_t i = 1; i < dims.size(); ++i) elements *= dims[i];
      variable->elements = elements / static_cast<std::uint64_t>(variable->vector);
    }
  }
}

/// One { } list; it fills dimension `level`, whose first element is number `first` of the whole. Values without braces
/// of their own run on through the inner dimensions. Returns how many entries of this dimension were begun.
std::uint64_t Parser::initial_list(Variable* variable, const std::vector<std::uint64_t>& dims, std::size_t level,
                                   std::uint64_t first) {
  expect('{');
  std::uint64_t stride = 1;
  for (std::size_t i = level + 1; i < dims.size(); ++i) stride *= dims[i];
  const bool open = dims[level] == 0;
  const std::uint64_t most = open ? kNoLimit : dims[level] * stride;
  std::uint64_t filled = 0;  // elements of the whole
  if (take('}')) return 0;
  do {
    if (filled >= most) fail_at(token_.at, "more initial values than {} has elements", quoted(variable->name));
    if (!token_.is('{')) {
      initial_value(variable, first + filled);
      ++filled;
    } else if (level + 1 == dims.size()) {
      fail_expected("an initial value");
    } else {
      if (filled % stride != 0) fail_at(token_.at, "a nested list must begin a new row of {}", quoted(variable->name));
      initial_list(variable, dims, level + 1, first + filled);
      filled += stride;
    }
  } while (take(','));
  expect('}', "','");
  return (filled + stride - 1) / stride;
}

void Parser::initial_value(Variable* variable, std::uint64_t index) {
  const auto size = static_cast<std::uint64_t>(byte_size(variable->type));
  const std::uint64_t offset = index * size;
  const std::uint64_t had = variable->initial.size();
  if (offset + size > had) {
    initial_bytes_ += offset + size - had;
    if (offset > kMaxInitialBytes || initial_bytes_ > kMaxInitialBytes) {
      fail_at(token_.at, "more than {} bytes of initial values", kMaxInitialBytes);
    }
    variable->initial.resize(offset + size);
  }
  if (token_.kind == TokenKind::identifier) {
    initial_address(variable, offset);
    return;
  }
  const bool negative = take('-');
  std::uint64_t bits = token_.bits;
  if (token_.kind == TokenKind::real) {
    if (negative) bits ^= std::uint64_t{1} << (token_.float_bits - 1);
    const bool decimal_or_double = token_.float_bits == 64;
    if (variable->type == Type::f32 && decimal_or_double) {
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    } else if (variable->type == Type::f64 && !decimal_or_double) {
      bits = std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
    } else if (static_cast<int>(size) * 8 != token_.float_bits) {
      fail_at(token_.at, "{} does not fit type .{}", describe(token_), type_name(variable->type));
    }
  } else if (token_.kind == TokenKind::integer) {
    if (is_floating(variable->type)) {
      const double value = negative ? -static_cast<double>(bits) : static_cast<double>(bits);
      bits = variable->type == Type::f64 ? std::bit_cast<std::uint64_t>(value)
                                         : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    } else if (negative) {
      bits = ~bits + 1;
    }
  } else {
    fail_expected("an initial value");
  }
  advance();
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(size, 8); ++i) {
    variable->initial[offset + i] = static_cast<std::uint8_t>(bits >> (8 * i));
  }
}

/// symbol, symbol+4, generic(symbol), generic(symbol)+4
void Parser::initial_address(Variable* variable, std::uint64_t offset) {
  const Position at = token_.at;
  if (token_.is_word("mask")) throw_at(ErrorCode::unsupported, at, "an initial value with mask()");
  Variable::Address address{offset, std::string(token_.text), 0, false};
  advance();
  if (address.symbol == "generic" && take('(')) {
    address.generic = true;
    address.symbol = identifier("a variable's name");
    if (token_.is('+') || token_.is('-')) {
      const bool negative = token_.is('-');
      advance();
      address.addend = signed_integer("offset") * (negative ? -1 : 1);
    }
    expect(')');
  }
  if (token_.is('+') || token_.is('-')) {
    const bool negative = token_.is('-');
    advance();
    address.addend += signed_integer("offset") * (negative ? -1 : 1);
  }
  if (byte_size(variable->type) != 8) {
    throw_at(
        ErrorCode::unsupported, at,
        fmt::format("an address as initial value of type .{} (supported: 64-bit types)", type_name(variable->type)));
  }
  variable->addresses.push_back(std::move(address));
}

}  // namespace attune::emulator::ptx
