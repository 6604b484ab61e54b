// One PTX function becoming one LLVM function.
//
// A register's home is a plain SSA value where no basic block reads it before writing it; a slot of the thread's slot
// file where a wgmma names it; otherwise memory in the frame (an alloca), whose present value is kept at hand within a
// block. A guarded instruction that only computes becomes a select; any other is branched around.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/ptx/ast.h"
#include "runtime/emulator/translate/modifiers.h"
#include "runtime/emulator/translate/module.h"
#include "runtime/emulator/translate/slots.h"

namespace attune::emulator {

/// Of integer and bit types, and of what is kept as bits.
constexpr int bit_width(ptx::Type type) {
  using ptx::Type;
  switch (type) {
    case Type::none: return 0;
    case Type::pred: return 1;
    case Type::b8:
    case Type::u8:
    case Type::s8:
    case Type::e4m3:
    case Type::e5m2: return 8;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16:
    case Type::e4m3x2:
    case Type::e5m2x2: return 16;
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64: return 64;
    case Type::b128: return 128;
    default: return 32;
  }
}
constexpr bool is_signed(ptx::Type type) {
  return type == ptx::Type::s8 || type == ptx::Type::s16 || type == ptx::Type::s32 || type == ptx::Type::s64;
}
constexpr bool is_unsigned(ptx::Type type) {
  return type == ptx::Type::u8 || type == ptx::Type::u16 || type == ptx::Type::u32 || type == ptx::Type::u64;
}
constexpr bool is_bits(ptx::Type type) {
  return type == ptx::Type::b8 || type == ptx::Type::b16 || type == ptx::Type::b32 || type == ptx::Type::b64 ||
         type == ptx::Type::b128;
}
constexpr bool is_float(ptx::Type type) { return type == ptx::Type::f32 || type == ptx::Type::f64; }
constexpr bool is_half(ptx::Type type) {
  return type == ptx::Type::f16 || type == ptx::Type::bf16 || type == ptx::Type::f16x2 || type == ptx::Type::bf16x2;
}
constexpr bool is_bf16(ptx::Type type) { return type == ptx::Type::bf16 || type == ptx::Type::bf16x2; }
constexpr bool is_pair(ptx::Type type) { return type == ptx::Type::f16x2 || type == ptx::Type::bf16x2; }

class FunctionTranslator {
 public:
  FunctionTranslator(ModuleTranslator& module, TranslatedFunction& function);
  void run();

 private:
  using Value = llvm::Value;
  using Handler = void (FunctionTranslator::*)();
  struct Opcode {
    Handler handler;
    bool only_computes = false;  ///< no memory, no fault, no effect but its result
  };
  static const std::unordered_map<std::string_view, Opcode>& opcodes();

  struct Register {
    enum class Home : std::uint8_t { value, memory, slot } home = Home::value;
    ptx::Type type{};
    std::uint16_t slot = 0;
    std::uint32_t epoch = 0;                    ///< of the basic block in which `current` was computed
    std::int32_t dense = -1;                    ///< number among those in memory
    std::uint32_t read_in = 0, written_in = 0;  ///< slots: the segment that has such an access
    Value* current = nullptr;
    llvm::AllocaInst* memory = nullptr;
  };
  struct Block {
    std::size_t begin = 0, end = 0;  ///< statements
    llvm::BasicBlock* ir = nullptr;
    std::vector<std::size_t> successors;
  };

  // -- analysis.cpp: control flow and the homes of registers -------------------------------------------
  void index_registers();
  std::int32_t find_register(std::string_view name) const;
  std::int32_t need_register(std::string_view name) const;
  void find_blocks();
  void find_slots();
  void find_homes();
  std::vector<std::size_t> live_at_entry();
  const std::vector<std::string>& branch_targets(std::string_view list) const;
  std::size_t block_of_label(const std::string& label) const;
  /// Calls visit(register, is_definition) for each register operand, uses first. `merges`: the result of a guarded
  /// instruction counts as used too, as it keeps its value where the guard is false.
  template <typename Visit>
  void visit_registers(const ptx::Statement& statement, const Visit& visit, bool merges = true) const;
  /// The registers of a statement.
  struct Touched {
    std::vector<std::int32_t> used, defined;
  };
  Touched touched_by(const ptx::Statement& statement) const;
  static bool writes_first_operand(const ptx::Instruction& instruction);
  bool ends_block(const ptx::Statement& statement) const;
  static bool changes_slots(const ptx::Statement& statement);
  bool touches_slots(const ptx::Statement& statement) const;
  void add_slot_accesses(std::size_t statement, SlotAccesses* accesses);
  void begin_segment(std::size_t begin, std::size_t end);

  // -- late_loads.cpp: loads from shared memory whose result may be unused when the thread tells others -----
  void find_late_loads();
  void follow_load(std::size_t load, std::vector<std::optional<Touched>>* known);

  // -- function.cpp: frame and control flow -------------------------------------------------------------
  void prepare_frame();
  void take_register_parameters();
  llvm::AllocaInst* frame_memory(std::uint64_t bytes, std::uint64_t alignment);
  Value* operand_array(std::uint64_t bytes);
  void translate_block(std::size_t index);
  void translate_guarded(const ptx::Statement& statement);
  void translate_terminator(std::size_t index);
  void dispatch(const ptx::Statement& statement);
  Value* guard_value();
  void leave();
  llvm::BasicBlock* new_block();
  llvm::BasicBlock* branch_to(std::size_t from, std::size_t target);
  void count_instructions(std::size_t begin, std::size_t end);
  void check_slots(SlotAccesses accesses);
  void use_loads();
  std::uint32_t site_of(std::size_t statement);
  Value* context_field(std::uint64_t offset);

  // -- operands.cpp ---------------------------------------------------------------------------------------
  /// The operand as a value of the LLVM type of `type`. A register may be wider than the type if `allow_wider`.
  Value* read(const ptx::Operand& operand, ptx::Type type, bool allow_wider = false);
  Value* read_predicate(const ptx::Operand& operand);
  void write(const ptx::Operand& operand, Value* value);
  /// Where the register is wider than the value: extended as the type says.
  void write_extended(const ptx::Operand& operand, Value* value, ptx::Type type);
  Value* read_register(std::int32_t index, llvm::Type* type);
  void give_memory(Register* reg);  ///< unless it has some
  void write_register(std::int32_t index, Value* value);
  Value* special_register(const ptx::Operand& operand, ptx::Type type);
  Value* immediate(const ptx::Operand& operand, ptx::Type type);
  Value* symbol_address(const ptx::Operand& operand, ptx::Type type);
  Value* pack(const ptx::Operand& from, int total_bits);
  void unpack(const ptx::Operand& to, Value* value);
  /// 64 bits; an address operand in the given space.
  Value* address(const ptx::Operand& operand, AddressSpace space);
  llvm::Type* type_of(ptx::Type type);
  Value* cast(Value* value, llvm::Type* type);  ///< bit for bit
  Value* as_bits(Value* value);
  Value* choose(Value* condition, Value* a, Value* b);
  Value* widen(Value* value, llvm::Type* type, bool sign);
  /// A register's value as memory holds it (predicates as bytes), and back.
  llvm::Type* memory_type(ptx::Type type);
  Value* to_memory(Value* value);
  Value* from_memory(Value* value, ptx::Type type);
  ptx::Type register_type(const ptx::Operand& operand) const;

  const ptx::Operand& operand(std::size_t index) const;
  void expect_operands(std::size_t least, std::size_t most) const;
  Value* i32(std::uint32_t value) { return builder_.getInt32(value); }
  Value* i64(std::uint64_t value) { return builder_.getInt64(value); }
  template <typename T>
  Value* enumerator(T value) {
    return i32(static_cast<std::uint32_t>(value));
  }
  template <typename T>
  Value* constant(T value) {
    return pointer_to(module_.constants().keep(std::move(value)));
  }
  Value* pointer_to(const void* address);
  Value* call(CalleeId id, std::initializer_list<Value*> arguments);
  Value* site() { return i32(site_of(statement_)); }
  Value* at_offset(Value* pointer, std::uint64_t offset);
  [[noreturn]] void unsupported(std::string_view what) const;
  [[noreturn]] void invalid(std::string_view what) const;

  // -- integer.cpp ------------------------------------------------------------------------------------------
  void translate_add_sub();
  Value* add_with_carry(bool subtract, bool carry_in, bool carry_out, Value* a, Value* b);
  template <typename Operation>
  Value* by_halves(const Operation& operation);
  void translate_mul();
  void translate_mul24();
  void translate_mad();
  void translate_sad();
  void translate_div_rem();
  void translate_min_max();
  void translate_abs_neg();
  void translate_popc_clz_brev();
  void translate_bfind();
  void translate_fns();
  void translate_bfe();
  void translate_bfi();
  void translate_szext();
  void translate_bmsk();
  void translate_dot();
  enum class Product : std::uint8_t;
  Product take_product();
  Value* multiply(ptx::Type type, Product product);
  Value* integer_min_max(Value* a, Value* b, bool maximum, bool sign);
  Value* saturate_integer(Value* value);
  Value* read_carry();
  void write_carry(Value* carry);

  // -- logic.cpp --------------------------------------------------------------------------------------------
  void translate_logic();
  void translate_not();
  void translate_cnot();
  void translate_lop3();
  void translate_shift();
  void translate_funnel_shift();
  void translate_prmt();
  void translate_setp();
  void translate_set();
  void translate_selp();
  void translate_slct();
  struct Comparison;
  Comparison take_comparison(std::optional<ptx::Type>* result_type = nullptr);
  Value* compare(const Comparison& comparison, Value* a, Value* b);
  Value* combine(const Comparison& comparison, Value* result, Value* other);
  std::vector<Value*> comparison_results(const Comparison& comparison);

  // -- floating.cpp -----------------------------------------------------------------------------------------
  void translate_fma();
  void translate_reciprocal();
  void translate_sqrt();
  void translate_function();
  void translate_testp();
  void translate_copysign();
  void translate_float_add(ptx::Type type);
  void translate_float_mul(ptx::Type type);
  void translate_float_fma(ptx::Type type);
  void translate_float_div(ptx::Type type);
  void translate_float_min_max(ptx::Type type);
  void translate_float_abs_neg(ptx::Type type);
  void translate_half(ptx::Type type, std::uint8_t op, std::size_t operands);
  struct FloatMode;
  FloatMode take_float_mode(ptx::Type type, bool must_round);
  Value* read_float(std::size_t index, const FloatMode& mode);
  void write_float(Value* value, const FloatMode& mode);
  Value* rounded(std::uint8_t op, const FloatMode& mode, Value* a, Value* b = nullptr, Value* c = nullptr);
  Value* flush(Value* value);
  Value* flush_half(Value* value);  ///< of an f16 that was converted to f32

  // -- convert.cpp ------------------------------------------------------------------------------------------
  void translate_cvt();
  void translate_cvt_pack();
  void translate_mov();
  void translate_cvta();
  void translate_isspacep();
  void translate_mapa();
  void translate_getctarank();
  struct Conversion;
  void convert_pair(Conversion& conversion);
  void convert_scalar(Conversion& conversion);
  void check_conversion(const Conversion& conversion) const;
  Value* shared_operand(std::size_t index, AddressSpace space, ptx::Type type, AddressSpace wanted);

  // -- memory.cpp -------------------------------------------------------------------------------------------
  void translate_ld();
  void translate_st();
  void translate_atom();
  void translate_prefetch();
  void translate_createpolicy();
  void translate_fence();
  struct MemoryAccess;
  MemoryAccess take_access(AccessKind kind);
  Value* access(const MemoryAccess& access, const ptx::Operand& where);
  Value* parameter_pointer(const ptx::Operand& where, std::uint64_t bytes);
  std::optional<std::uint64_t> known_parameter_offset(const ptx::Operand& base) const;

  // -- call.cpp ---------------------------------------------------------------------------------------------
  void translate_call(const ptx::Call& call);
  Value* call_buffer(const ptx::Operand& from, const ptx::Variable& parameter);
  std::vector<Value*> call_arguments(const ptx::Call& call, const ptx::Function& target);
  void take_results(const ptx::Call& call, const ptx::Function& target, const std::vector<Value*>& arguments);
  void call_indirect(const ptx::Call& call);
  void call_system(const std::string& name, const ptx::Function& target, const std::vector<Value*>& arguments);

  // -- warp.cpp ---------------------------------------------------------------------------------------------
  void translate_shfl();
  void translate_vote();
  void translate_match();
  void translate_redux();
  void translate_activemask();
  void translate_elect();
  void translate_bar();
  void translate_mbarrier();
  void translate_mbarrier_arrive(bool drop);
  void translate_mbarrier_wait(bool try_wait);
  void translate_nanosleep();
  void translate_setmaxnreg();
  void translate_griddepcontrol();
  void write_with_predicate(const ptx::Operand& destination, Value* packed);
  /// In a shared space whatever it was.
  Value* shared_address(const ptx::Operand& where, AddressSpace* space);

  // -- copy.cpp ---------------------------------------------------------------------------------------------
  struct BulkValues {
    Value *destination = nullptr, *source = nullptr, *map = nullptr, *mbarrier = nullptr, *bytes = nullptr,
          *mask = nullptr;
    std::vector<Value*> coordinates, offsets;
  };
  void translate_cp();
  void translate_cp_async();
  void translate_bulk(bool reduce);
  void take_bulk_spaces(BulkInfo* info);
  void take_bulk_reduction(BulkInfo* info, bool tensor);
  void read_tensor_address(const ptx::Operand& where, std::uint8_t rank, BulkValues* values);
  Value* store_bulk_operands(const BulkValues& values);

  // -- matrix.cpp -------------------------------------------------------------------------------------------
  struct MatrixMove {
    MatrixMoveInfo info{};
    Value* address = nullptr;
    std::vector<const ptx::Operand*> registers;
  };
  void translate_wgmma();
  void translate_wgmma_mma();
  void translate_mma();
  void translate_ldmatrix();
  void translate_stmatrix();
  void translate_movmatrix();
  MatrixType take_matrix_type();
  MatrixMove take_matrix_move(std::size_t list_index);
  std::vector<std::uint16_t> slots_of(const ptx::Operand& list, std::size_t count);

  ModuleTranslator& module_;
  TranslatedFunction& function_;
  const ptx::Function& source_;
  llvm::IRBuilder<> builder_;
  llvm::BasicBlock* entry_ = nullptr;
  Value* context_ = nullptr;
  Value* slots_ = nullptr;
  Value* slot_states_ = nullptr;
  Value* parameters_ = nullptr;
  Value* local_base_ = nullptr;
  llvm::AllocaInst* carry_ = nullptr;
  llvm::AllocaInst* operand_memory_ = nullptr;  ///< arrays of operands and results of one call at a time
  std::uint64_t operand_bytes_ = 0;
  std::size_t first_location_ = 0;

  struct RegisterRange {
    std::int32_t base;
    std::uint64_t count;
  };
  std::unordered_map<std::string_view, RegisterRange> ranges_;
  std::unordered_map<std::string_view, std::int32_t> scalars_;
  std::vector<Register> registers_;
  std::vector<Block> blocks_;
  std::unordered_map<std::string_view, std::size_t> labels_;
  std::vector<std::uint32_t> instructions_before_;                         ///< of each statement, in the function
  std::uint32_t segment_ = 0;                                              ///< serial number of the present one
  std::unordered_set<std::size_t> late_loads_;                             ///< statements
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> load_uses_;  ///< of statements: the sites of those loads
  std::unordered_map<std::string_view, std::uint64_t> parameter_offsets_;  ///< kernels: in the parameter buffer
  std::uint64_t parameter_bytes_ = 0;
  std::unordered_map<std::int32_t, std::uint64_t> parameter_addresses_;  ///< registers that hold one throughout
  struct Buffer {
    Value* pointer;
    std::uint64_t bytes;
  };
  std::unordered_map<std::string_view, Buffer> buffers_;        ///< .param variables of calls, and of a device function
  std::unordered_map<std::string_view, std::uint64_t> locals_;  ///< offsets in the local frame

  // The instruction being translated.
  ptx::Instruction end_;  ///< stands for the end of a body that runs off it
  const ptx::Instruction* instruction_ = nullptr;
  Modifiers* modifiers_ = nullptr;
  std::size_t statement_ = 0;
  std::vector<std::int32_t> sites_;  ///< of each statement, or -1
  std::uint32_t epoch_ = 0;
  bool guarded_ = false;     ///< in a branch around a guarded instruction
  Value* select_ = nullptr;  ///< guard of an instruction that becomes a select
  struct GuardedWrite {
    std::int32_t index;
    Value* old;
    Value* value;
  };
  std::vector<GuardedWrite> guarded_writes_;
};

/// Sets the parameter buffer's layout of a kernel: the offset of each parameter. Returns the size of the buffer.
std::uint64_t lay_out_parameters(const ptx::Function& function, std::vector<std::size_t>* offsets);

}  // namespace attune::emulator
