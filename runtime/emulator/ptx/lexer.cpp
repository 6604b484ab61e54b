#include "runtime/emulator/ptx/lexer.h"

#include <array>
#include <bit>
#include <charconv>

namespace attune::emulator::ptx {
namespace {

enum : std::uint8_t { kBlank = 1, kNameStart = 2, kNamePart = 4, kDigit = 8, kHex = 16, kPunctuation = 32 };

constexpr std::array<std::uint8_t, 256> make_classes() {
  std::array<std::uint8_t, 256> classes{};
  const auto add = [&classes](std::string_view characters, int bits) {
    for (const char c : characters) {
      auto& entry = classes[static_cast<unsigned char>(c)];
      entry = static_cast<std::uint8_t>(entry | bits);
    }
  };
  for (char c = 'a'; c <= 'z'; ++c) add({&c, 1}, kNameStart | kNamePart);
  for (char c = 'A'; c <= 'Z'; ++c) add({&c, 1}, kNameStart | kNamePart);
  add("_$%", kNameStart | kNamePart);
  add("0123456789", kNamePart | kDigit | kHex);
  add("abcdefABCDEF", kHex);
  add(" \t\r\n\f\v", kBlank);
  add("{}[](),;:|@!+-=<>~*/", kPunctuation);
  return classes;
}

constexpr std::array<std::uint8_t, 256> kClasses = make_classes();

bool is(char c, int bits) { return (kClasses[static_cast<unsigned char>(c)] & bits) != 0; }

/// All of the digits in this base, without overflow.
bool read_integer(std::string_view digits, int base, std::uint64_t* value) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value, base);
  return error == std::errc{} && end == digits.data() + digits.size();
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kLongest) out += "...";
  return out + "'";
}

std::string describe(const Token& token) {
  if (token.kind == TokenKind::end) return "end of text";
  if (token.kind == TokenKind::string) return "string " + quoted(token.text);
  return quoted(token.text);
}

void throw_at(ErrorCode code, Position at, std::string_view message) {
  fail(code, "ptx:{}:{}: {}", at.line, at.column, message);
}

/// Whether there were any.
bool Lexer::skip_blanks() {
  const char* const begin = next_;
  while (next_ != end_) {
    if (is(*next_, kBlank)) {
      if (*next_ == '\n') {
        ++line_;
        line_start_ = next_ + 1;
      }
      ++next_;
    } else if (*next_ == '/' && end_ - next_ > 1 && next_[1] == '/') {
      while (next_ != end_ && *next_ != '\n') ++next_;
    } else if (*next_ == '/' && end_ - next_ > 1 && next_[1] == '*') {
      const Position at = position(next_);
      next_ += 2;
      while (end_ - next_ > 1 && !(next_[0] == '*' && next_[1] == '/')) {
        if (*next_ == '\n') {
          ++line_;
          line_start_ = next_ + 1;
        }
        ++next_;
      }
      if (end_ - next_ < 2) fail_at(at, "expected '*/' after '/*', found end of text");
      next_ += 2;
    } else {
      break;
    }
  }
  return next_ != begin;
}

Token Lexer::next() {
  Token token;
  token.adjacent = !skip_blanks();
  token.at = position(next_);
  if (next_ == end_) return token;
  const char* const begin = next_;
  if (is(*next_, kNameStart)) {
    while (next_ != end_ && is(*next_, kNamePart)) ++next_;
    token.kind = TokenKind::identifier;
    token.text = from(begin);
  } else if (*next_ == '.') {
    dot(&token);
  } else if (is(*next_, kDigit)) {
    number(&token);
  } else if (*next_ == '"') {
    string(&token);
  } else if (is(*next_, kPunctuation)) {
    ++next_;
    token.kind = TokenKind::punctuation;
    token.text = from(begin);
  } else {
    fail_at(token.at, "unexpected character {}", quoted({next_, 1}));
  }
  return token;
}

void Lexer::dot(Token* token) {
  const char* const begin = next_++;
  for (;;) {
    const char* const part = next_;
    while (next_ != end_ && is(*next_, kNamePart) && *next_ != '%') ++next_;
    if (next_ == part) fail_at(position(next_), "expected a name after '.' or '::'");
    if (end_ - next_ < 2 || next_[0] != ':' || next_[1] != ':') break;
    next_ += 2;
  }
  token->kind = TokenKind::dot;
  token->text = from(begin);
}

void Lexer::string(Token* token) {
  const char* const begin = ++next_;
  while (next_ != end_ && *next_ != '"' && *next_ != '\n') {
    if (*next_ == '\\' && end_ - next_ > 1 && next_[1] != '\n') ++next_;
    ++next_;
  }
  if (next_ == end_ || *next_ == '\n') fail_at(token->at, "expected '\"' at the end of this string");
  token->kind = TokenKind::string;
  token->text = from(begin);
  ++next_;
}

void Lexer::number(Token* token) {
  const char* const begin = next_;
  const auto lower = [this](int offset) {
    return end_ - next_ > offset ? static_cast<char>(next_[offset] | 0x20) : '\0';
  };
  const bool zero = *next_ == '0';
  token->kind = TokenKind::integer;
  if (zero && (lower(1) == 'f' || lower(1) == 'd')) {
    const int digits = lower(1) == 'f' ? 8 : 16;
    next_ += 2;
    while (next_ != end_ && is(*next_, kNamePart)) ++next_;
    token->kind = TokenKind::real;
    token->float_bits = static_cast<std::uint8_t>(digits * 4);
    token->text = from(begin);
    if (token->text.size() != static_cast<std::size_t>(digits) + 2 ||
        !read_integer(token->text.substr(2), 16, &token->bits)) {
      fail_at(token->at, "expected {} hexadecimal digits after '{}', found {}", digits, token->text.substr(0, 2),
              quoted(token->text));
    }
    return;
  }
  int base = 10;
  if (zero && (lower(1) == 'x' || lower(1) == 'b')) {
    base = lower(1) == 'x' ? 16 : 2;
    next_ += 2;
  }
  const char* const digits = next_;
  while (next_ != end_ && is(*next_, base == 16 ? kHex : kDigit)) ++next_;
  const bool fraction = base == 10 && next_ != end_ && *next_ == '.' && end_ - next_ > 1 && is(next_[1], kDigit);
  const bool exponent = base == 10 && lower(0) == 'e';
  if (fraction || exponent) {
    if (fraction) ++next_;
    while (next_ != end_ && is(*next_, kDigit)) ++next_;
    if (lower(0) == 'e') {
      ++next_;
      if (next_ != end_ && (*next_ == '+' || *next_ == '-')) ++next_;
    }
    while (next_ != end_ && is(*next_, kNamePart)) ++next_;
    token->kind = TokenKind::real;
    token->float_bits = 64;
    token->text = from(begin);
    double value = 0;
    const auto [end, error] = std::from_chars(begin, next_, value);
    if (error != std::errc{} || end != next_) {
      fail_at(token->at, "malformed floating-point number {}", quoted(token->text));
    }
    token->bits = std::bit_cast<std::uint64_t>(value);
    return;
  }
  std::string_view text = from(digits);
  if (base == 10 && zero && text.size() > 1) base = 8;
  if (next_ != end_ && *next_ == 'U') ++next_;
  while (next_ != end_ && is(*next_, kNamePart)) ++next_;
  token->text = from(begin);
  if (token->text.ends_with('U')) {
    text = {digits, static_cast<std::size_t>(next_ - digits) - 1};
  } else {
    text = from(digits);
  }
  if (!read_integer(text, base, &token->bits)) {
    fail_at(token->at, "malformed or too large number {}", quoted(token->text));
  }
}

}  // namespace attune::emulator::ptx
