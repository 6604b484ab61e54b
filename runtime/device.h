// The GPU as attune sees it. The CUDA driver implements it (driver_device.h); so can an emulator, which is
// why no CUDA header appears here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <attune/problem.h>

#include "runtime/cubin.h"

struct CUstream_st;

namespace attune::runtime {

/// A CUDA stream; null is the legacy default stream.
using Stream = CUstream_st*;

struct DeviceProperties {
  int ordinal = 0;
  std::string name;            ///< product name; on a MIG slice it names the slice
  std::string uuid;            ///< hexadecimal, empty if unknown; identifies this very device, never part of a key
  int compute_capability = 0;  ///< major * 10 + minor
  int sms = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int shared_per_block = 0;  ///< bytes a block may use (opt-in limit)
  int registers_per_sm = 0;
  int clock_khz = 0;         ///< highest SM clock
  int memory_clock_khz = 0;  ///< highest memory clock
  int memory_bus_bits = 0;
  int driver_version = 0;  ///< of the CUDA interface, e.g. 13000; environment, not part of the identity
};

/// The operating point that timings depend on, as canonical text:
/// "name=NVIDIA_H200,cc=90,sms=132,l2=62914560,
/// memory_gib=140,clock_mhz=1980,memory_clock_mhz=3201,bus=6144". Everything in it comes from driver
/// attributes, so a cached plan is found without NVML. The power cap is not among them: it stands in a
/// trial's environment instead.
std::string identity_text(const DeviceProperties& properties);

/// What codegen wants to know about the chip. Throws Error(unsupported) for a chip that no kernel family
/// serves.
Arch arch_of(const DeviceProperties& properties);

/// A kernel in a loaded module. Belongs to the module; stays valid as long as that does.
struct Function {
  void* handle = nullptr;
};

/// Code loaded onto the device. Destroying it unloads the code: no launch of it may be pending then.
class Module {
 public:
  virtual ~Module() = default;
  /// The kernel of that name, allowed to use that much dynamic shared memory. Throws Error(not_found) or
  /// Error(driver).
  virtual Function function(const std::string& entry, int dynamic_shared_bytes) = 0;
};

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream stream) = 0;
  virtual void synchronize() = 0;
  /// Whether everything before the recorded point is done. Never blocks.
  virtual bool done() = 0;
  /// Milliseconds from `start` to this event; both must be done.
  virtual double milliseconds_since(const Event& start) const = 0;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim3 grid, block;
  unsigned shared_bytes = 0;  ///< dynamic
  Dim3 cluster;               ///< 1,1,1: no cluster
  /// The kernel waits by itself for what is before it in the stream (griddepcontrol.wait), so it may start early.
  bool waits_itself = false;
  Stream stream = nullptr;
};

/// The 128 bytes that a kernel takes as a tensor map (CUtensorMap on CUDA).
struct alignas(128) TensorMap {
  std::array<std::uint64_t, 16> opaque{};
};

/// A 4-D map in the order (head_dim, rows, heads, batch), 64 columns a box, 128-byte swizzle, zeros out of
/// bounds. tensor_map.h builds it from a problem and checks it.
struct TensorMapGeometry {
  DType dtype = DType::bf16;
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};  ///< elements
  std::array<std::uint64_t, 3> strides{0, 0, 0};  ///< bytes, of rows, heads, batch
  std::uint32_t box_rows = 1;

  bool operator==(const TensorMapGeometry&) const = default;
};

enum class PointerKind { unknown, host, this_device, other_device };

/// One device and one context on it. Every function is safe from any thread. Unless said otherwise a failure
/// throws Error(driver) with the name of the call and the driver's words, or Error(out_of_memory).
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceProperties& properties() const = 0;

  /// Makes the device's context current on the calling thread. Launches do this by themselves when they find
  /// that another context is current, or none; a thread that launches much saves time by calling it once.
  virtual void make_current() = 0;

  /// Aligned to 256 bytes at least, contents undefined. 0 bytes give a null pointer.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Waits for the device as cuMemFree does. Null is allowed. Never throws: a dead context has freed it
  /// already.
  virtual void free(void* memory) noexcept = 0;
  /// Page-locked memory of the host that kernels read and write at the same address. Zero; aligned as allocate()'s.
  virtual void* allocate_shared(std::size_t bytes) = 0;
  /// Does not wait: nothing may be under way that uses the memory. Null is allowed. Never throws.
  virtual void free_shared(void* memory) noexcept = 0;
  virtual void copy_to_device(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to_host, const void* from, std::size_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void fill8(void* memory, std::uint8_t value, std::size_t count, Stream stream) = 0;
  /// `memory` is aligned to 4 bytes; `count` words are written.
  virtual void fill32(void* memory, std::uint32_t value, std::size_t count, Stream stream) = 0;
  /// Free and total bytes.
  virtual std::size_t free_memory() = 0;

  /// What stands in code that load() would take, without loading it. Throws Error(invalid_argument) for anything else.
  virtual CubinInfo inspect(std::string_view code) { return read_cubin(code); }
  /// Code is a cubin, unless the device says otherwise. The bytes may be discarded afterwards. Throws Error(driver)
  /// also if they are not for this device.
  virtual std::unique_ptr<Module> load(std::string_view code) = 0;

  /// `arguments` holds one address for each parameter, as cuLaunchKernel takes them; values are copied before
  /// return.
  virtual void launch(Function function, const LaunchConfig& config, void** arguments) = 0;

  /// A new stream that does not synchronise with the default stream.
  virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) = 0;
  /// Waits for everything in the context.
  virtual void synchronize() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  /// Whether the stream is being captured into a graph.
  virtual bool capturing(Stream stream) = 0;

  /// Writes to `map`, which is not returned by value because GCC misaligns temporaries of such types.
  /// Throws Error(driver) if the driver refuses the geometry (tensor_map.h has checked all that is documented).
  virtual void encode(const TensorMapGeometry& geometry, const void* base, TensorMap* map) = 0;
  /// The same map with another base address; cheaper than encode().
  virtual void replace_base(TensorMap* map, const void* base) = 0;

  /// Whose memory a pointer is. A driver query: for debugging, not for the launch path.
  virtual PointerKind pointer_kind(const void* pointer) = 0;
};

/// Device memory with an owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, std::size_t bytes) : device_(&device), data_(device.allocate(bytes)), size_(bytes) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer moved(std::move(other));
    swap(moved);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void reset() noexcept {
    if (device_ != nullptr) device_->free(data_);
    device_ = nullptr;
    data_ = nullptr;
    size_ = 0;
  }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An object in memory that host and device see, with an owner. Made of zeros.
template <typename Type>
class SharedObject {
  static_assert(std::is_trivially_copyable_v<Type>);

 public:
  explicit SharedObject(Device& device)
      : device_(device), object_(static_cast<Type*>(device.allocate_shared(sizeof(Type)))) {}
  ~SharedObject() { device_.free_shared(object_); }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  Type* get() const { return object_; }

 private:
  Device& device_;
  Type* object_;
};

}  // namespace attune::runtime
