#include "runtime/nvml.h"

#include <dlfcn.h>

#include <array>
#include <utility>

#include <fmt/format.h>

namespace attune::runtime {
namespace {

// NVML's header comes with no toolkit package that we need otherwise, so the few declarations stand here. The ABI of
// these functions has not changed since they appeared.
using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kTemperatureGpu = 0;
constexpr int kEccUncorrected = 1, kEccVolatile = 0;

struct NvmlFunctions {
  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*power_default)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*throttle)(NvmlDevice, unsigned long long*) = nullptr;
  int (*mig)(NvmlDevice, unsigned*, unsigned*) = nullptr;
  int (*ecc)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
};

// An optional answer of a function that an older NVML may lack and a device may refuse.
template <typename Value, typename Function, typename... Args>
std::optional<Value> ask(Function function, Args... args) {
  Value value{};
  if (function == nullptr || function(args..., &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<double> watts(std::optional<unsigned> milliwatts) {
  if (!milliwatts) return std::nullopt;
  return *milliwatts / 1000.0;
}

// Opened once and never closed, like the driver. Null with the reason if it cannot be.
const NvmlFunctions* functions(std::string* why) {
  static const std::pair<const NvmlFunctions*, std::string> opened =
      []() -> std::pair<const NvmlFunctions*, std::string> {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, fmt::format("libnvidia-ml.so.1 cannot be opened ({})", dlerror())};
    auto* nvml = new NvmlFunctions;
    const auto find = [library](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    if (!find(nvml->init, "nvmlInit_v2") || !find(nvml->error_string, "nvmlErrorString") ||
        !find(nvml->device_count, "nvmlDeviceGetCount_v2") ||
        !find(nvml->device_by_index, "nvmlDeviceGetHandleByIndex_v2") || !find(nvml->uuid, "nvmlDeviceGetUUID")) {
      return {nullptr, "libnvidia-ml.so.1 lacks basic functions"};
    }
    find(nvml->clock, "nvmlDeviceGetClockInfo");
    find(nvml->max_clock, "nvmlDeviceGetMaxClockInfo");
    find(nvml->power, "nvmlDeviceGetPowerUsage");
    find(nvml->power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(nvml->power_default, "nvmlDeviceGetPowerManagementDefaultLimit");
    find(nvml->temperature, "nvmlDeviceGetTemperature");
    if (!find(nvml->throttle, "nvmlDeviceGetCurrentClocksEventReasons")) {
      find(nvml->throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");
    }
    find(nvml->mig, "nvmlDeviceGetMigMode");
    find(nvml->ecc, "nvmlDeviceGetTotalEccErrors");
    find(nvml->driver_version, "nvmlSystemGetDriverVersion");
    if (const int result = nvml->init(); result != kSuccess) {
      return {nullptr, fmt::format("nvmlInit failed: {}", nvml->error_string(result))};
    }
    return {nvml, ""};
  }();
  if (why != nullptr) *why = opened.second;
  return opened.first;
}

// "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6" -> "8932f937d72c4106c12f20bd9faed9f6"
std::string bare_uuid(std::string_view text) {
  std::string digits;
  for (const char c : text.substr(text.starts_with("GPU-") ? 4 : 0)) {
    if (c != '-') digits.push_back(c);
  }
  return digits;
}

class OpenedNvml : public Nvml {
 public:
  OpenedNvml(const NvmlFunctions& nvml, NvmlDevice device) : nvml_(nvml), device_(device) {}

  NvmlReading read() const override {
    NvmlReading r;
    r.sm_mhz = ask<unsigned>(nvml_.clock, device_, kClockSm);
    r.memory_mhz = ask<unsigned>(nvml_.clock, device_, kClockMemory);
    r.watts = watts(ask<unsigned>(nvml_.power, device_));
    r.celsius = ask<unsigned>(nvml_.temperature, device_, kTemperatureGpu);
    r.throttle = ask<unsigned long long>(nvml_.throttle, device_);
    return r;
  }

  NvmlLimits limits() const override {
    NvmlLimits l;
    l.power_cap_watts = watts(ask<unsigned>(nvml_.power_limit, device_));
    l.power_cap_default_watts = watts(ask<unsigned>(nvml_.power_default, device_));
    l.max_sm_mhz = ask<unsigned>(nvml_.max_clock, device_, kClockSm);
    unsigned current = 0, pending = 0;
    if (nvml_.mig != nullptr && nvml_.mig(device_, &current, &pending) == kSuccess) l.mig = current != 0;
    l.ecc_uncorrected = ask<unsigned long long>(nvml_.ecc, device_, kEccUncorrected, kEccVolatile);
    std::array<char, 96> version{};
    if (nvml_.driver_version != nullptr &&
        nvml_.driver_version(version.data(), static_cast<unsigned>(version.size())) == kSuccess) {
      l.driver = version.data();
    }
    return l;
  }

 private:
  const NvmlFunctions& nvml_;
  const NvmlDevice device_;
};

}  // namespace

std::vector<std::string> throttle_reasons(std::uint64_t mask) {
  // Bits 0x1 (idle), 0x2 (clocks set by an application) and 0x10 (synchronised boost) are left out where they only say
  // what the user asked for.
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 7> kReasons{{{0x2, "application clocks"},
                                                                                  {0x4, "power cap"},
                                                                                  {0x8, "hardware slowdown"},
                                                                                  {0x20, "thermal (software)"},
                                                                                  {0x40, "thermal (hardware)"},
                                                                                  {0x80, "power brake"},
                                                                                  {0x100, "display clocks"}}};
  std::vector<std::string> found;
  for (const auto& [bit, words] : kReasons) {
    if ((mask & bit) != 0) found.emplace_back(words);
  }
  return found;
}

std::unique_ptr<Nvml> Nvml::open(const DeviceProperties& device, std::string* why) {
  const NvmlFunctions* nvml = functions(why);
  if (nvml == nullptr) return nullptr;
  unsigned count = 0;
  nvml->device_count(&count);
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice handle = nullptr;
    std::array<char, 96> uuid{};
    if (nvml->device_by_index(i, &handle) != kSuccess ||
        nvml->uuid(handle, uuid.data(), static_cast<unsigned>(uuid.size())) != kSuccess) {
      continue;
    }
    // A device without a UUID can only be meant where there is no choice.
    if (bare_uuid(uuid.data()) == device.uuid || (device.uuid.empty() && count == 1)) {
      return std::make_unique<OpenedNvml>(*nvml, handle);
    }
  }
  if (why != nullptr)
    *why = fmt::format("NVML knows no device with UUID {} (a MIG slice has none of its own)", device.uuid);
  return nullptr;
}

}  // namespace attune::runtime
