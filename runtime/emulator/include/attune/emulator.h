// A CUDA device on the CPU: runs PTX for sm_90a and reports what hardware hides. Knows nothing of attention.
//
// A Machine has memory and takes launches. Global memory is the process's own memory: allocate() returns host pointers
// that kernels and the host both use, so no copies are needed. A launch runs in the calling thread until the grid has
// ended, and returns a Report. Machines are independent of each other; one machine serves one thread at a time. A
// Program may be launched on several machines, but holds its .global and .const variables itself, as a loaded CUDA
// module does: what a kernel writes there, the next launch of that program finds. Programs with such variables serve
// one thread at a time, too; Program::load() once more gives another set of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <attune/error.h>

namespace attune::emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
};

/// What a finding is about. finding_kind_name() gives the stable lower-case name.
enum class FindingKind {
  out_of_bounds,       ///< access outside every allocation, window, tensor box or local frame
  misaligned,          ///< address not a multiple of what the instruction needs
  uninitialised_read,  ///< memory that was never written
  race,                ///< two accesses, one of them a write, that no synchronisation orders
  proxy_race,          ///< generic writes seen by the async proxy without fence.proxy.async
  late_load,           ///< shared memory given to the async proxy by a release that can overtake a load from it
  register_hazard,     ///< registers of a pending wgmma touched before wgmma.wait_group, or not fenced before it
  barrier_misuse,      ///< bar/barrier with a wrong count, mixed roles, an exited warp, divergent .aligned
  mbarrier_misuse,     ///< uninitialised, wrong count, transaction-count overflow, arrival of an invalidated object
  deadlock,            ///< no thread can go on
  no_progress,         ///< the instruction limit was reached
  register_pool,       ///< setmaxnreg that can never be granted, or not executed by the whole warpgroup
  bulk_leak,           ///< a thread or a block exits while bulk copies still read or write its shared memory
  divergence,          ///< .sync/.aligned instruction with lanes missing or at different instructions
  bad_operand,         ///< descriptor, tensor map, size or coordinate that the instruction does not allow
  trap,                ///< trap, brkpt or a failed assertion
};
const char* finding_kind_name(FindingKind kind) noexcept;

struct SourcePosition {
  int ptx_line = 0;         ///< 1-based line of the PTX text
  std::string instruction;  ///< its text, blanks squeezed, long operand lists shortened
  std::string file;         ///< of the CUDA source, where the PTX has .loc lines; else empty
  int line = 0;
  std::string inlined_file;  ///< where the function that holds this line was inlined; empty if it was not
  int inlined_line = 0;
};

struct ThreadPosition {
  Dim3 block{0, 0, 0};
  Dim3 thread{0, 0, 0};
};

struct Finding {
  FindingKind kind{};
  std::string message;  ///< one sentence with the values that matter
  ThreadPosition thread;
  SourcePosition at;
  std::optional<ThreadPosition> other_thread;  ///< of the access, arrival or issue that it conflicts with
  std::optional<SourcePosition> other_at;
  std::uint64_t count = 1;  ///< how often the same pair of instructions was found in this launch
};

struct Report {
  std::vector<Finding> findings;   ///< in the order found; one entry for each kind and pair of instructions
  std::string output;              ///< what the kernel printed
  std::uint64_t instructions = 0;  ///< PTX instructions executed, over all threads
  double seconds = 0;              ///< wall time of the launch, without translation
  bool clean() const { return findings.empty(); }
  /// For people: one paragraph a finding.
  std::string text() const;
};

struct ProgramOptions {
  bool checks = true;     ///< false: no checking code is generated; faults that cannot be survived still end the launch
  bool optimise = false;  ///< LLVM's O1 pipeline: slower to translate, faster to run
};

struct KernelInfo {
  std::string name;
  std::vector<std::size_t> parameter_bytes;    ///< sizes, in order
  std::vector<std::size_t> parameter_offsets;  ///< of each, in the parameter buffer
  std::size_t static_shared_bytes = 0;
  int max_threads = 0;           ///< .maxntid, or 0
  Dim3 required_block{0, 0, 0};  ///< .reqntid, or 0
};

/// A variable of .global or .const at module scope.
struct ModuleVariable {
  std::string name;
  void* data = nullptr;  ///< its memory, as long as the program lives; the host may read and write it between launches
  std::size_t bytes = 0;
  bool constant = false;  ///< .const: kernels cannot write it
};

/// PTX text, parsed, translated to native code and linked.
class Program {
 public:
  /// Throws Error(invalid_argument) for malformed PTX ("ptx:12:7: ..."), Error(unsupported) for a target, an ISA
  /// version or an instruction outside what the emulator knows, naming it and its line.
  static std::shared_ptr<const Program> load(std::string_view ptx, const ProgramOptions& options = {});
  virtual ~Program() = default;
  virtual const std::vector<KernelInfo>& kernels() const = 0;
  /// In the order of the text; what cuModuleGetGlobal finds by name.
  virtual const std::vector<ModuleVariable>& variables() const = 0;
  /// Gives every variable the value again that it had when the program was loaded.
  virtual void reset_variables() const = 0;
  virtual double parse_seconds() const = 0;
  virtual double translate_seconds() const = 0;
};

/// The 128 bytes that a kernel takes as a tensor map. Only an emulator reads what encode_tensor_map() writes.
struct alignas(128) TensorMap {
  std::array<std::uint64_t, 16> opaque{};
};

enum class TensorType { u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32_ftz, tf32, tf32_ftz };
enum class Swizzle { none, bytes32, bytes64, bytes128 };
enum class Interleave { none, bytes16, bytes32 };
enum class OutOfBoundsFill { zeros, nan };

/// As cuTensorMapEncodeTiled takes it; sizes from the innermost dimension outwards.
struct TensorMapDescription {
  TensorType type = TensorType::u8;
  int rank = 1;                            ///< 1 to 5
  const void* base = nullptr;              ///< aligned to 16 bytes
  std::array<std::uint64_t, 5> dims{};     ///< elements; 1 to 2^32
  std::array<std::uint64_t, 4> strides{};  ///< bytes, of dimensions 1 and up; multiples of 16, below 2^40
  std::array<std::uint32_t, 5> box{};      ///< elements; 1 to 256
  std::array<std::uint32_t, 5> element_strides{1, 1, 1, 1, 1};
  Interleave interleave = Interleave::none;
  Swizzle swizzle = Swizzle::none;
  OutOfBoundsFill fill = OutOfBoundsFill::zeros;
};
/// Throws Error(invalid_argument) that names the field, as the driver would refuse it.
TensorMap encode_tensor_map(const TensorMapDescription& description);
/// The same map over another base address.
void replace_tensor_map_base(TensorMap* map, const void* base);

struct LaunchOptions {
  Dim3 grid, block;
  Dim3 cluster{1, 1, 1};
  std::size_t dynamic_shared_bytes = 0;
  std::uint64_t seed = 0;  ///< of the order in which threads and asynchronous operations proceed; 0: everything at once
                           ///< and in program order
  int resident_blocks = 1;       ///< how many blocks (rounded up to whole clusters) run side by side
  int registers_per_thread = 0;  ///< at launch, for setmaxnreg; 0: what .maxntid and .minnctapersm leave of 65,536
  std::uint64_t instruction_limit = 20'000'000'000;  ///< over all threads; then no_progress
  int max_findings = 100;                            ///< the launch ends when so many distinct ones were found
  std::stop_token stop = {};                         ///< ends the launch soon after a request
};

struct MachineOptions {
  std::size_t shared_bytes_per_block = 232448;      ///< below 2^24 - 1024
  std::size_t memory_limit = std::size_t{8} << 30;  ///< of all allocations together
};

class Machine {
 public:
  static std::unique_ptr<Machine> create(const MachineOptions& options = {});
  virtual ~Machine() = default;

  /// Aligned to 256 bytes; unwritten as far as the checker is concerned. Throws Error(out_of_memory).
  virtual void* allocate(std::size_t bytes) = 0;
  /// Null is allowed. Throws Error(invalid_argument) for what allocate() did not return.
  virtual void free(void* memory) = 0;
  /// Lets kernels use memory of the caller's, which stays the caller's. Reads of it count as initialised if so said.
  virtual void bind(void* memory, std::size_t bytes, bool initialised, bool writable) = 0;
  virtual void unbind(void* memory) = 0;
  /// Tells the checker what the host wrote (or made unwritten again).
  virtual void mark_written(const void* memory, std::size_t bytes, bool written = true) = 0;
  /// Whether all these bytes lie in one allocation or binding.
  virtual bool owns(const void* memory, std::size_t bytes) const = 0;
  /// Bytes allocated now.
  virtual std::size_t allocated() const = 0;

  /// Runs a grid. `arguments` holds one address for each parameter, as cuLaunchKernel takes them. Throws
  /// Error(not_found) for an unknown kernel, Error(invalid_argument) for a launch that a device would refuse (block of
  /// more than 1024 threads or more than .maxntid, shared memory, cluster size, grid limits); what the kernel does
  /// wrong stands in the report. Throws Error(interrupted) after a request to stop, and what the process itself meets
  /// on the way, such as std::bad_alloc; memory then holds what the kernel had written by that time.
  virtual Report launch(const Program& program, std::string_view kernel, const LaunchOptions& options,
                        void* const* arguments) = 0;
};

}  // namespace attune::emulator
