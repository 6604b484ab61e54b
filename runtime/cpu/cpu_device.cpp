#include "runtime/cpu/cpu_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/sha256.h"

namespace attune::runtime {
namespace {

static_assert(sizeof(TensorMap) == sizeof(emulator::TensorMap) && alignof(TensorMap) == alignof(emulator::TensorMap));

constexpr std::size_t kMemory = std::size_t{8} << 30;
constexpr std::size_t kSharedBytes = 232448;
// Who judges a kernel loads it again and again, once a problem; kernels come one after the other.
constexpr std::size_t kKeptPrograms = 8;

DeviceProperties properties_of(const CpuDeviceOptions& options) {
  return {.ordinal = -1,
          .name = "CPU emulator",
          .uuid = "",
          .compute_capability = 90,
          .sms = options.sms,
          .l2_bytes = 50 << 20,
          .memory_bytes = kMemory,
          .shared_per_block = kSharedBytes,
          .registers_per_sm = 65536};
}

emulator::Dim3 dimensions(const Dim3& d) { return {d.x, d.y, d.z}; }

struct CpuFunction {
  std::shared_ptr<const emulator::Program> program;
  std::string entry;
};

class CpuModule : public Module {
 public:
  explicit CpuModule(std::shared_ptr<const emulator::Program> program) : program_(std::move(program)) {}

  Function function(const std::string& entry, int) override {
    if (std::ranges::find(program_->kernels(), entry, &emulator::KernelInfo::name) == program_->kernels().end())
      fail(ErrorCode::not_found, "kernel '{}': the code holds none of that name", entry);
    return {functions_.emplace_back(std::make_unique<CpuFunction>(program_, entry)).get()};
  }

 private:
  std::shared_ptr<const emulator::Program> program_;
  std::vector<std::unique_ptr<CpuFunction>> functions_;
};

class CpuEvent : public Event {
 public:
  void record(Stream) override { time_ = std::chrono::steady_clock::now(); }
  void synchronize() override {}
  bool done() override { return true; }
  double milliseconds_since(const Event& start) const override {
    return std::chrono::duration<double, std::milli>(time_ - dynamic_cast<const CpuEvent&>(start).time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
};

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      properties_(properties_of(options)),
      machine_(emulator::Machine::create({.shared_bytes_per_block = kSharedBytes, .memory_limit = kMemory})) {}

void CpuDevice::set_seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
}

void CpuDevice::set_stop(std::stop_token stop) {
  const std::lock_guard lock(mutex_);
  stop_ = std::move(stop);
}

std::vector<CpuLaunch> CpuDevice::take_launches() {
  const std::lock_guard lock(mutex_);
  return std::exchange(launches_, {});
}

double CpuDevice::translate_seconds() {
  const std::lock_guard lock(mutex_);
  return translate_seconds_;
}

// -- memory

void* CpuDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  return machine_->allocate(bytes);
}

void CpuDevice::free(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    machine_->free(memory);
  } catch (const Error&) {
    // As with a driver: what it does not know is left alone.
  }
}

void* CpuDevice::allocate_shared(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* const memory = machine_->allocate(bytes);
  std::memset(memory, 0, bytes);
  machine_->mark_written(memory, bytes);
  return memory;
}

void CpuDevice::require_owned(const char* argument, const void* memory, std::size_t bytes) const {
  if (!machine_->owns(memory, bytes))
    fail(ErrorCode::driver, "{}: {} bytes at {} are not memory of the CPU device", argument, bytes, memory);
}

void CpuDevice::copy_to_device(void* to, const void* from_host, std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  require_owned("to", to, bytes);
  std::memcpy(to, from_host, bytes);
  machine_->mark_written(to, bytes);
}

void CpuDevice::copy_to_host(void* to_host, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  require_owned("from", from, bytes);
  std::memcpy(to_host, from, bytes);
}

void CpuDevice::copy_on_device(void* to, const void* from, std::size_t bytes, Stream) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  require_owned("to", to, bytes);
  require_owned("from", from, bytes);
  std::memmove(to, from, bytes);
  machine_->mark_written(to, bytes);
}

void CpuDevice::fill8(void* memory, std::uint8_t value, std::size_t count, Stream) {
  if (count == 0) return;
  const std::lock_guard lock(mutex_);
  require_owned("memory", memory, count);
  std::memset(memory, value, count);
  machine_->mark_written(memory, count);
}

void CpuDevice::fill32(void* memory, std::uint32_t value, std::size_t count, Stream) {
  if (count == 0) return;
  const std::lock_guard lock(mutex_);
  require_owned("memory", memory, count * sizeof value);
  std::fill_n(static_cast<std::uint32_t*>(memory), count, value);
  machine_->mark_written(memory, count * sizeof value);
}

void CpuDevice::forget(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  machine_->mark_written(memory, bytes, false);
}

std::size_t CpuDevice::free_memory() {
  const std::lock_guard lock(mutex_);
  return kMemory - std::min(kMemory, machine_->allocated());
}

// -- code

CpuDevice::ProgramPointer CpuDevice::program_of(std::string_view code) {
  if (code.starts_with("\x7f"
                       "ELF"))
    fail(ErrorCode::invalid_argument, "code: is a cubin, but the CPU emulator runs PTX");
  const std::string digest = sha256_hex(code);
  const std::lock_guard lock(mutex_);
  if (const auto found = programs_.find(digest); found != programs_.end()) return found->second;
  if (programs_.size() == kKeptPrograms) programs_.clear();
  return programs_[digest] = translate(code);
}

CpuDevice::ProgramPointer CpuDevice::translate(std::string_view code) {
  ProgramPointer program = emulator::Program::load(code, {.checks = options_.checks, .optimise = options_.optimise});
  translate_seconds_ += program->parse_seconds() + program->translate_seconds();
  return program;
}

CubinInfo CpuDevice::inspect(std::string_view code) {
  CubinInfo info;
  info.sm = properties_.compute_capability;
  const ProgramPointer program = program_of(code);
  for (const emulator::KernelInfo& kernel : program->kernels()) {
    info.kernels.push_back({.name = kernel.name,
                            .max_threads = kernel.max_threads,
                            .shared_bytes = static_cast<std::int64_t>(kernel.static_shared_bytes)});
  }
  std::ranges::sort(info.kernels, {}, &CubinKernel::name);
  return info;
}

std::unique_ptr<Module> CpuDevice::load(std::string_view code) {
  ProgramPointer program = program_of(code);
  const std::lock_guard lock(mutex_);
  if (!program->variables().empty()) {
    // Held by the map and by us, or else a module has it.
    if (program.use_count() > 2)
      program = translate(code);
    else
      program->reset_variables();
  }
  return std::make_unique<CpuModule>(std::move(program));
}

void CpuDevice::launch(Function function, const LaunchConfig& config, void** arguments) {
  const auto& kernel = *static_cast<const CpuFunction*>(function.handle);
  const std::lock_guard lock(mutex_);
  emulator::LaunchOptions options;
  options.grid = dimensions(config.grid);
  options.block = dimensions(config.block);
  options.cluster = dimensions(config.cluster);
  options.dynamic_shared_bytes = config.shared_bytes;
  options.seed = seed_;
  options.resident_blocks = options_.resident_blocks;
  options.instruction_limit = options_.instruction_limit;
  options.stop = stop_;
  launches_.push_back({kernel.entry, machine_->launch(*kernel.program, kernel.entry, options, arguments)});
}

// -- order

Stream CpuDevice::create_stream() {
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<Stream>(++streams_);  // a name that nobody looks behind
}

std::unique_ptr<Event> CpuDevice::create_event() { return std::make_unique<CpuEvent>(); }

// -- addresses

void CpuDevice::encode(const TensorMapGeometry& geometry, const void* base, TensorMap* map) {
  emulator::TensorMapDescription d;
  d.type = geometry.dtype == DType::bf16 ? emulator::TensorType::bf16 : emulator::TensorType::f16;
  d.rank = 4;
  d.base = base;
  std::ranges::copy(geometry.dims, d.dims.begin());
  std::ranges::copy(geometry.strides, d.strides.begin());
  d.box = {64, geometry.box_rows, 1, 1, 1};
  d.swizzle = emulator::Swizzle::bytes128;
  const emulator::TensorMap encoded = emulator::encode_tensor_map(d);
  map->opaque = encoded.opaque;
}

void CpuDevice::replace_base(TensorMap* map, const void* base) {
  emulator::TensorMap encoded;
  encoded.opaque = map->opaque;
  emulator::replace_tensor_map_base(&encoded, base);
  map->opaque = encoded.opaque;
}

PointerKind CpuDevice::pointer_kind(const void* pointer) {
  const std::lock_guard lock(mutex_);
  return machine_->owns(pointer, 1) ? PointerKind::this_device : PointerKind::host;
}

}  // namespace attune::runtime
