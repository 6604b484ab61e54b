#include <utility>

#include "runtime/emulator/ptx/parser_state.h"

namespace attune::emulator::ptx {

// -- functions ------------------------------------------------------------------------------------------

void Parser::function(bool is_entry, const Linkage& linkage) {
  module_.functions.emplace_back();
  location_files_.emplace_back();
  function_ = &module_.functions.back();
  names_.emplace();
  register_count_ = 0;
  location_ = -1;
  function_->is_entry = is_entry;
  if (token_.is('(') && !is_entry) function_->results = parameters(false);
  function_->at = token_.at;
  const std::string_view name = identifier("a function name");
  function_->name = name;
  if (token_.is('(')) function_->parameters = parameters(false);
  function_directives();
  function_->is_declaration = !token_.is('{');
  if (!function_->is_declaration && linkage.is_extern) fail_at(token_.at, "an .extern function has no body");
  declare_global(function_->at, name, is_entry ? GlobalKind::entry : GlobalKind::function, !function_->is_declaration);
  if (function_->is_declaration) {
    if (!take(';')) fail_expected("'{', ';' or a directive such as '.maxntid'");
  } else {
    body();
  }
  function_ = nullptr;
  names_.reset();
}

std::array<int, 3> Parser::triple(std::string_view what) {
  std::array<int, 3> result{1, 1, 1};
  std::size_t i = 0;
  do {
    if (i == result.size()) fail_expected("at most three numbers");
    result[i++] = static_cast<int>(integer(what, 1, 1 << 30));
  } while (take(','));
  return result;
}

std::array<int, 3> Parser::block_size(const Token& directive) {
  const std::array<int, 3> size = triple("thread count");
  if (std::int64_t{size[0]} * size[1] * size[2] > 1024)
    fail_at(directive.at, "{} x {} x {} threads in a block (allowed: up to 1024)", size[0], size[1], size[2]);
  return size;
}

void Parser::function_directives() {
  for (;;) {
    if (token_.is_dot("pragma")) {
      pragma();
      continue;
    }
    if (token_.kind != TokenKind::dot) return;
    const Token directive = token_;
    advance();
    const std::string_view name = directive.name();
    if (name == "maxntid") {
      function_->max_threads = block_size(directive);
    } else if (name == "reqntid") {
      function_->required_threads = block_size(directive);
    } else if (name == "reqnctapercluster") {
      function_->required_cluster = triple("cluster size");
    } else if (name == "minnctapersm") {
      function_->min_blocks_per_sm = static_cast<int>(integer("block count", 1, 32));
    } else if (name == "maxnctapersm") {
      integer("block count", 1, 1 << 20);
    } else if (name == "maxnreg") {
      function_->max_registers = static_cast<int>(integer("register count", 1, 1 << 20));
    } else if (name == "maxclusterrank") {
      function_->max_cluster_rank = static_cast<int>(integer("cluster rank", 1, 1 << 20));
    } else if (name == "explicitcluster") {
      function_->explicit_cluster = true;
    } else if (name == "blocksareclusters") {
      function_->blocks_are_clusters = true;
    } else if (name == "noreturn") {
      function_->no_return = true;
    } else {
      fail_at(directive.at, "expected '{{', ';' or a directive such as '.maxntid', found {}", describe(directive));
    }
  }
}

// -- bodies ---------------------------------------------------------------------------------------------

void Parser::body() {
  const Position at = token_.at;
  expect('{');
  for (std::size_t depth = 1; depth != 0;) {
    if (token_.kind == TokenKind::end) fail_at(at, "expected '}}' at the end of this function, found end of text");
    if (token_.is('{')) {
      if (names_->depth() == kMaxScopes) fail_at(token_.at, "more than {} nested blocks", kMaxScopes);
      names_->open();
      ++depth;
      advance();
    } else if (token_.is('}')) {
      if (--depth != 0) names_->close();
      advance();
    } else {
      statement();
    }
  }
  resolve_labels();
}

/// What is no label must be a variable or function of the module.
void Parser::resolve_labels() {
  for (const Names::Use& use : names_->finish()) {
    if (use.must_be_label) fail_at(use.at, "there is no label {}", quoted(*use.name));
    if (!globals_.contains(*use.name)) fail_at(use.at, "unknown name {}", quoted(*use.name));
  }
}

void Parser::statement() {
  if (token_.kind == TokenKind::dot) {
    body_directive();
  } else if (token_.kind == TokenKind::identifier && lexer_.peek().is(':')) {
    label();
  } else if (token_.kind == TokenKind::identifier || token_.is('@')) {
    instruction();
  } else if (!take(';')) {
    fail_expected("an instruction, a label or a directive");
  }
}

void Parser::body_directive() {
  const std::string_view name = token_.name();
  if (name == "reg") {
    advance();
    registers();
  } else if (const auto space = space_of(name)) {
    if (*space == Space::global || *space == Space::constant) {
      throw_at(ErrorCode::unsupported, token_.at, fmt::format("{} in a function", quoted(token_.text)));
    }
    advance();
    body_variables(*space);
  } else if (name == "loc") {
    location();
  } else if (name == "pragma") {
    pragma();
  } else if (name == "file") {
    file();
  } else if (name == "section") {
    section();
  } else {
    fail_expected("an instruction, a label or a directive such as '.reg'");
  }
}

/// .loc file line column [, function_name label[+offset], inlined_at file line column]
void Parser::location() {
  constexpr std::uint64_t kMost = 1 << 30;
  advance();
  const int file = static_cast<int>(integer("file number", 0, 1 << 20));
  const int line = static_cast<int>(integer("line", 0, kMost));
  integer("column", 0, kMost);
  LocationFiles numbers{file, -1};
  int inlined_line = 0;
  while (take(',')) {
    const Position at = token_.at;
    const std::string_view what = identifier("'function_name' or 'inlined_at'");
    if (what == "function_name") {
      identifier("a label");
      if (take('+')) integer("offset", 0, ~std::uint64_t{0});
    } else if (what == "inlined_at") {
      numbers.inlined = static_cast<int>(integer("file number", 0, 1 << 20));
      inlined_line = static_cast<int>(integer("line", 0, kMost));
      integer("column", 0, kMost);
    } else {
      fail_at(at, "expected 'function_name' or 'inlined_at', found {}", quoted(what));
    }
  }
  if (line == 0) return;  // compilers say so where an instruction belongs to no line: the last one still tells more
  std::vector<LocationFiles>& files = location_files_.back();
  const Location place{{}, line, {}, inlined_line};
  if (files.empty() || files.back() != numbers || function_->locations.back() != place) {
    files.push_back(numbers);
    function_->locations.push_back(place);
  }
  location_ = static_cast<int>(files.size()) - 1;
}

void Parser::label() {
  const Position at = token_.at;
  std::string name = names_->declare_label(at, identifier("a label"));
  expect(':');
  if (token_.is_dot("branchtargets")) {
    advance();
    Statement statement;
    statement.kind = Statement::Kind::branch_targets;
    statement.instruction.at = at;
    statement.label = std::move(name);
    statement.targets = names_list(true);
    function_->body.push_back(std::move(statement));
  } else if (token_.is_dot("calltargets")) {
    advance();
    function_->call_targets.push_back({at, std::move(name), names_list(false)});
  } else if (token_.is_dot("callprototype")) {
    advance();
    prototype(at, std::move(name));
  } else {
    Statement statement;
    statement.kind = Statement::Kind::label;
    statement.instruction.at = at;
    statement.instruction.loc = location_;
    statement.label = std::move(name);
    function_->body.push_back(std::move(statement));
  }
}

/// Of labels or of functions, up to the semicolon.
std::vector<std::string> Parser::names_list(bool must_be_labels) {
  std::vector<std::string> names;
  std::vector<Position> places;
  do {
    places.push_back(token_.at);
    names.emplace_back(identifier(must_be_labels ? "a label" : "a function name"));
    if (!must_be_labels && !globals_.contains(names.back())) {
      fail_at(places.back(), "unknown name {}", quoted(names.back()));
    }
  } while (take(','));
  expect(';', "','");
  if (must_be_labels) {
    for (std::size_t i = 0; i < names.size(); ++i) names_->use_label(places[i], &names[i], true);
  }
  return names;
}

/// .callprototype (results) _ (parameters) [.noreturn];
void Parser::prototype(Position at, std::string name) {
  Prototype result;
  result.at = at;
  result.name = std::move(name);
  if (token_.is('(')) result.results = parameters(true);
  if (!token_.is_word("_")) fail_expected("'_'");
  advance();
  if (token_.is('(')) result.parameters = parameters(true);
  if (token_.is_dot("noreturn")) advance();
  expect(';');
  function_->prototypes.push_back(std::move(result));
}

}  // namespace attune::emulator::ptx
