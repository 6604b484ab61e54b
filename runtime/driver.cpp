#include "runtime/driver.h"

#include <dlfcn.h>

#include <string_view>
#include <variant>

#include "base/error.h"

namespace attune::runtime {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Two steps, so that <cuda.h>'s macros are expanded before the name becomes text.
#define ATTUNE_TEXT_OF(name) #name
#define ATTUNE_SYMBOL(name) ATTUNE_TEXT_OF(name)

void* find_symbol(void* library, std::string_view symbol) {
  if (void* found = dlsym(library, std::string(symbol).c_str())) return found;
  // The second version came with CUDA 12.8 and differs in no way that matters; older drivers have the first.
  if (symbol == "cuEventElapsedTime_v2") return dlsym(library, "cuEventElapsedTime");
  return nullptr;
}

template <typename Pointer>
void resolve(void* library, const char* symbol, Pointer& function) {
  function = reinterpret_cast<Pointer>(find_symbol(library, symbol));
  if (function == nullptr) {
    fail(ErrorCode::no_device, "CUDA driver: {} has no function {}; a driver for CUDA 12.0 or newer is needed",
         kLibrary, symbol);
  }
}

}  // namespace

Driver::Driver() {
  // Never closed: CUDA keeps threads and exit handlers of its own.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ErrorCode::no_device, "CUDA driver: {} cannot be opened, so no NVIDIA driver is installed here ({})", kLibrary,
         dlerror());
  }
#define ATTUNE_RESOLVE(name) resolve(library, ATTUNE_SYMBOL(name), this->name);
  ATTUNE_DRIVER_FUNCTIONS(ATTUNE_RESOLVE)
#undef ATTUNE_RESOLVE

  const auto usable = [this](CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* words = nullptr;
    cuGetErrorString(result, &words);
    fail(ErrorCode::no_device, "CUDA driver: {} failed: {} (error {})", call, words != nullptr ? words : "unknown",
         static_cast<int>(result));
  };
  usable(cuInit(0), "cuInit");
  usable(cuDriverGetVersion(&version_), "cuDriverGetVersion");
  usable(cuDeviceGetCount(&device_count_), "cuDeviceGetCount");
  if (device_count_ == 0) fail(ErrorCode::no_device, "CUDA driver: there is no GPU, or CUDA_VISIBLE_DEVICES hides it");
}

const Driver& Driver::get() {
  static const std::variant<Driver, Error>* const outcome = [] {
    try {
      return new std::variant<Driver, Error>(std::in_place_index<0>, Driver());
    } catch (const Error& error) {
      return new std::variant<Driver, Error>(error);
    }
  }();
  if (const Error* error = std::get_if<Error>(outcome)) throw *error;
  return std::get<Driver>(*outcome);
}

bool Driver::available() noexcept {
  try {
    get();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Driver::raise(CUresult result, const char* call, const std::string& detail) const {
  const char* name = nullptr;
  const char* words = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &words);
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::driver;
  fail(code, "{} failed: {} ({}){}{}", call, words != nullptr ? words : "unknown error", name != nullptr ? name : "?",
       detail.empty() ? "" : ": ", detail);
}

}  // namespace attune::runtime
