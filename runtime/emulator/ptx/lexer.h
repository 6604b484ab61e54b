// Tokens of PTX text. They refer to the text, which must outlive them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator::ptx {

enum class TokenKind : std::uint8_t {
  end,
  identifier,  ///< also registers: %r1, $L__BB0_2
  dot,         ///< .b32, .shared::cluster, .4d: the text includes the dot
  integer,
  real,         ///< 0f, 0d and decimal literals
  string,       ///< the text excludes the quotes
  punctuation,  ///< one character
};

struct Token {
  TokenKind kind = TokenKind::end;
  bool adjacent = false;  ///< nothing stands between it and the token before
  std::uint8_t float_bits = 0;
  Position at;
  std::string_view text;
  std::uint64_t bits = 0;  ///< value of an integer, pattern of a real

  bool is(char character) const { return kind == TokenKind::punctuation && text.front() == character; }
  bool is_dot(std::string_view name) const { return kind == TokenKind::dot && text.substr(1) == name; }
  bool is_word(std::string_view name) const { return kind == TokenKind::identifier && text == name; }
  /// Of a dot token, without the dot.
  std::string_view name() const { return text.substr(1); }
};

/// "'%r1'", "end of text": shortened, and with what cannot be printed escaped.
std::string describe(const Token& token);
std::string quoted(std::string_view text);

/// Throws Error(code) with "ptx:line:column: ..." before the message.
[[noreturn]] void throw_at(ErrorCode code, Position at, std::string_view message);

template <typename... Args>
[[noreturn]] void fail_at(Position at, fmt::format_string<Args...> text, Args&&... args) {
  throw_at(ErrorCode::invalid_argument, at, fmt::format(text, std::forward<Args>(args)...));
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : next_(text.data()), end_(next_ + text.size()), line_start_(next_) {}

  Token next();
  /// The token after, without taking it.
  Token peek() const { return Lexer(*this).next(); }

 private:
  bool skip_blanks();
  Position position(const char* where) const { return {line_, static_cast<int>(where - line_start_) + 1}; }
  std::string_view from(const char* begin) const { return {begin, static_cast<std::size_t>(next_ - begin)}; }
  void number(Token* token);
  void dot(Token* token);
  void string(Token* token);

  const char* next_;
  const char* end_;
  const char* line_start_;
  int line_ = 1;
};

}  // namespace attune::emulator::ptx
