#include "runtime/emulator/ptx/parser.h"

#include <algorithm>

#include "runtime/emulator/ptx/parser_state.h"

namespace attune::emulator::ptx {
namespace {

constexpr int kOldestTarget = 80, kTarget = 90;

}  // namespace

Module parse(std::string_view text) {
  if (text.size() > kMaxText) {
    fail(ErrorCode::invalid_argument, "ptx: {} bytes of text (allowed: up to {})", text.size(), kMaxText);
  }
  return Parser(text).run();
}

// -- tokens ---------------------------------------------------------------------------------------------

bool Parser::take(char character) {
  if (!token_.is(character)) return false;
  advance();
  return true;
}

void Parser::fail_expected(std::string_view what) const {
  fail_at(token_.at, "expected {}, found {}", what, describe(token_));
}

void Parser::expect(char character) {
  if (!take(character)) fail_expected(quoted({&character, 1}));
}

void Parser::expect(char character, std::string_view or_else) {
  if (!take(character)) fail_expected(fmt::format("{} or {}", or_else, quoted({&character, 1})));
}

std::string_view Parser::identifier(std::string_view what) {
  if (token_.kind != TokenKind::identifier) fail_expected(what);
  const std::string_view name = token_.text;
  advance();
  return name;
}

std::uint64_t Parser::integer(std::string_view what, std::uint64_t least, std::uint64_t most) {
  if (token_.kind != TokenKind::integer) fail_expected(what);
  const std::uint64_t value = token_.bits;
  if (value < least || value > most) {
    fail_at(token_.at, "{} is {} (allowed: {} to {})", what, value, least, most);
  }
  advance();
  return value;
}

std::int64_t Parser::signed_integer(std::string_view what) {
  const bool negative = take('-');
  const std::uint64_t value = integer(what, 0, std::uint64_t{1} << 62);
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

// -- module ---------------------------------------------------------------------------------------------

Module Parser::run() {
  advance();
  header();
  while (token_.kind != TokenKind::end) module_item();
  check_addresses();
  fill_locations();
  split_lines();
  return std::move(module_);
}

void Parser::header() {
  version();
  target();
  if (!token_.is_dot("address_size")) fail_expected("'.address_size'");
  advance();
  const Position at = token_.at;
  module_.address_size = static_cast<int>(integer("address size", 0, 1 << 10));
  if (module_.address_size != 64) {
    throw_at(ErrorCode::unsupported, at, fmt::format("address size {} (supported: 64)", module_.address_size));
  }
}

void Parser::version() {
  if (!token_.is_dot("version")) fail_expected("'.version'");
  advance();
  const std::string_view text = token_.text;
  const std::size_t dot = text.find('.');
  const auto digits = [](std::string_view part) {
    return part.size() == 1 || (part.size() == 2 && part.front() != '0');
  };
  const bool plain = token_.kind == TokenKind::real && text.find_first_not_of("0123456789.") == std::string_view::npos;
  if (!plain || !digits(text.substr(0, dot)) || !digits(text.substr(dot + 1))) fail_expected("a version such as '9.0'");
  const auto value = [](std::string_view part) {
    int result = 0;
    for (const char c : part) result = result * 10 + (c - '0');
    return result;
  };
  module_.version_major = value(text.substr(0, dot));
  module_.version_minor = value(text.substr(dot + 1));
  const auto version = std::pair(module_.version_major, module_.version_minor);
  if (version < std::pair(7, 8) || version >= std::pair(10, 0)) {
    throw_at(ErrorCode::unsupported, token_.at, fmt::format("PTX ISA version {} (supported: 7.8 to 9.x)", text));
  }
  advance();
}

void Parser::target() {
  if (!token_.is_dot("target")) fail_expected("'.target'");
  advance();
  const Position at = token_.at;
  const std::string_view name = identifier("a target such as 'sm_90a'");
  int number = 0;
  std::string_view digits = name.starts_with("sm_") ? name.substr(3) : std::string_view{};
  const std::size_t length = std::min(digits.find_first_not_of("0123456789"), digits.size());
  const std::string_view suffix = digits.substr(length);
  for (const char c : digits.substr(0, std::min<std::size_t>(length, 4))) number = number * 10 + (c - '0');
  const bool served =
      number >= kOldestTarget && number <= kTarget && (suffix.empty() || (number == kTarget && suffix == "a"));
  if (length == 0 || !served) {
    throw_at(ErrorCode::unsupported, at,
             fmt::format("target {} (supported: sm_90a, and what also runs there: sm_80 to sm_90)", quoted(name)));
  }
  module_.target = name;
  while (take(',')) {
    const Position option_at = token_.at;
    const std::string_view option = identifier("a target option");
    if (option != "debug" && option != "texmode_unified") {
      throw_at(ErrorCode::unsupported, option_at, fmt::format("target option {}", quoted(option)));
    }
  }
}

void Parser::module_item() {
  Linkage linkage;
  linkage.at = token_.at;
  for (;; advance()) {
    if (token_.is_dot("extern")) {
      linkage.is_extern = true;
    } else if (token_.is_dot("visible") || token_.is_dot("weak") || token_.is_dot("common")) {
      linkage.visible = true;
    } else {
      break;
    }
    linkage.any = true;
  }
  constexpr std::string_view kItem = "a directive such as '.entry', '.func' or '.global'";
  if (token_.kind != TokenKind::dot) fail_expected(kItem);
  const std::string_view name = token_.name();
  if (name == "entry" || name == "func") {
    advance();
    function(name == "entry", linkage);
  } else if (const auto space = space_of(name); space && *space != Space::param && *space != Space::reg) {
    advance();
    module_variables(*space, linkage);
  } else if (linkage.any) {
    fail_expected("'.entry', '.func' or a state space");
  } else if (name == "file") {
    file();
  } else if (name == "section") {
    section();
  } else if (name == "pragma") {
    pragma();
  } else if (name == "alias" || name == "texref" || name == "samplerref" || name == "surfref" || name == "tex") {
    throw_at(ErrorCode::unsupported, token_.at, fmt::format("directive {}", quoted(token_.text)));
  } else {
    fail_expected(kItem);
  }
}

/// .file 1 "name" [, timestamp, size]
void Parser::file() {
  advance();
  const int number = static_cast<int>(integer("file number", 0, 1 << 20));
  if (token_.kind != TokenKind::string) fail_expected("a file name in quotes");
  files_[number] = token_.text;
  advance();
  for (int i = 0; i < 2 && take(','); ++i) integer("time stamp or size", 0, ~std::uint64_t{0});
}

/// Debug sections: nothing of them is needed.
void Parser::section() {
  advance();
  if (token_.kind != TokenKind::dot && token_.kind != TokenKind::identifier) fail_expected("a section name");
  advance();
  if (!token_.is('{')) fail_expected("'{'");
  const Position at = token_.at;
  for (int depth = 0;;) {
    if (token_.kind == TokenKind::end) fail_at(at, "expected '}}' at the end of this section, found end of text");
    if (token_.is('{')) ++depth;
    if (token_.is('}')) --depth;
    advance();
    if (depth == 0) break;
  }
}

void Parser::pragma() {
  advance();
  do {
    if (token_.kind != TokenKind::string) fail_expected("a string");
    advance();
  } while (take(','));
  expect(';');
}

void Parser::declare_global(Position at, std::string_view name, GlobalKind kind, bool is_defined) {
  const auto [entry, inserted] = globals_.try_emplace(name, GlobalName{at.line, kind, is_defined});
  if (inserted) return;
  GlobalName& known = entry->second;
  // Functions may be declared any number of times before and after they are defined.
  if (kind == GlobalKind::variable || kind != known.kind || (is_defined && known.is_defined)) {
    fail_at(at, "{} is already declared in line {}", quoted(name), known.line);
  }
  known.is_defined |= is_defined;
}

void Parser::check_addresses() const {
  for (const Variable& variable : module_.variables) {
    for (const Variable::Address& address : variable.addresses) {
      if (!globals_.contains(address.symbol)) {
        fail_at(variable.at, "the initial value of {} names {}, which is not declared", quoted(variable.name),
                quoted(address.symbol));
      }
    }
  }
}

void Parser::fill_locations() {
  for (std::size_t i = 0; i < location_files_.size(); ++i) {
    for (std::size_t j = 0; j < location_files_[i].size(); ++j) {
      Location& location = module_.functions[i].locations[j];
      const auto file = files_.find(location_files_[i][j].own);
      if (file != files_.end()) location.file = file->second;
      const auto inlined = files_.find(location_files_[i][j].inlined);
      if (inlined != files_.end()) location.inlined_file = inlined->second;
    }
  }
}

void Parser::split_lines() {
  module_.lines.reserve(static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '\n')) + 1);
  for (std::size_t begin = 0; begin <= text_.size();) {
    const std::size_t end = std::min(text_.find('\n', begin), text_.size());
    module_.lines.emplace_back(text_.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace attune::emulator::ptx
