// The worker's side of the protocol: reads commands, runs them on one device, answers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tuner/measure/gate.h"
#include "tuner/measure/shape_bench.h"
#include "tuner/measure/workbench.h"
#include "tuner/protocol.h"

namespace attune::tuner {

/// What a session needs of the process that it runs in.
struct SessionPorts {
  std::function<bool(std::string*)> read_line;  ///< false at the end
  std::function<void(const std::string&)> write;
  std::function<std::shared_ptr<runtime::Device>()> open_device;  ///< called for the first command that needs it
  std::function<std::unique_ptr<runtime::Nvml>(const runtime::DeviceProperties&, std::string*)> open_nvml;
  std::string version;  ///< of this program
};

/// Exit statuses of the worker.
inline constexpr int kWorkerDone = 0, kWorkerLostContext = 3, kWorkerHardware = 4;

class Session {
 public:
  explicit Session(SessionPorts ports) : ports_(std::move(ports)) {}

  /// Until "quit" or the end of the input. Returns the exit status.
  int run();

 private:
  Json execute(const Json& command);
  Json hello();
  Json gate(const Json& command);
  Json check(const Json& command);
  Json race(const Json& command);

  void begin(int id);
  Workbench& bench();
  ShapeBench& shape();
  const std::string& code(const Json& command, const char* field = "key");
  void check_hardware();

  SessionPorts ports_;
  std::shared_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Nvml> nvml_;  // until tools() hands it to the workbench
  std::map<std::string, std::string> code_;
  std::unique_ptr<Workbench> bench_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<ShapeBench> shape_;
  std::optional<std::uint64_t> ecc_;  // uncorrected errors at the start
};

/// Whether a driver's error is one of the device, not of a kernel: ECC, NVLink, a device that is gone.
bool is_hardware_error(std::string_view message);

}  // namespace attune::tuner
