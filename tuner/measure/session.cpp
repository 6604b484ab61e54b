#include "tuner/measure/session.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace attune::tuner {
namespace {

// The device is not to be trusted any more; ends the session.
struct HardwareError {
  std::string message;
};

// A kernel has broken the context; ends the session.
struct LostContext {
  std::string message;
};

Json error_json(const Error& error) { return {{"error", to_json(error)}}; }

}  // namespace

bool is_hardware_error(std::string_view message) {
  constexpr std::array<std::string_view, 6> kNames{"CUDA_ERROR_ECC_UNCORRECTABLE",   "CUDA_ERROR_NVLINK_UNCORRECTABLE",
                                                   "CUDA_ERROR_CONTAINED",           "CUDA_ERROR_DEVICE_UNAVAILABLE",
                                                   "CUDA_ERROR_DEVICE_NOT_LICENSED", "CUDA_ERROR_SYSTEM_NOT_READY"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return message.find(name) != std::string_view::npos; });
}

int Session::run() {
  std::string line;
  while (ports_.read_line(&line)) {
    try {
      const Json command = parse_line(line);
      if (command.value("cmd", "") == "quit") return kWorkerDone;
      ports_.write(to_line({{"done", execute(command)}}));
    } catch (const HardwareError& error) {
      ports_.write(to_line({{"fatal", {{"kind", "hardware"}, {"message", error.message}}}}));
      return kWorkerHardware;
    } catch (const LostContext& error) {
      ports_.write(to_line({{"fatal", {{"kind", "context"}, {"message", error.message}}}}));
      return kWorkerLostContext;
    } catch (const Error& error) {
      ports_.write(to_line(error_json(error)));
    } catch (const Json::exception& error) {
      ports_.write(to_line(error_json({ErrorCode::invalid_argument, std::string("command: ") + error.what()})));
    } catch (const std::bad_alloc&) {
      ports_.write(to_line(error_json({ErrorCode::out_of_memory, "host memory"})));
    }
  }
  return kWorkerDone;
}

Json Session::execute(const Json& command) {
  const std::string cmd = command.at("cmd").get<std::string>();
  try {
    if (cmd == "hello") return hello();
    if (cmd == "code") {
      code_[command.at("key").get<std::string>()] = from_base64(command.at("data").get_ref<const std::string&>());
      return Json::object();
    }
    if (cmd == "tools") {
      if (!device_) fail(ErrorCode::invalid_argument, "command: 'tools' before 'hello'");
      bench_ = std::make_unique<Workbench>(device_, std::move(nvml_), code(command, "helpers"));
      gate_ = std::make_unique<Gate>(*bench_);
      return Json::object();
    }
    if (cmd == "reference") {
      bench().add_reference(command.at("spec").get<std::string>(), code(command));
      return Json::object();
    }
    if (cmd == "problem") {
      shape_.reset();  // its memory first
      shape_ = std::make_unique<ShapeBench>(bench(), parse_problem(command.at("problem").get<std::string>()));
      return {{"sets", shape_->sets()}};
    }
    if (cmd == "load") {
      shape().load(command.at("id").get<int>(), codegen::parse_kernel_spec(command.at("spec").get<std::string>()),
                   codegen::parse_config(command.at("config").get<std::string>()), code(command));
      return Json::object();
    }
    if (cmd == "gate") return gate(command);
    if (cmd == "check") return check(command);
    if (cmd == "race") return race(command);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::driver) throw;
    if (is_hardware_error(error.what())) throw HardwareError{error.what()};
    // A refused launch leaves the context as it was; after an illegal address every call fails.
    if (!device_) throw;
    try {
      device_->synchronize();
    } catch (const Error&) {
      check_hardware();
      throw LostContext{error.what()};
    }
    throw;
  }
  fail(ErrorCode::invalid_argument,
       "command: '{}' is unknown (allowed: hello, code, tools, reference, gate, problem, load, check, race, "
       "quit)",
       cmd);
}

Json Session::hello() {
  if (!device_) {
    device_ = ports_.open_device();
    device_->make_current();
    std::string why;
    nvml_ = ports_.open_nvml(device_->properties(), &why);
    Json reply{{"version", ports_.version},
               {"emitter", codegen::emitter_digest()},
               {"device", to_json(device_->properties())},
               {"nvml", why}};
    const runtime::NvmlLimits limits = nvml_ ? nvml_->limits() : runtime::NvmlLimits{};
    ecc_ = limits.ecc_uncorrected;
    reply["limits"] = to_json(limits);
    return reply;
  }
  fail(ErrorCode::invalid_argument, "command: 'hello' twice");
}

Workbench& Session::bench() {
  if (!bench_) fail(ErrorCode::invalid_argument, "command: 'tools' must come first");
  return *bench_;
}

ShapeBench& Session::shape() {
  if (!shape_) fail(ErrorCode::invalid_argument, "command: 'problem' must come first");
  return *shape_;
}

const std::string& Session::code(const Json& command, const char* field) {
  const std::string key = command.at(field).get<std::string>();
  const auto it = code_.find(key);
  if (it == code_.end()) fail(ErrorCode::not_found, "{}: no code was sent for {}", field, key);
  return it->second;
}

void Session::begin(int id) { ports_.write(to_line({{"begin", id}})); }

void Session::check_hardware() {
  const runtime::Nvml* nvml = bench_ ? bench_->nvml() : nvml_.get();
  if (nvml == nullptr || !ecc_) return;
  const std::optional<std::uint64_t> now = nvml->limits().ecc_uncorrected;
  if (now && *now > *ecc_) {
    throw HardwareError{fmt::format("{} uncorrected ECC errors since the worker started", *now - *ecc_)};
  }
}

Json Session::gate(const Json& command) {
  const auto spec = codegen::parse_kernel_spec(command.at("spec").get<std::string>());
  const std::string& cubin = code(command);
  bench();
  begin(command.at("id").get<int>());
  return to_json(gate_->judge(spec, cubin));
}

Json Session::check(const Json& command) {
  const int id = command.at("id").get<int>();
  shape();
  begin(id);
  return to_json(shape().check(id));
}

Json Session::race(const Json& command) {
  const auto ids = command.at("ids").get<std::vector<int>>();
  const RaceOptions options = race_options_from_json(command);
  const RaceReadings readings = shape().race(
      ids, options, [this](int id) { begin(id); },
      [this](int id, int turn, const std::vector<double>& seconds) {
        ports_.write(to_line({{"samples", id}, {"turn", turn}, {"seconds", seconds}}));
      });
  check_hardware();
  return to_json(readings);
}

}  // namespace attune::tuner
