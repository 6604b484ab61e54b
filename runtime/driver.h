// libcuda, opened at run time: nothing here is linked, so everything that needs no GPU works on machines
// without one.
#pragma once

#include <cuda.h>

#include <string>

namespace attune::runtime {

// Names as <cuda.h> spells them; its macros add the version suffixes (cuMemAlloc -> cuMemAlloc_v2), here and
// in the symbol that is looked up, so that type and symbol always belong together.
#define ATTUNE_DRIVER_FUNCTIONS(X)     \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetUuid)                   \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceTotalMem)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxGetCurrent)                   \
  X(cuCtxSetCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuCtxSynchronize)                  \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemHostAlloc)                    \
  X(cuMemFreeHost)                     \
  X(cuMemGetInfo)                      \
  X(cuMemcpyHtoD)                      \
  X(cuMemcpyDtoH)                      \
  X(cuMemcpyDtoDAsync)                 \
  X(cuMemsetD8Async)                   \
  X(cuMemsetD32Async)                  \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuFuncSetAttribute)                \
  X(cuLaunchKernelEx)                  \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy)                   \
  X(cuStreamSynchronize)               \
  X(cuStreamIsCapturing)               \
  X(cuStreamBeginCapture)              \
  X(cuStreamEndCapture)                \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuGraphInstantiate)                \
  X(cuGraphLaunch)                     \
  X(cuGraphDestroy)                    \
  X(cuGraphExecDestroy)                \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventSynchronize)                \
  X(cuEventElapsedTime)                \
  X(cuPointerGetAttribute)             \
  X(cuTensorMapEncodeTiled)            \
  X(cuTensorMapReplaceAddress)

/// The driver's functions. `driver.cuInit(0)` calls the driver; none is null.
struct DriverFunctions {
#define ATTUNE_DECLARE(name) decltype(&::name) name = nullptr;
  ATTUNE_DRIVER_FUNCTIONS(ATTUNE_DECLARE)
#undef ATTUNE_DECLARE
};

class Driver : public DriverFunctions {
 public:
  /// Opens libcuda.so.1 and initialises it, once a process; later calls return the same object or throw the
  /// same error. Throws Error(no_device) that says what is missing (no driver, a driver without a needed
  /// function, no GPU). Safe from any thread.
  static const Driver& get();
  /// Whether get() would succeed. Never throws.
  static bool available() noexcept;

  int version() const { return version_; }  ///< of the CUDA interface, e.g. 13000
  int device_count() const { return device_count_; }

  /// Throws Error(driver), or Error(out_of_memory), with the call, the error's name and its words; `detail`
  /// is appended.
  void check(CUresult result, const char* call, const std::string& detail = "") const {
    if (result != CUDA_SUCCESS) [[unlikely]]
      raise(result, call, detail);
  }
  [[noreturn]] void raise(CUresult result, const char* call, const std::string& detail = "") const;

 private:
  Driver();

  int version_ = 0;
  int device_count_ = 0;
};

}  // namespace attune::runtime
