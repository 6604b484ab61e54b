#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/program.h"

namespace attune::emulator {

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr Dim3 kMaxBlock{1024, 1024, 64};
constexpr Dim3 kMaxGrid{2147483647, 65535, 65535};
constexpr std::uint64_t kMaxCluster = 16;
constexpr std::uint32_t kRegistersOfProcessor = 65536;
constexpr std::uint32_t kMostRegisters = 255;
constexpr std::size_t kAllocationAlignment = 256;
/// Behind each allocation, so that small overruns do not end in the next one.
constexpr std::size_t kRedZone = 256;
constexpr std::size_t kParameterAlignment = 256;
/// Not a number in any format: what unwritten memory holds.
constexpr int kUnwritten = 0xFF;
constexpr std::size_t kLargestMemory = std::size_t{1} << 46;             // so that no sum of sizes can wrap
constexpr std::size_t kLargestShared = (1 << 24) - 1 - kSharedReserved;  // offsets are 24 bits of an address

struct Memory {
  std::size_t bytes = 0;
  bool writable = true;
  AlignedBytes owned;  ///< null for a binding
  std::unique_ptr<ShadowRegion> region;
  std::string name;
};

std::string text(const Dim3& dim) { return fmt::format("({},{},{})", dim.x, dim.y, dim.z); }

std::uint64_t volume(const Dim3& dim) { return std::uint64_t{dim.x} * dim.y * dim.z; }

bool inside(const Dim3& dim, const Dim3& most) {
  return dim.x >= 1 && dim.y >= 1 && dim.z >= 1 && dim.x <= most.x && dim.y <= most.y && dim.z <= most.z;
}

std::uint32_t threads_of(const Dim3& block) { return block.x * block.y * block.z; }

void check_block(const KernelInfo& info, const Dim3& block) {
  if (!inside(block, kMaxBlock) || volume(block) > kMaxThreads) {
    fail(ErrorCode::invalid_argument, "block: {} is not allowed (1 to {} threads, at most {})", text(block),
         kMaxThreads, text(kMaxBlock));
  }
  if (info.max_threads > 0 && threads_of(block) > static_cast<std::uint32_t>(info.max_threads)) {
    fail(ErrorCode::invalid_argument, "block: {} threads are more than the {} of .maxntid of {}", threads_of(block),
         info.max_threads, info.name);
  }
  if (volume(info.required_block) != 0 && !(block == info.required_block)) {
    fail(ErrorCode::invalid_argument, "block: {} is not the {} of .reqntid of {}", text(block),
         text(info.required_block), info.name);
  }
}

void check_grid(const Dim3& grid, const Dim3& cluster) {
  if (!inside(grid, kMaxGrid)) {
    fail(ErrorCode::invalid_argument, "grid: {} is not allowed (1 to {})", text(grid), text(kMaxGrid));
  }
  if (!inside(cluster, kMaxGrid) || volume(cluster) > kMaxCluster) {
    fail(ErrorCode::invalid_argument, "cluster: {} is not allowed (1 to {} blocks)", text(cluster), kMaxCluster);
  }
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    fail(ErrorCode::invalid_argument, "grid: {} is not a multiple of the cluster {}", text(grid), text(cluster));
  }
}

/// What .reqnctapercluster demands; the launch need not say it again.
Dim3 cluster_of(const KernelCode& kernel, const Dim3& asked) {
  if (volume(kernel.required_cluster) == 0) return asked;
  if (!(asked == kernel.required_cluster) && !(asked == Dim3{})) {
    fail(ErrorCode::invalid_argument, "cluster: {} is not the {} of .reqnctapercluster of {}", text(asked),
         text(kernel.required_cluster), kernel.info.name);
  }
  return kernel.required_cluster;
}

std::uint32_t registers_of(const KernelCode& kernel, const LaunchOptions& options) {
  const std::uint32_t threads = (threads_of(options.block) + kWarpSize - 1) / kWarpSize * kWarpSize;
  if (options.registers_per_thread < 0 || options.registers_per_thread > static_cast<int>(kMostRegisters) + 1 ||
      static_cast<std::uint32_t>(options.registers_per_thread) * threads > kRegistersOfProcessor) {
    fail(ErrorCode::invalid_argument, "registers_per_thread: {} for {} threads (a block has {} registers)",
         options.registers_per_thread, threads, kRegistersOfProcessor);
  }
  if (options.registers_per_thread > 0) return static_cast<std::uint32_t>(options.registers_per_thread);
  if (kernel.max_registers > 0) return static_cast<std::uint32_t>(kernel.max_registers);
  const auto most = kernel.info.max_threads > 0 ? static_cast<std::uint32_t>(kernel.info.max_threads) : threads;
  const std::uint32_t blocks = kernel.min_blocks_per_sm > 0 ? static_cast<std::uint32_t>(kernel.min_blocks_per_sm) : 1;
  return std::min(kMostRegisters, kRegistersOfProcessor / (most * blocks) / 8 * 8);
}

const KernelCode& find_kernel(const ProgramImage& image, std::string_view name) {
  for (const KernelCode& kernel : image.kernels) {
    if (kernel.info.name == name) return kernel;
  }
  std::string known;
  for (const KernelCode& kernel : image.kernels) known += (known.empty() ? "" : ", ") + kernel.info.name;
  fail(ErrorCode::not_found, "kernel: the program has no '{}' (it has: {})", name, known.empty() ? "none" : known);
}

class MachineImpl final : public Machine {
 public:
  explicit MachineImpl(const MachineOptions& options) : options_(options) {}

  void* allocate(std::size_t bytes) override {
    const std::size_t room = std::min(options_.memory_limit, kLargestMemory);
    if (bytes > room - std::min(room, allocated_)) {
      fail(ErrorCode::out_of_memory, "{} bytes: {} of {} are allocated", bytes, allocated_, options_.memory_limit);
    }
    Memory memory;
    memory.owned = AlignedBytes(bytes + kRedZone, kAllocationAlignment);
    std::memset(memory.owned.data(), kUnwritten, bytes + kRedZone);
    std::uint8_t* base = memory.owned.data();
    add(base, bytes, false, fmt::format("allocation of {} bytes", bytes), std::move(memory));
    allocated_ += bytes;
    return base;
  }

  void free(void* memory) override {
    if (!memory) return;
    const auto found = memory_.find(static_cast<std::uint8_t*>(memory));
    if (found == memory_.end() || !found->second.owned.data())
      fail(ErrorCode::invalid_argument, "memory: {} was not allocated here", memory);
    allocated_ -= found->second.bytes;
    memory_.erase(found);
  }

  void bind(void* memory, std::size_t bytes, bool initialised, bool writable) override {
    auto* base = static_cast<std::uint8_t*>(memory);
    if (!base || bytes == 0) fail(ErrorCode::invalid_argument, "memory: {} bytes at {} cannot be bound", bytes, memory);
    auto next = memory_.lower_bound(base);
    const bool meets_next = next != memory_.end() && next->first < base + bytes;
    const bool meets_previous = next != memory_.begin() &&
                                base < std::prev(next)->first + std::max<std::size_t>(std::prev(next)->second.bytes, 1);
    if (meets_next || meets_previous)
      fail(ErrorCode::invalid_argument, "memory: {} bytes at {} overlap memory of the machine", bytes, memory);
    Memory binding;
    binding.writable = writable;
    add(base, bytes, initialised, fmt::format("binding of {} bytes", bytes), std::move(binding));
  }

  void unbind(void* memory) override {
    const auto found = memory_.find(static_cast<std::uint8_t*>(memory));
    if (found == memory_.end() || found->second.owned.data())
      fail(ErrorCode::invalid_argument, "memory: {} was not bound", memory);
    memory_.erase(found);
  }

  void mark_written(const void* memory, std::size_t bytes, bool written) override {
    const auto* address = static_cast<const std::uint8_t*>(memory);
    const auto found = holder(address, bytes);
    if (found == memory_.end())
      fail(ErrorCode::invalid_argument, "memory: {} bytes at {} are not the machine's", bytes, memory);
    found->second.region->mark_written(static_cast<std::size_t>(address - found->first), bytes, written);
  }

  bool owns(const void* memory, std::size_t bytes) const override {
    return holder(static_cast<const std::uint8_t*>(memory), bytes) != memory_.end();
  }

  std::size_t allocated() const override { return allocated_; }

  Report launch(const Program& program, std::string_view name, const LaunchOptions& options,
                void* const* arguments) override {
    const auto* loaded = dynamic_cast<const LoadedProgram*>(&program);
    if (!loaded) fail(ErrorCode::invalid_argument, "program: it was not made by Program::load");
    const ProgramImage& image = loaded->image();
    LaunchPlan plan;
    plan.image = &image;
    plan.kernel = &find_kernel(image, name);
    plan.options = options;
    plan.options.cluster = cluster_of(*plan.kernel, options.cluster);
    check(plan);
    plan.registers_per_thread = registers_of(*plan.kernel, options);

    const AlignedBytes parameters = pack(plan.kernel->info, plan.kernel->parameter_bytes, arguments);
    plan.parameters = parameters.data();
    std::vector<std::unique_ptr<ShadowRegion>> regions;
    add_ranges(image, plan, &regions);
    Grid grid(std::move(plan));
    return grid.run();
  }

 private:
  using Memories = std::map<std::uint8_t*, Memory>;

  void add(std::uint8_t* base, std::size_t bytes, bool written, std::string name, Memory&& memory) {
    memory.bytes = bytes;
    memory.region = std::make_unique<ShadowRegion>(name, ProxySpace::global, bytes, written);
    memory.name = std::move(name);
    memory_.emplace(base, std::move(memory));
  }

  Memories::const_iterator holder(const std::uint8_t* address, std::size_t bytes) const {
    auto next = memory_.upper_bound(const_cast<std::uint8_t*>(address));
    if (next == memory_.begin()) return memory_.end();
    --next;
    const auto offset = static_cast<std::size_t>(address - next->first);
    return offset <= next->second.bytes && bytes <= next->second.bytes - offset ? next : memory_.end();
  }

  void check(LaunchPlan& plan) const {
    const LaunchOptions& options = plan.options;
    const KernelInfo& info = plan.kernel->info;
    check_block(info, options.block);
    check_grid(options.grid, options.cluster);
    const std::size_t shared = info.static_shared_bytes + options.dynamic_shared_bytes;
    if (shared > options_.shared_bytes_per_block || shared < options.dynamic_shared_bytes) {
      fail(ErrorCode::invalid_argument, "dynamic_shared_bytes: {} and {} of the kernel's own are more than {}",
           options.dynamic_shared_bytes, info.static_shared_bytes, options_.shared_bytes_per_block);
    }
    plan.shared_bytes = static_cast<std::uint32_t>(kSharedReserved + shared);
    if (options.resident_blocks < 1) {
      fail(ErrorCode::invalid_argument, "resident_blocks: {} is not allowed (1 and more)", options.resident_blocks);
    }
    if (options.max_findings < 1)
      fail(ErrorCode::invalid_argument, "max_findings: {} is not allowed (1 and more)", options.max_findings);
  }

  static AlignedBytes pack(const KernelInfo& info, std::size_t bytes, void* const* arguments) {
    AlignedBytes buffer(std::max<std::size_t>(bytes, 1), kParameterAlignment);
    for (std::size_t i = 0; i < info.parameter_bytes.size(); ++i) {
      if (!arguments || !arguments[i])
        fail(ErrorCode::invalid_argument, "arguments: parameter {} of {} is null", i, info.name);
      std::memcpy(buffer.data() + info.parameter_offsets[i], arguments[i], info.parameter_bytes[i]);
    }
    return buffer;
  }

  void add_ranges(const ProgramImage& image, LaunchPlan& plan, std::vector<std::unique_ptr<ShadowRegion>>* regions) {
    const auto region_of = [&](const std::unique_ptr<ShadowRegion>& region) {
      return image.checks ? region.get() : nullptr;
    };
    for (const auto& [base, memory] : memory_)
      plan.ranges.add({base, memory.bytes, memory.writable, false, region_of(memory.region), memory.name});
    for (std::size_t i = 0; i < image.globals.size(); ++i) {
      const GlobalVariable& variable = image.globals[i];
      const std::string variable_name = "variable " + variable.name;
      regions->push_back(std::make_unique<ShadowRegion>(variable_name, ProxySpace::global, variable.bytes, true));
      plan.ranges.add({image.global_addresses[i], variable.bytes, !variable.constant, variable.constant,
                       region_of(regions->back()), variable_name});
    }
    plan.ranges.add({const_cast<std::uint8_t*>(plan.parameters), plan.kernel->parameter_bytes, false, false, nullptr,
                     "kernel parameters"});
    plan.ranges.sort();
  }

  MachineOptions options_;
  Memories memory_;
  std::size_t allocated_ = 0;
};

}  // namespace

std::unique_ptr<Machine> Machine::create(const MachineOptions& options) {
  if (options.shared_bytes_per_block > kLargestShared)
    fail(ErrorCode::invalid_argument, "shared_bytes_per_block: {} (allowed: up to {})", options.shared_bytes_per_block,
         kLargestShared);
  return std::make_unique<MachineImpl>(options);
}

}  // namespace attune::emulator
