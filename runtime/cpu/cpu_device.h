// A Device on the CPU: code is PTX, and the emulator runs it. Everything is synchronous, memory is the process's own,
// and every launch leaves a report of what the emulator found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include <attune/emulator.h>

#include "runtime/device.h"

namespace attune::runtime {

struct CpuDeviceOptions {
  /// Few, so that persistent kernels launch few blocks and each computes many tiles.
  int sms = 4;
  int resident_blocks = 2;                           ///< of a grid that run side by side
  bool checks = true;                                ///< false: faster, and only what cannot be survived is found
  bool optimise = false;                             ///< kernels translate slower and run faster
  std::uint64_t instruction_limit = 20'000'000'000;  ///< of a launch
};

/// One launch that took place.
struct CpuLaunch {
  std::string kernel;
  emulator::Report report;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options = {});

  /// Decides the order in which the threads of the launches to come proceed.
  void set_seed(std::uint64_t seed);
  /// After a request to stop, launch() ends soon and throws Error(interrupted).
  void set_stop(std::stop_token stop);
  /// The launches since the last call.
  std::vector<CpuLaunch> take_launches();
  /// Seconds that translating code has taken so far.
  double translate_seconds();

  const DeviceProperties& properties() const override { return properties_; }
  void make_current() override {}

  void* allocate(std::size_t bytes) override;
  void free(void* memory) noexcept override;
  void* allocate_shared(std::size_t bytes) override;
  void free_shared(void* memory) noexcept override { free(memory); }
  void copy_to_device(void* to, const void* from_host, std::size_t bytes) override;
  void copy_to_host(void* to_host, const void* from, std::size_t bytes) override;
  void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void fill8(void* memory, std::uint8_t value, std::size_t count, Stream stream) override;
  void fill32(void* memory, std::uint32_t value, std::size_t count, Stream stream) override;
  /// Makes memory unwritten again: a kernel that reads it is reported.
  void forget(void* memory, std::size_t bytes);
  std::size_t free_memory() override;

  /// Code is PTX for sm_90a. Both throw Error(invalid_argument) for anything else and Error(unsupported) for PTX that
  /// the emulator does not know. Each module has .global and .const variables of its own.
  CubinInfo inspect(std::string_view code) override;
  std::unique_ptr<Module> load(std::string_view code) override;
  void launch(Function function, const LaunchConfig& config, void** arguments) override;

  Stream create_stream() override;
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}
  void synchronize() override {}
  std::unique_ptr<Event> create_event() override;
  bool capturing(Stream) override { return false; }

  void encode(const TensorMapGeometry& geometry, const void* base, TensorMap* map) override;
  void replace_base(TensorMap* map, const void* base) override;
  PointerKind pointer_kind(const void* pointer) override;

 private:
  using ProgramPointer = std::shared_ptr<const emulator::Program>;

  ProgramPointer program_of(std::string_view code);
  /// The mutex is held.
  ProgramPointer translate(std::string_view code);
  /// Throws Error(driver) before anything is touched; the mutex is held.
  void require_owned(const char* argument, const void* memory, std::size_t bytes) const;

  const CpuDeviceOptions options_;
  const DeviceProperties properties_;

  std::mutex mutex_;  // guards what follows: a machine serves one thread at a time
  std::unique_ptr<emulator::Machine> machine_;
  std::map<std::string, ProgramPointer> programs_;  // by digest of the code
  std::vector<CpuLaunch> launches_;
  std::uint64_t seed_ = 0;
  std::stop_token stop_;
  std::uintptr_t streams_ = 0;
  double translate_seconds_ = 0;
};

}  // namespace attune::runtime
