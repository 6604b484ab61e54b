// attune compile: a cubin, and what the compiler and the checks say of it.
#include "base/error.h"
#include "base/sha256.h"
#include "cli/best_guess.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/problem_flags.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "runtime/compiler.h"
#include "runtime/keys.h"

namespace attune::cli {
namespace {

struct Flags {
  KernelFlags kernel;
  std::string cubin, ptx;
  bool log = false, force = false;
};

void print(const KernelFlags::Choice& choice, const runtime::CompileResult& result, const std::string& key,
           const std::string& nvrtc, const std::string& rejected, Output& output) {
  const codegen::LaunchShape shape = codegen::launch_shape(choice.spec);
  output.line("spec       {}", codegen::to_string(choice.spec));
  output.line("build key  {}", key);
  const int cluster = choice.spec.config.cluster;
  output.line("registers  {} a thread, {} threads a block{}", result.registers, shape.threads,
              cluster > 1 ? fmt::format(", {} blocks a cluster", cluster) : "");
  output.line("spills     {} bytes stored, {} bytes loaded; stack {} bytes", result.spill_stores, result.spill_loads,
              result.stack);
  output.line("shared     {} bytes", shape.shared_bytes);
  output.line("cubin      {}", bytes_text(static_cast<std::int64_t>(result.cubin.size())));
  output.line("compiler   NVRTC {}, {:.0f} ms", nvrtc, result.milliseconds);
  output.line("verdict    {}", rejected.empty() ? "accepted" : "rejected: " + rejected);
}

struct Compiled {
  KernelFlags::Choice choice;
  codegen::EmittedKernel kernel;
  runtime::CompileResult result;
  std::string key, rejected;
};

Compiled compile(const KernelFlags::Choice& choice, const runtime::Compiler& compiler, const Flags& flags) {
  Compiled c{choice, codegen::emit(choice.spec), {}, {}, {}};
  const auto options = runtime::checked_options(codegen::compile_options(choice.spec));
  c.result = compiler.compile(c.kernel.source, options, !flags.ptx.empty());
  c.key = runtime::build_key(c.kernel.source, compiler.version(), options);
  c.rejected = runtime::rejection(c.result).value_or("");
  return c;
}

// Where no config was asked for, a guess that is rejected is no answer yet: the runtime goes on, too.
Compiled compile_first_clean(const KernelFlags::Choice& first, const runtime::Compiler& compiler, const Flags& flags,
                             Output& output) {
  Compiled compiled = compile(first, compiler, flags);
  const bool free = first.problem && flags.kernel.config.empty() && !flags.force;
  if (!free || compiled.rejected.empty()) return compiled;
  const Arch arch = flags.kernel.problem.arch();
  for (const codegen::Config& config : codegen::default_configs(arch, *first.problem)) {
    if (config == first.config) continue;
    output.note("rejected, trying the next guess: {}: {}", config_text(compiled.choice.config), compiled.rejected);
    compiled = compile({first.problem, config, codegen::specialise(arch, *first.problem, config)}, compiler, flags);
    if (compiled.rejected.empty()) break;
  }
  return compiled;
}

ExitCode run(const Flags& flags, Output& output) {
  const KernelFlags::Choice first = flags.kernel.choice();  // a mistake comes to light before NVRTC is looked for
  const std::shared_ptr<const runtime::Compiler> compiler = runtime::Compiler::get();
  const auto [choice, kernel, result, key, rejected] = compile_first_clean(first, *compiler, flags, output);
  print(choice, result, key, compiler->version(), rejected, output);
  if (flags.log && !output.json()) output.note(result.log);

  Json& document = output.document();
  if (choice.problem) document["problem"] = to_string(*choice.problem);
  document["config"] = codegen::to_string(choice.config);
  document["spec"] = codegen::to_string(choice.spec);
  document["build_key"] = key;
  document["entry"] = kernel.shape.entry;
  document["threads"] = kernel.shape.threads;
  document["cluster"] = choice.spec.config.cluster;
  document["shared_bytes"] = kernel.shape.shared_bytes;
  document["registers"] = result.registers;
  document["spill_stores"] = result.spill_stores;
  document["spill_loads"] = result.spill_loads;
  document["stack_bytes"] = result.stack;
  document["serialised"] = result.serialised;
  document["cubin_bytes"] = result.cubin.size();
  document["cubin_sha256"] = sha256_hex(result.cubin);
  document["nvrtc"] = compiler->version();
  document["milliseconds"] = result.milliseconds;
  document["rejected"] = rejected.empty() ? Json(nullptr) : Json(rejected);
  if (flags.log) document["log"] = result.log;

  if (!flags.ptx.empty()) write_file(flags.ptx, result.ptx);
  if (!rejected.empty() && !flags.force) {
    output.error(fmt::format("build rejected: {}{}", rejected,
                             flags.cubin.empty() ? "" : "; the cubin is not written (--force writes it)"));
    return ExitCode::failure;
  }
  if (!flags.cubin.empty()) {
    write_file(flags.cubin, result.cubin);
    document["file"] = flags.cubin;
  }
  return ExitCode::ok;
}

}  // namespace

void add_compile(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "compile", "Compile a kernel to a cubin and check the build; needs no GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->kernel.add(command);
  command.add_option("-o,--output", flags->cubin, "write the cubin")->type_name("FILE");
  command.add_option("--ptx", flags->ptx, "write the PTX")->type_name("FILE");
  command.add_flag("--log", flags->log, "show the compiler's log");
  command.add_flag("--force", flags->force, "accept a build with spills or serialised products");
}

}  // namespace attune::cli
