// attune doctor: what this machine has, what it lacks, and what that prevents.
#include <filesystem>

#include <attune/attune.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/emulator.h"
#include "cli/problem_flags.h"
#include "cli/wording.h"
#include "codegen/kernel_spec.h"
#include "runtime/compiler.h"
#include "runtime/driver_device.h"
#include "runtime/nvml.h"
#include "runtime/toolkit.h"
#include "tuner/worker_path.h"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  CacheFlag cache;
  std::string task;
};

// What works, and for what does not, why.
struct Findings {
  std::string no_gpu, no_compiler, no_emulator, no_worker, no_cache;  // empty: it is there
};

std::string version_text(int driver) { return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10); }

// The rest of a message explains at length what one line has said.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Json describe_gpu(const runtime::DeviceProperties& d, Output& output, bool* usable) {
  Json json{{"ordinal", d.ordinal},
            {"name", d.name},
            {"uuid", d.uuid},
            {"compute_capability", d.compute_capability},
            {"sms", d.sms},
            {"l2_bytes", d.l2_bytes},
            {"memory_bytes", d.memory_bytes},
            {"clock_khz", d.clock_khz},
            {"identity", runtime::identity_text(d)}};
  output.line("GPU {}        {}: sm_{}, {} SMs, {} L2, {}, {} MHz", d.ordinal, d.name, d.compute_capability, d.sms,
              bytes_text(d.l2_bytes), bytes_text(d.memory_bytes), d.clock_khz / 1000);
  try {
    runtime::arch_of(d);
    *usable = true;
    json["supported"] = true;
  } catch (const Error& error) {
    json["supported"] = false;
    output.line("             not supported: {}", error.what());
  }
  std::string why;
  if (const auto nvml = runtime::Nvml::open(d, &why)) {
    const runtime::NvmlLimits limits = nvml->limits();
    json["driver"] = limits.driver;
    if (limits.power_cap_watts) json["power_cap_watts"] = *limits.power_cap_watts;
    output.line("             driver {}{}{}", limits.driver,
                limits.power_cap_watts ? fmt::format(", power cap {:.0f} W", *limits.power_cap_watts) : "",
                limits.mig.value_or(false) ? ", MIG on" : "");
  } else {
    output.line("             no NVML, so tuning cannot watch clocks and power: {}", why);
  }
  return json;
}

void look_for_gpus(Output& output, Findings& findings) {
  Json gpus = Json::array();
  try {
    bool usable = false;
    for (const runtime::DeviceProperties& d : runtime::list_devices()) {
      if (gpus.empty()) output.line("driver       CUDA {}", version_text(d.driver_version));
      gpus.push_back(describe_gpu(d, output, &usable));
    }
    if (!usable) findings.no_gpu = "no GPU of a supported kind";
  } catch (const Error& error) {
    findings.no_gpu = "no GPU";
    output.line("GPU          none: {}", first_line(error.what()));
  }
  output.document()["gpus"] = std::move(gpus);
}

void look_for_compilers(Output& output, Findings& findings) {
  Json compilers = Json::array();
  bool found = false;
  for (const Toolkit& toolkit : find_toolkits()) {
    const std::string path = toolkit.nvrtc_library.string();
    Json json{{"library", path}, {"origin", toolkit.origin}};
    try {
      const auto compiler = runtime::Compiler::open(path);
      json["version"] = compiler->version();
      json["used"] = !found;
      output.line("NVRTC        {} at {} ({}){}", compiler->version(), path, toolkit.origin, found ? "" : ", used");
      found = true;
    } catch (const Error& error) {
      json["error"] = error.what();
      // That the loader knows no library of some name is no news where another was found.
      if (toolkit.origin != "dynamic loader") output.line("NVRTC        {}: {}", path, first_line(error.what()));
    }
    compilers.push_back(std::move(json));
  }
  if (!found) {
    findings.no_compiler = "no NVRTC";
    output.line("NVRTC        none. {}", toolkit_help());
  }
  output.document()["compilers"] = std::move(compilers);
}

void look_for_emulator(Output& output, Findings& findings) {
  const bool here = has_emulator();
  output.line("emulator     {}",
              here ? "runs sm_90a kernels on the CPU and finds their faults: attune verify --device cpu"
                   : "none: this build has no CPU emulator");
  output.document()["emulator"] = here;
  if (!here) findings.no_emulator = "no CPU emulator";
}

void look_for_worker(Output& output, Findings& findings) {
  try {
    const std::string worker = tuner::find_worker();
    output.line("worker       {}", worker);
    output.document()["worker"] = worker;
  } catch (const Error& error) {
    findings.no_worker = "no attune-worker";
    output.line("worker       none: {}", first_line(error.what()));
    output.document()["worker"] = nullptr;
  }
}

void look_at_cache(const Flags& flags, Output& output, Findings& findings) {
  const std::string directory = flags.cache.directory();
  Json json{{"directory", directory}};
  std::error_code error;
  // A cache that is not there yet is made by whoever first needs it, not by a look at it.
  if (!fs::exists(directory, error)) {
    output.line("cache        {} (does not exist yet)", directory.empty() ? "no folder" : directory);
    if (directory.empty()) findings.no_cache = "no folder for the cache";
    json["state"] = "missing";
  } else {
    cache::Store store = flags.cache.open(output);
    if (store.stats().on_disk) {
      const auto kernels = store.list_kernels();
      std::int64_t bytes = 0;
      for (const cache::KernelRow& row : kernels) bytes += row.bytes;
      const std::size_t plans = store.list_plans().size();
      output.line("cache        {}: {} kernels ({}), {} plans", store.file(), kernels.size(), bytes_text(bytes), plans);
      json["state"] = "usable";
      json["kernels"] = kernels.size();
      json["kernel_bytes"] = bytes;
      json["plans"] = plans;
    } else {
      findings.no_cache = fmt::format("the cache {} cannot be used", directory);
      output.line("cache        {}: cannot be used", directory);
      json["state"] = "unusable";
    }
    const auto space = fs::space(directory, error);
    if (!error) {
      json["free_bytes"] = space.available;
      output.line("disk         {} free", bytes_text(static_cast<std::int64_t>(space.available)));
    }
  }
  output.document()["cache"] = std::move(json);
}

struct Task {
  const char* name;
  std::string missing;  // empty: it can be done
};

// Those of the lacks that are there.
std::string joined(std::initializer_list<const std::string*> lacks) {
  std::string text;
  for (const std::string* lack : lacks)
    if (!lack->empty()) text += (text.empty() ? "" : "; ") + *lack;
  return text;
}

std::vector<Task> tasks(const Findings& f) {
  return {{"compile", f.no_compiler},
          {"emulate", joined({&f.no_emulator, &f.no_compiler})},
          {"launch", f.no_gpu},
          {"tune", joined({&f.no_gpu, &f.no_compiler, &f.no_worker, &f.no_cache})}};
}

ExitCode run(const Flags& flags, Output& output) {
  const std::string& task = flags.task;
  if (!task.empty() && task != "compile" && task != "emulate" && task != "launch" && task != "tune")
    fail(ErrorCode::invalid_argument, "for: '{}' is unknown (allowed: compile, emulate, launch, tune)", task);
  Findings findings;
  output.line("attune       {}, emitter {}", version(), codegen::emitter_digest().substr(0, 12));
  output.document()["version"] = version();
  output.document()["emitter"] = codegen::emitter_digest();
  look_for_gpus(output, findings);
  look_for_compilers(output, findings);
  look_for_emulator(output, findings);
  look_for_worker(output, findings);
  look_at_cache(flags, output, findings);
  output.line();
  output.line("emit         yes");
  Json can{{"emit", true}};
  bool asked_for = true;
  for (const Task& t : tasks(findings)) {
    const char* padding = "             ";
    output.line("{}{}{}", t.name, padding + std::string(t.name).size(), t.missing.empty() ? "yes" : "no: " + t.missing);
    can[t.name] = t.missing.empty();
    if (t.name == task) asked_for = t.missing.empty();
  }
  if (!findings.no_compiler.empty() && findings.no_gpu.empty())
    output.line("\nWithout NVRTC only kernels from packs and the cache can be launched.");
  output.document()["can"] = std::move(can);
  const bool useless = !findings.no_gpu.empty() && !findings.no_compiler.empty();
  return useless || !asked_for ? ExitCode::unavailable : ExitCode::ok;
}

}  // namespace

void add_doctor(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "doctor", "Say what this machine has, what it lacks and what that prevents",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->cache.add(command);
  command
      .add_option("--for", flags->task,
                  "exit with 3 unless this can be done: compile, emulate, launch or tune (default: anything at all)")
      ->type_name("TASK");
}

}  // namespace attune::cli
