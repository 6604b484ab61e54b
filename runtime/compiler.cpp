#include "runtime/compiler.h"

#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "runtime/toolkit.h"

namespace attune::runtime {
namespace {

constexpr int kOldestMajor = 12, kOldestMinor = 8;
constexpr std::string_view kSourceName = "attune.cu";

#define ATTUNE_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                 \
  X(nvrtcGetErrorString)          \
  X(nvrtcCreateProgram)           \
  X(nvrtcDestroyProgram)          \
  X(nvrtcCompileProgram)          \
  X(nvrtcGetProgramLogSize)       \
  X(nvrtcGetProgramLog)           \
  X(nvrtcGetCUBINSize)            \
  X(nvrtcGetCUBIN)                \
  X(nvrtcGetPTXSize)              \
  X(nvrtcGetPTX)

struct NvrtcFunctions {
#define ATTUNE_DECLARE(name) decltype(&::name) name = nullptr;
  ATTUNE_NVRTC_FUNCTIONS(ATTUNE_DECLARE)
#undef ATTUNE_DECLARE
};

void check(const NvrtcFunctions& nvrtc, nvrtcResult result, const char* call) {
  if (result == NVRTC_SUCCESS) return;
  const ErrorCode code = result == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::compile_failed;
  fail(code, "{} failed: {}", call, nvrtc.nvrtcGetErrorString(result));
}

class Program {
 public:
  Program(const NvrtcFunctions& nvrtc, const std::string& source) : nvrtc_(nvrtc) {
    check(nvrtc_,
          nvrtc_.nvrtcCreateProgram(&program_, source.c_str(), std::string(kSourceName).c_str(), 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }
  std::string log() {
    std::string text = read(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog, "nvrtcGetProgramLog");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }
  std::string cubin() { return read(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN, "nvrtcGetCUBIN"); }
  std::string ptx() {
    std::string text = read(nvrtc_.nvrtcGetPTXSize, nvrtc_.nvrtcGetPTX, "nvrtcGetPTX");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

 private:
  template <typename Size, typename Get>
  std::string read(Size size_of, Get get, const char* call) {
    std::size_t size = 0;
    check(nvrtc_, size_of(program_, &size), call);
    std::string bytes(size, '\0');
    if (size > 0) check(nvrtc_, get(program_, bytes.data()), call);
    return bytes;
  }

  const NvrtcFunctions& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// Where there is a driver, NVRTC keeps what it has compiled on disk. What comes from there comes without ptxas's log,
// and so without the spills and serialised products by which a build is rejected.
constexpr const char* kNoCache = "--no-cache";

// The version that the PTX header states, with the build ("13.0.88"): nvrtcVersion knows major and minor alone, and a
// patch release may well compile differently.
std::string full_version(const std::string& ptx, int major, int minor) {
  const std::string version = fmt::format("{}.{}", major, minor);
  const std::size_t at = ptx.find(", V" + version + ".");
  if (at == std::string::npos) return version;
  const std::size_t first = at + 3;
  return ptx.substr(first, ptx.find_first_not_of("0123456789.", first) - first);
}

[[noreturn]] void throw_compile_failed(const std::string& reason, const std::string& log) {
  std::string first = reason;
  int errors = 0;
  for (const Diagnostic& d : parse_diagnostics(log)) {
    if (!d.error) continue;
    if (++errors > 1) continue;
    first = d.line > 0 ? fmt::format("{}:{}: {}", d.file, d.line, d.message) : fmt::format("{}: {}", d.file, d.message);
  }
  const std::string more = errors > 1 ? fmt::format(" (and {} more errors)", errors - 1) : "";
  fail(ErrorCode::compile_failed, "{}{}\n{}", first, more, log);
}

class NvrtcCompiler : public Compiler {
 public:
  explicit NvrtcCompiler(const std::string& library) : library_(library) {
    // Never closed: the library keeps threads and exit handlers of its own.
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) fail(ErrorCode::unsupported, "NVRTC: {} cannot be opened ({})", library, dlerror());
#define ATTUNE_RESOLVE(name) resolve(handle, #name, nvrtc_.name);
    ATTUNE_NVRTC_FUNCTIONS(ATTUNE_RESOLVE)
#undef ATTUNE_RESOLVE

    int major = 0, minor = 0;
    check(nvrtc_, nvrtc_.nvrtcVersion(&major, &minor), "nvrtcVersion");
    if (major < kOldestMajor || (major == kOldestMajor && minor < kOldestMinor)) {
      fail(ErrorCode::unsupported, "NVRTC: {} is version {}.{} (allowed: {}.{} and newer)", library, major, minor,
           kOldestMajor, kOldestMinor);
    }
    // The option is younger than the oldest NVRTC that is allowed.
    const std::optional<std::string> probe = probed({kNoCache});
    knows_no_cache_ = probe.has_value();
    version_ = full_version(probe ? *probe : probed({}).value_or(""), major, minor);
  }

  const std::string& version() const override { return version_; }
  const std::string& nvrtc_path() const override { return library_; }

  std::vector<std::string> effective_options(std::vector<std::string> options) const override {
    options = checked_options(std::move(options));
    if (knows_no_cache_ && std::ranges::find(options, kNoCache) == options.end()) options.emplace_back(kNoCache);
    return options;
  }

  CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                        bool want_ptx) const override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    Program program(nvrtc_, source);
    const nvrtcResult outcome = program.compile(effective_options(options));
    CompileResult result;
    result.log = program.log();
    if (outcome != NVRTC_SUCCESS) {
      throw_compile_failed(fmt::format("nvrtcCompileProgram failed: {}", nvrtc_.nvrtcGetErrorString(outcome)),
                           result.log);
    }
    result.cubin = program.cubin();
    if (result.cubin.empty() && !want_ptx) {
      throw_compile_failed("NVRTC made no cubin: --gpu-architecture must name a real architecture such as sm_90a",
                           result.log);
    }
    if (want_ptx) result.ptx = program.ptx();
    parse_log(result.log, &result);
    result.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return result;
  }

 private:
  // PTX of a kernel that does nothing, unless NVRTC refuses these options.
  std::optional<std::string> probed(std::vector<std::string> options) const {
    Program program(nvrtc_, "extern \"C\" __global__ void version() {}");
    options.emplace_back("--gpu-architecture=compute_90");
    if (program.compile(options) != NVRTC_SUCCESS) return std::nullopt;
    return program.ptx();
  }

  template <typename Pointer>
  void resolve(void* handle, const char* symbol, Pointer& function) {
    function = reinterpret_cast<Pointer>(dlsym(handle, symbol));
    if (function == nullptr) fail(ErrorCode::unsupported, "NVRTC: {} has no function {}", library_, symbol);
  }

  std::string library_;
  std::string version_;
  bool knows_no_cache_ = false;
  NvrtcFunctions nvrtc_;
};

}  // namespace

std::shared_ptr<const Compiler> Compiler::open(const std::string& library) {
  return std::make_shared<NvrtcCompiler>(library);
}

std::shared_ptr<const Compiler> Compiler::get() {
  static std::mutex mutex;
  static std::shared_ptr<const Compiler>* const opened = new std::shared_ptr<const Compiler>;
  const std::lock_guard lock(mutex);
  if (*opened) return *opened;
  std::string tried;
  for (const Toolkit& toolkit : find_toolkits()) {
    try {
      *opened = open(toolkit.nvrtc_library.string());
      return *opened;
    } catch (const Error& error) {
      tried += fmt::format("\n  {}", error.what());
    }
  }
  fail(ErrorCode::unsupported, "NVRTC: no usable compiler was found.{}\n{}", tried, toolkit_help());
}

}  // namespace attune::runtime
