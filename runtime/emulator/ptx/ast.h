// What the parser makes of PTX text. Nothing is resolved beyond names within one function; the translator gives
// meaning.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::emulator::ptx {

/// Where something stands in the text; 1-based.
struct Position {
  int line = 0;
  int column = 0;
};

enum class Type : std::uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  f16x2,
  f32,
  f64,
  bf16,
  bf16x2,
  tf32,
  e4m3,
  e5m2,
  e4m3x2,
  e5m2x2,
  u16x2,
  s16x2,
};
/// Of one element of a register or memory; pred is 1, none 0.
int byte_size(Type type);
std::optional<Type> type_of(std::string_view name);  ///< "f32" (no dot)
std::string_view type_name(Type type);

enum class Space : std::uint8_t { none, reg, global, shared, local, param, constant };

/// One declared variable: a register (or `count` registers %r0 .. %r<count-1>), or memory.
struct Variable {
  Position at;
  Space space = Space::none;
  Type type = Type::none;
  std::string name;
  int vector = 1;     ///< .v2, .v4: elements of a vector variable
  int alignment = 0;  ///< bytes; 0: natural
  bool is_array = false;
  std::uint64_t elements =
      1;  ///< of the array, all dimensions multiplied; 0 for `[]` (extern shared, the size comes at launch)
  bool is_extern = false;  ///< .extern
  bool visible = false;
  /// Initial value of .global/.const: bytes (little endian, short ones are zero-extended), and addresses in it.
  std::vector<std::uint8_t> initial;
  struct Address {
    std::uint64_t offset;  ///< in `initial`
    std::string symbol;
    std::int64_t addend;
    bool generic;
  };
  std::vector<Address> addresses;
};

enum class OperandKind : std::uint8_t {
  reg,        ///< name; with `negated` for !%p
  special,    ///< name, e.g. "%tid.x", "%laneid"
  immediate,  ///< bits (integers as 64-bit two's complement; 0f and 0d literals as their bit patterns) and is_float
  symbol,     ///< name of a variable, function or label (+ addend)
  address,    ///< [base + addend]: base is a reg, a symbol or an immediate; for mbarrier/TMA lists see `items`
  vector,     ///< {a, b, ...} in items; an item of kind `sink` for _
  pair,       ///< a|b in items (shfl, vote, match, setp p|q, elect)
  sink,       ///< _
};

struct Operand {
  OperandKind kind{};
  Position at;
  std::string name;
  bool negated = false;     ///< !p of a predicate
  bool minus = false;       ///< -%r as some instructions allow
  std::uint64_t bits = 0;   ///< immediate
  bool is_float = false;    ///< the immediate was a floating-point literal: bits is its pattern, float_bits its width
  int float_bits = 0;       ///< 32 (0f) or 64 (0d and decimal literals)
  std::int64_t addend = 0;  ///< symbol+8, [reg+8]
  /// vector, pair: the elements. address: items[0] is the base, and the addend stands in the address itself; a tensor
  /// address [map, {x, y}] has items[0] = map and items[1] = the vector; [sym, reg] style has two items as well.
  std::vector<Operand> items;
};

struct Guard {
  std::string predicate;  ///< empty: none
  bool negated = false;
};

/// `@!%p mad.lo.s32 %r1, %r2, %r3, 4;` has opcode "mad" and modifiers {"lo", "s32"}. "shared::cta" and "L2::cache_hint"
/// are one modifier each.
struct Instruction {
  Position at;
  Guard guard;
  std::string opcode;
  std::vector<std::string> modifiers;
  std::vector<Operand> operands;
  int loc = -1;  ///< index into Function::locations of the .loc line that holds here, or -1

  bool has(std::string_view modifier) const;
};

/// A call: `call (ret), name, (args);` `call.uni name, (args);` kept apart because of its parenthesised lists.
struct Call {
  std::vector<Operand> results;
  Operand callee;
  std::vector<Operand> arguments;
  std::string prototype;  ///< of an indirect call: the name of a Prototype or of CallTargets
};

struct Statement {
  enum class Kind : std::uint8_t { instruction, call, label, branch_targets } kind{};
  Instruction instruction;  ///< also of a call: opcode "call", guard, modifiers, position
  std::unique_ptr<Call> call;
  std::string label;  ///< label: its name, unique in the function (labels of inner { } blocks are renamed "name#n")
  std::vector<std::string> targets;  ///< branch_targets: of brx.idx; `label` is the list's own name
};

/// `name: .callprototype (results) _ (parameters);` of indirect calls.
struct Prototype {
  Position at;
  std::string name;
  std::vector<Variable> results;
  std::vector<Variable> parameters;
};

/// `name: .calltargets f, g;`: what an indirect call that names it may reach.
struct CallTargets {
  Position at;
  std::string name;
  std::vector<std::string> targets;
};

/// Of inlined code: where it was written, not where it was inlined.
struct Location {
  std::string file;
  int line = 0;
  std::string inlined_file;  ///< of .loc's inlined_at; empty if there is none
  int inlined_line = 0;

  bool operator==(const Location&) const = default;
};

struct Function {
  Position at;
  std::string name;
  bool is_entry = false;
  bool is_declaration = false;
  std::vector<Variable> results;  ///< .param or .reg return values
  std::vector<Variable> parameters;
  /// Every register, with ranges like %r<10> expanded only by count: Variable::elements holds the count and name the
  /// prefix ("%r"), is_array true. Registers and variables of inner { } blocks are renamed "name#n" so that names are
  /// unique; a range there becomes "%r#n." with members "%r#n.0" and so on. A register v of .v2 or .v4 is taken apart
  /// into scalars "v.x", "v.y", ..., and an operand v becomes the vector of them.
  std::vector<Variable> registers;
  std::vector<Variable> variables;  ///< .local, .shared, .param (call buffers) declared in the body
  std::vector<Statement> body;
  std::vector<Prototype> prototypes;
  std::vector<CallTargets> call_targets;
  std::vector<Location> locations;
  std::array<int, 3> max_threads{};       ///< .maxntid, zeros if absent
  std::array<int, 3> required_threads{};  ///< .reqntid
  int min_blocks_per_sm = 0;              ///< .minnctapersm
  int max_registers = 0;                  ///< .maxnreg
  std::array<int, 3> required_cluster{};  ///< .reqnctapercluster
  bool explicit_cluster = false;
  int max_cluster_rank = 0;  ///< .maxclusterrank
  bool blocks_are_clusters = false;
  bool no_return = false;
};

struct Module {
  int version_major = 0, version_minor = 0;
  std::string target;  ///< "sm_90a"
  int address_size = 64;
  std::vector<Variable> variables;  ///< of the module: .global, .const, .shared, .extern .shared
  std::vector<Function> functions;
  std::vector<std::string> lines;  ///< of the text, for messages
};

}  // namespace attune::emulator::ptx
