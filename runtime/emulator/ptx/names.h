// The names of one function while it is parsed: nested scopes of registers and variables, and labels, which may be used
// before they are seen.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/emulator/ptx/ast.h"

namespace attune::emulator::ptx {

class Names {
 public:
  enum class Kind : std::uint8_t { reg, vector_reg, variable };
  struct Found {
    Kind kind{};
    int width = 1;     ///< of a vector register
    std::string name;  ///< unique in the function
  };

  Names() { open(); }

  // Each of these answers the name that is unique in the function. Throws where the scope has the name already.
  std::string declare(Position at, std::string_view name, Kind kind, int width = 1);
  std::string declare_range(Position at, std::string_view prefix, std::uint64_t count);
  std::string declare_label(Position at, std::string_view name);

  std::optional<Found> find(std::string_view name) const;

  /// To be made unique when the scope that has this label is closed; `name` must stay where it is until then.
  void use_label(Position at, std::string* name, bool must_be_label);

  void open();
  void close();
  std::size_t depth() const { return scopes_.size(); }

  struct Use {
    Position at;
    std::string* name;
    bool must_be_label;
  };
  /// Closes the function's own scope; what is left is no label of it.
  std::vector<Use> finish();

 private:
  struct Entry {
    Kind kind;
    int width;
    int line;
  };
  struct Range {
    std::string unique_prefix;
    std::uint64_t count;
    int line;
  };
  struct Scope {
    int serial;  ///< 0: the function's own, whose names stay as they are
    std::unordered_map<std::string_view, Entry> names;
    std::unordered_map<std::string_view, Range> ranges;
    std::unordered_map<std::string_view, int> labels;
    std::vector<Use> uses;
  };
  struct Member {
    const Range* range;
    std::string_view index;
  };

  static std::string unique(const Scope& scope, std::string_view name);
  static std::optional<Member> member(const Scope& scope, std::string_view name);

  std::vector<Scope> scopes_;
  int opened_ = 0;
};

}  // namespace attune::emulator::ptx
