#include "runtime/driver_device.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "runtime/driver.h"

namespace attune::runtime {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

DeviceProperties read_properties(const Driver& driver, CUdevice device) {
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    driver.check(driver.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  DeviceProperties p;
  p.ordinal = device;
  std::array<char, 256> name{};
  driver.check(driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), "cuDeviceGetName");
  p.name = name.data();
  CUuuid uuid{};
  if (driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
    for (const char byte : uuid.bytes) p.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  std::size_t memory = 0;
  driver.check(driver.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem");
  p.memory_bytes = static_cast<std::int64_t>(memory);
  p.compute_capability = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                         attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p.sms = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  p.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  p.shared_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  p.registers_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  p.clock_khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  p.memory_clock_khz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  p.memory_bus_bits = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  p.driver_version = driver.version();
  return p;
}

// Makes a context current for a scope and puts the one that was before back afterwards. Meanwhile, calls that a capture
// in any thread would forbid (loading, allocating, waiting) are allowed: they touch no stream of the capture.
class Scope {
 public:
  Scope(const Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext now = nullptr;
    driver.check(driver.cuCtxGetCurrent(&now), "cuCtxGetCurrent");
    if (now != context) {
      driver.check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
      pushed_ = true;
    }
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Scope() {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

class DriverModule : public Module {
 public:
  DriverModule(const Driver& driver, CUcontext context, std::string_view cubin) : driver_(driver), context_(context) {
    const Scope scope(driver_, context_);
    // The driver takes the image's size from its headers; a terminating zero keeps even a broken one inside.
    const std::string image(cubin);
    driver_.check(driver_.cuModuleLoadData(&module_, image.c_str()), "cuModuleLoadData");
  }
  ~DriverModule() override {
    // Errors mean that the context or the driver is gone already, and the module with it.
    try {
      const Scope scope(driver_, context_);
      driver_.cuModuleUnload(module_);
    } catch (const Error&) {
    }
  }

  Function function(const std::string& entry, int dynamic_shared_bytes) override {
    const Scope scope(driver_, context_);
    CUfunction found = nullptr;
    const CUresult result = driver_.cuModuleGetFunction(&found, module_, entry.c_str());
    if (result == CUDA_ERROR_NOT_FOUND)
      fail(ErrorCode::not_found, "kernel '{}': the cubin holds none of that name", entry);
    driver_.check(result, "cuModuleGetFunction", entry);
    driver_.check(
        driver_.cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes),
        "cuFuncSetAttribute", fmt::format("{} bytes of shared memory for {}", dynamic_shared_bytes, entry));
    return {found};
  }

 private:
  const Driver& driver_;
  CUcontext context_;
  CUmodule module_ = nullptr;
};

class DriverEvent : public Event {
 public:
  DriverEvent(const Driver& driver, CUcontext context) : driver_(driver), context_(context) {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuEventCreate(&event_, CU_EVENT_DEFAULT), "cuEventCreate");
  }
  ~DriverEvent() override { driver_.cuEventDestroy(event_); }

  void record(Stream stream) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuEventRecord(event_, stream), "cuEventRecord");
  }
  void synchronize() override { driver_.check(driver_.cuEventSynchronize(event_), "cuEventSynchronize"); }
  bool done() override {
    const CUresult result = driver_.cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    driver_.check(result, "cuEventQuery");
    return true;
  }
  double milliseconds_since(const Event& start) const override {
    float milliseconds = 0;
    const CUevent first = dynamic_cast<const DriverEvent&>(start).event_;
    driver_.check(driver_.cuEventElapsedTime(&milliseconds, first, event_), "cuEventElapsedTime");
    return milliseconds;
  }

 private:
  const Driver& driver_;
  CUcontext context_;
  CUevent event_ = nullptr;
};

class DriverDevice : public Device {
 public:
  DriverDevice(const Driver& driver, CUdevice device, CUcontext context, bool retained)
      : driver_(driver),
        device_(device),
        context_(context),
        retained_(retained),
        properties_(read_properties(driver, device)) {}
  ~DriverDevice() override {
    if (retained_) driver_.cuDevicePrimaryCtxRelease(device_);
  }

  const DeviceProperties& properties() const override { return properties_; }
  void make_current() override { driver_.check(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const Scope scope(driver_, context_);
    CUdeviceptr memory = 0;
    driver_.check(driver_.cuMemAlloc(&memory, bytes), "cuMemAlloc", fmt::format("{} bytes", bytes));
    return reinterpret_cast<void*>(memory);
  }
  void free(void* memory) noexcept override {
    if (memory == nullptr) return;
    try {
      const Scope scope(driver_, context_);
      driver_.cuMemFree(address(memory));
    } catch (const Error&) {
    }
  }
  void* allocate_shared(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const Scope scope(driver_, context_);
    void* memory = nullptr;
    // Addresses are unified: the device's is the host's.
    driver_.check(driver_.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                  "cuMemHostAlloc", fmt::format("{} bytes", bytes));
    std::memset(memory, 0, bytes);
    return memory;
  }
  void free_shared(void* memory) noexcept override {
    if (memory == nullptr) return;
    try {
      const Scope scope(driver_, context_);
      driver_.cuMemFreeHost(memory);
    } catch (const Error&) {
    }
  }
  void copy_to_device(void* to, const void* from_host, std::size_t bytes) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuMemcpyHtoD(address(to), from_host, bytes), "cuMemcpyHtoD");
  }
  void copy_to_host(void* to_host, const void* from, std::size_t bytes) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuMemcpyDtoH(to_host, address(from), bytes), "cuMemcpyDtoH");
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream), "cuMemcpyDtoDAsync");
  }
  void fill8(void* memory, std::uint8_t value, std::size_t count, Stream stream) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuMemsetD8Async(address(memory), value, count, stream), "cuMemsetD8Async");
  }
  void fill32(void* memory, std::uint32_t value, std::size_t count, Stream stream) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuMemsetD32Async(address(memory), value, count, stream), "cuMemsetD32Async");
  }
  std::size_t free_memory() override {
    const Scope scope(driver_, context_);
    std::size_t available = 0, total = 0;
    driver_.check(driver_.cuMemGetInfo(&available, &total), "cuMemGetInfo");
    return available;
  }

  std::unique_ptr<Module> load(std::string_view code) override {
    // The driver would compile PTX by itself: unchecked for spills, and a build that was made for another device.
    if (!code.starts_with("\x7f"
                          "ELF"))
      fail(ErrorCode::invalid_argument, "code: is no cubin, which alone a GPU is given");
    return std::make_unique<DriverModule>(driver_, context_, code);
  }

  void launch(Function function, const LaunchConfig& config, void** arguments) override {
    std::array<CUlaunchAttribute, 2> attributes{};
    CUlaunchConfig c{};
    c.gridDimX = config.grid.x, c.gridDimY = config.grid.y, c.gridDimZ = config.grid.z;
    c.blockDimX = config.block.x, c.blockDimY = config.block.y, c.blockDimZ = config.block.z;
    c.sharedMemBytes = config.shared_bytes;
    c.hStream = config.stream;
    c.attrs = attributes.data();
    if (config.cluster.x * config.cluster.y * config.cluster.z > 1) {
      CUlaunchAttribute& cluster = attributes[c.numAttrs++];
      cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      cluster.value.clusterDim = {config.cluster.x, config.cluster.y, config.cluster.z};
    }
    // Drivers before 12.3 cannot capture such launches.
    if (config.waits_itself && driver_.version() >= 12030) {
      CUlaunchAttribute& early = attributes[c.numAttrs++];
      early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      early.value.programmaticStreamSerializationAllowed = 1;
    }
    const CUfunction kernel = static_cast<CUfunction>(function.handle);
    CUresult result = driver_.cuLaunchKernelEx(&c, kernel, arguments, nullptr);
    // Asking which context is current before every launch would cost the launches where it is ours, nearly all.
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_HANDLE) [[unlikely]] {
      const Scope scope(driver_, context_);
      result = driver_.cuLaunchKernelEx(&c, kernel, arguments, nullptr);
    }
    if (result != CUDA_SUCCESS) [[unlikely]] {
      driver_.raise(result, "cuLaunchKernelEx",
                    fmt::format("grid {}x{}x{}, block {}x{}x{}, {} bytes of shared memory", c.gridDimX, c.gridDimY,
                                c.gridDimZ, c.blockDimX, c.blockDimY, c.blockDimZ, c.sharedMemBytes));
    }
  }

  Stream create_stream() override {
    const Scope scope(driver_, context_);
    CUstream stream = nullptr;
    driver_.check(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
  }
  void destroy_stream(Stream stream) noexcept override { driver_.cuStreamDestroy(stream); }
  void synchronize(Stream stream) override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  void synchronize() override {
    const Scope scope(driver_, context_);
    driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<DriverEvent>(driver_, context_); }
  bool capturing(Stream stream) override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver_.cuStreamIsCapturing(stream, &status);
    if (result == CUDA_ERROR_INVALID_CONTEXT) {
      const Scope scope(driver_, context_);
      result = driver_.cuStreamIsCapturing(stream, &status);
    }
    // The default stream may not be used while a stream that synchronises with it is being captured.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    driver_.check(result, "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  void encode(const TensorMapGeometry& g, const void* base, TensorMap* map) override {
    constexpr std::array<cuuint32_t, 4> kElementStrides{1, 1, 1, 1};
    const std::array<cuuint64_t, 4> dims{g.dims[0], g.dims[1], g.dims[2], g.dims[3]};
    const std::array<cuuint64_t, 3> strides{g.strides[0], g.strides[1], g.strides[2]};
    const std::array<cuuint32_t, 4> box{64, g.box_rows, 1, 1};
    const auto build = [&] {
      return driver_.cuTensorMapEncodeTiled(
          reinterpret_cast<CUtensorMap*>(map),
          g.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
          const_cast<void*>(base), dims.data(), strides.data(), box.data(), kElementStrides.data(),
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    CUresult result = build();
    if (result == CUDA_ERROR_INVALID_CONTEXT) [[unlikely]] {
      const Scope scope(driver_, context_);
      result = build();
    }
    if (result != CUDA_SUCCESS) [[unlikely]] {
      driver_.raise(result, "cuTensorMapEncodeTiled",
                    fmt::format("dims {}x{}x{}x{}, strides {}, {}, {} bytes, box 64x{}, address {}", dims[0], dims[1],
                                dims[2], dims[3], strides[0], strides[1], strides[2], box[1], fmt::ptr(base)));
    }
  }
  void replace_base(TensorMap* map, const void* base) override {
    const auto replace = [&] {
      return driver_.cuTensorMapReplaceAddress(reinterpret_cast<CUtensorMap*>(map), const_cast<void*>(base));
    };
    CUresult result = replace();
    // As for launches: a thread without a context is rare, so it is found out rather than asked about.
    if (result == CUDA_ERROR_INVALID_CONTEXT) [[unlikely]] {
      const Scope scope(driver_, context_);
      result = replace();
    }
    driver_.check(result, "cuTensorMapReplaceAddress");
  }

  PointerKind pointer_kind(const void* pointer) override {
    const Scope scope(driver_, context_);
    unsigned type = 0;
    const CUresult result = driver_.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer));
    // A pointer that CUDA has never heard of is the host's, or nobody's.
    if (result == CUDA_ERROR_INVALID_VALUE) return PointerKind::host;
    driver_.check(result, "cuPointerGetAttribute");
    if (type != CU_MEMORYTYPE_DEVICE) return type == CU_MEMORYTYPE_HOST ? PointerKind::host : PointerKind::unknown;
    int ordinal = -1;
    driver_.check(driver_.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer)),
                  "cuPointerGetAttribute");
    return ordinal == device_ ? PointerKind::this_device : PointerKind::other_device;
  }

 private:
  const Driver& driver_;
  const CUdevice device_;
  const CUcontext context_;
  const bool retained_;
  const DeviceProperties properties_;
};

}  // namespace

std::vector<DeviceProperties> list_devices() {
  const Driver& driver = Driver::get();
  std::vector<DeviceProperties> devices;
  for (int ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    CUdevice device = 0;
    driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
    devices.push_back(read_properties(driver, device));
  }
  return devices;
}

std::shared_ptr<Device> open_device(int ordinal) {
  const Driver& driver = Driver::get();
  if (ordinal < -1 || ordinal >= driver.device_count()) {
    fail(ErrorCode::invalid_argument, "device: {} does not exist (allowed: -1 for the current context, 0 to {})",
         ordinal, driver.device_count() - 1);
  }
  CUcontext now = nullptr;
  driver.check(driver.cuCtxGetCurrent(&now), "cuCtxGetCurrent");
  CUdevice device = 0;
  if (ordinal == -1 && now != nullptr) {
    driver.check(driver.cuCtxGetDevice(&device), "cuCtxGetDevice");
    return std::make_shared<DriverDevice>(driver, device, now, /*retained=*/false);
  }
  driver.check(driver.cuDeviceGet(&device, ordinal == -1 ? 0 : ordinal), "cuDeviceGet");
  CUcontext primary = nullptr;
  driver.check(driver.cuDevicePrimaryCtxRetain(&primary, device), "cuDevicePrimaryCtxRetain");
  auto opened = std::make_shared<DriverDevice>(driver, device, primary, /*retained=*/true);
  if (now == nullptr) opened->make_current();
  return opened;
}

}  // namespace attune::runtime
