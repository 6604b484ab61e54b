// The recursive-descent parser. Its parts: parser.cpp (module), parser_variables.cpp (declarations and initial values),
// parser_function.cpp (functions and statements), parser_operands.cpp (instructions, calls, operands).
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/emulator/ptx/ast.h"
#include "runtime/emulator/ptx/lexer.h"
#include "runtime/emulator/ptx/names.h"

namespace attune::emulator::ptx {

// Far above what compilers emit; they keep hostile text from taking memory or stack out of proportion to its size.
constexpr std::size_t kMaxText = std::size_t{16} << 20;
constexpr std::size_t kMaxScopes = 64;
constexpr std::uint64_t kMaxRegisters = std::uint64_t{1} << 20;  ///< of one function
constexpr std::size_t kMaxParameters = 4096;
constexpr std::size_t kMaxOperands = 64;
constexpr std::size_t kMaxVector = 256;
constexpr std::size_t kMaxDimensions = 8;
constexpr std::uint64_t kMaxVariableBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxInitialBytes = std::uint64_t{64} << 20;  ///< of all variables together
constexpr std::uint64_t kMaxAlignment = 1 << 20;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), lexer_(text) {}
  Module run();

 private:
  struct Linkage {
    Position at;
    bool is_extern = false;
    bool visible = false;
    bool any = false;
  };
  /// What a declaration says before its names: `.param .u64 .ptr .global .align 16`.
  struct Declaration {
    Variable variable;
    bool opaque_pointer = false;
  };
  enum class GlobalKind : std::uint8_t { variable, function, entry };
  struct GlobalName {
    int line;
    GlobalKind kind;
    bool is_defined;
  };

  // -- tokens -------------------------------------------------------------------------------------------
  void advance() { token_ = lexer_.next(); }
  bool take(char character);
  void expect(char character);
  /// expect(), but says what might also have stood here.
  void expect(char character, std::string_view or_else);
  [[noreturn]] void fail_expected(std::string_view what) const;
  std::string_view identifier(std::string_view what);
  std::uint64_t integer(std::string_view what, std::uint64_t least, std::uint64_t most);
  std::int64_t signed_integer(std::string_view what);

  // -- module -------------------------------------------------------------------------------------------
  void header();
  void version();
  void target();
  void module_item();
  void file();
  void section();
  void pragma();
  void check_addresses() const;
  void fill_locations();
  void split_lines();
  void declare_global(Position at, std::string_view name, GlobalKind kind, bool is_defined);

  // -- variables ----------------------------------------------------------------------------------------
  static std::optional<Space> space_of(std::string_view directive);
  Declaration declaration(Space space);
  void attribute();
  int alignment();
  /// The name, the dimensions and what else belongs to one declared variable.
  Variable declarator(const Declaration& declaration, std::vector<std::uint64_t>* dimensions);
  std::vector<std::uint64_t> dimensions(bool may_be_open);
  void module_variables(Space space, const Linkage& linkage);
  void initialiser(Variable* variable, std::vector<std::uint64_t> dimensions);
  std::uint64_t initial_list(Variable* variable, const std::vector<std::uint64_t>& dimensions, std::size_t level,
                             std::uint64_t first);
  void initial_value(Variable* variable, std::uint64_t index);
  void initial_address(Variable* variable, std::uint64_t offset);
  std::vector<Variable> parameters(bool in_prototype);
  void registers();
  void body_variables(Space space);

  // -- functions ----------------------------------------------------------------------------------------
  void function(bool is_entry, const Linkage& linkage);
  void function_directives();
  std::array<int, 3> triple(std::string_view what);
  std::array<int, 3> block_size(const Token& directive);
  void body();
  void statement();
  void body_directive();
  void location();
  void label();
  void prototype(Position at, std::string name);
  std::vector<std::string> names_list(bool must_be_labels);
  void resolve_labels();

  // -- instructions -------------------------------------------------------------------------------------
  void instruction();
  void guard(Instruction* instruction);
  void call(Statement* statement);
  std::vector<Operand> operand_list(std::string_view what);
  Operand operand(bool jump_target);
  Operand primary();
  Operand named();
  Operand number();
  Operand vector();
  Operand address();
  void addend(Operand* operand);
  void use_labels(std::vector<Operand>* operands, bool must_be_label);
  void add(Statement statement);

  std::string_view text_;
  Lexer lexer_;
  Token token_;
  Module module_;
  std::unordered_map<std::string_view, GlobalName> globals_;
  std::unordered_map<int, std::string> files_;
  /// File numbers of each function's locations, since .file may stand after its use.
  struct LocationFiles {
    int own, inlined;  ///< inlined: -1 if there is none
    bool operator==(const LocationFiles&) const = default;
  };
  std::vector<std::vector<LocationFiles>> location_files_;
  std::uint64_t initial_bytes_ = 0;

  // Of the function that is being parsed.
  Function* function_ = nullptr;
  std::optional<Names> names_;
  std::uint64_t register_count_ = 0;
  int location_ = -1;
  bool has_unknown_names_ = false;  ///< of the operands parsed since it was cleared
};

}  // namespace attune::emulator::ptx
