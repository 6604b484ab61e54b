#include "runtime/builder.h"

#include "base/error.h"
#include "runtime/keys.h"

namespace attune::runtime {
namespace {

using namespace std::chrono_literals;

constexpr auto kRememberFailures = 10min;
// A compile takes one to four seconds; machines where it takes a minute exist.
constexpr auto kLeaseLifetime = 120s;
constexpr auto kLongestWait = 180s;
constexpr const char* kOwner = "attune runtime";

std::string describe(const codegen::KernelSpec& spec) { return codegen::to_string(spec); }

// What the cache holds, if it makes sense: metadata of another format are a miss.
std::optional<Build> from_row(const cache::Kernel& row) {
  try {
    Build build;
    build.key = row.build_key;
    build.info = parse_build_info(row.metadata);
    build.cubin = row.cubin;
    build.from_cache = true;
    return build;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void require_accepted(const Build& build) {
  if (!build.info.rejected.empty()) {
    fail(ErrorCode::compile_failed, "build rejected: {} ({})", build.info.rejected, build.info.spec);
  }
}

Builder::Builder(cache::Store store, std::function<std::shared_ptr<const Compiler>()> compiler)
    : store_(std::move(store)), compiler_(std::move(compiler)) {}

std::string Builder::key(const codegen::KernelSpec& spec) {
  const codegen::EmittedKernel kernel = codegen::emit(spec);
  const std::shared_ptr<const Compiler> compiler = compiler_();
  return build_key(kernel.source, compiler->version(), compiler->effective_options(codegen::compile_options(spec)));
}

std::optional<Build> Builder::find(const std::string& key) {
  const std::optional<cache::Kernel> row = store_.find_kernel(key);
  return row ? from_row(*row) : std::nullopt;
}

Build Builder::build(const codegen::KernelSpec& spec) {
  const codegen::EmittedKernel kernel = codegen::emit(spec);
  const std::shared_ptr<const Compiler> compiler = compiler_();
  const std::vector<std::string> options = compiler->effective_options(codegen::compile_options(spec));
  const std::string key = build_key(kernel.source, compiler->version(), options);

  throw_remembered_failure(key);
  cache::Claim claim = store_.claim(key, kOwner, kLeaseLifetime, kLongestWait);
  if (claim.kernel) {
    if (std::optional<Build> build = from_row(*claim.kernel)) return *std::move(build);
  }
  if (claim.rejection) {
    Build build;
    build.key = key;
    build.info.spec = describe(spec);
    build.info.shape = kernel.shape;
    build.info.nvrtc = compiler->version();
    build.info.rejected = claim.rejection->reason;
    build.from_cache = true;
    return build;
  }
  return compile(key, spec, kernel, options, *compiler);  // the lease is held until it is stored
}

Build Builder::compile(const std::string& key, const codegen::KernelSpec& spec, const codegen::EmittedKernel& kernel,
                       const std::vector<std::string>& options, const Compiler& compiler) {
  CompileResult result;
  try {
    result = compiler.compile(kernel.source, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::compile_failed) throw;
    const std::string message = fmt::format("{}\nwhile compiling {}", error.what(), describe(spec));
    remember_failure(key, message);
    throw Error(ErrorCode::compile_failed, message);
  }
  Build build;
  build.key = key;
  build.info.spec = describe(spec);
  build.info.shape = kernel.shape;
  build.info.registers = result.registers;
  build.info.spill_stores = result.spill_stores;
  build.info.spill_loads = result.spill_loads;
  build.info.stack = result.stack;
  build.info.nvrtc = compiler.version();
  build.info.compile_ms = result.milliseconds;
  build.info.rejected = rejection(result).value_or("");
  build.cubin = std::move(result.cubin);
  build.log = std::move(result.log);
  if (build.info.rejected.empty()) {
    store_.put_kernel(key, build.cubin, to_json(build.info));
  } else {
    store_.reject({key, build.info.rejected, fmt::format("nvrtc={}", compiler.version()), 0});
  }
  return build;
}

void Builder::throw_remembered_failure(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = failures_.find(key);
  if (it == failures_.end()) return;
  if (std::chrono::steady_clock::now() - it->second.when < kRememberFailures) {
    throw Error(ErrorCode::compile_failed, it->second.message);
  }
  failures_.erase(it);
}

void Builder::remember_failure(const std::string& key, const std::string& message) {
  const std::lock_guard lock(mutex_);
  failures_[key] = {std::chrono::steady_clock::now(), message};
}

}  // namespace attune::runtime
