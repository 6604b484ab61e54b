// attune inspect: what stands in a cubin, be it a file, in the cache or in a pack.
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/problem_flags.h"
#include "cli/store_lookup.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "runtime/build_info.h"
#include "runtime/cubin.h"
#include "runtime/pack.h"

namespace attune::cli {
namespace {

struct Flags {
  std::string target;
  CacheFlag cache;
};

class Report {
 public:
  void add(const std::string& name, const std::string& bytes) {
    const runtime::CubinInfo info = read(name, bytes);
    Json kernels = Json::array();
    for (const runtime::CubinKernel& k : info.kernels) {
      table_.row({name, fmt::format("sm_{}", info.sm), k.name, std::to_string(k.registers),
                  std::to_string(k.stack_bytes), std::to_string(k.max_threads), bytes_text(k.shared_bytes),
                  bytes_text(k.code_bytes), std::to_string(k.instructions)});
      kernels.push_back({{"name", k.name},
                         {"registers", k.registers},
                         {"stack_bytes", k.stack_bytes},
                         {"max_threads", k.max_threads},
                         {"static_shared_bytes", k.shared_bytes},
                         {"code_bytes", k.code_bytes},
                         {"instructions", k.instructions}});
    }
    cubins_.push_back({{"name", name},
                       {"sha256", sha256_hex(bytes)},
                       {"bytes", bytes.size()},
                       {"sm", info.sm},
                       {"kernels", std::move(kernels)}});
  }
  Json& last() { return cubins_.back(); }
  void print(Output& output) {
    table_.print(output);
    output.document()["cubins"] = std::move(cubins_);
  }

 private:
  // What is wrong with a file is no mistake on the command line.
  static runtime::CubinInfo read(const std::string& name, const std::string& bytes) {
    try {
      return runtime::read_cubin(bytes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      fail(ErrorCode::io, "{}: {}", name, error.what());
    }
  }

  Table table_{{{"cubin", Align::left},
                {"chip", Align::left},
                {"kernel", Align::left},
                {"registers"},
                {"stack"},
                {"threads"},
                {"static shared"},
                {"code"},
                {"instructions"}}};
  Json cubins_ = Json::array();
};

void inspect_pack(const std::string& folder, Report& report) {
  const Pack pack = read_pack(folder, {.allow_unsigned = true});
  std::map<std::string, std::vector<const PackEntry*>> users;
  for (const PackEntry& entry : pack.entries()) users[entry.cubin_sha256].push_back(&entry);
  for (const auto& [sha256, entries] : users) {
    report.add(short_key(sha256), pack.cubin(*entries.front()));
    report.last()["build_key"] = entries.front()->build_key;
    report.last()["spec"] = entries.front()->spec;
    for (const PackEntry* entry : entries)
      report.last()["serves"].push_back({{"problem", entry->problem}, {"config", entry->config}});
  }
}

void inspect_build(const std::string& key, const Flags& flags, Report& report, Output& output) {
  cache::Store store = flags.cache.require(output, true);
  const cache::KernelRow row = kernel_by_prefix(store, key);
  const std::optional<cache::Kernel> kernel = store.find_kernel(row.build_key);
  if (!kernel) fail(ErrorCode::cache, "key: the kernel {} in {} is damaged", row.build_key, store.directory());
  const runtime::BuildInfo info = runtime::parse_build_info(kernel->metadata);
  output.line("build key  {}", kernel->build_key);
  output.line("spec       {}", info.spec);
  output.line("compiler   NVRTC {}, {:.0f} ms, {}", info.nvrtc, info.compile_ms, time_text(kernel->created));
  report.add(short_key(kernel->build_key), kernel->cubin);
  report.last()["build_key"] = kernel->build_key;
  report.last()["spec"] = info.spec;
  report.last()["nvrtc"] = info.nvrtc;
  report.last()["spill_stores"] = info.spill_stores;
  report.last()["spill_loads"] = info.spill_loads;
}

ExitCode run(const Flags& flags, Output& output) {
  Report report;
  std::error_code error;
  if (std::filesystem::is_directory(flags.target, error)) {
    inspect_pack(flags.target, report);
  } else if (!std::filesystem::exists(flags.target, error) && looks_like_key(flags.target)) {
    inspect_build(flags.target, flags, report, output);
  } else {
    report.add(flags.target, read_file(flags.target));
  }
  report.print(output);
  return ExitCode::ok;
}

}  // namespace

void add_inspect(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "inspect", "Read a cubin's resources; needs no GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  command.add_option("target", flags->target, "a cubin file, a pack, or the beginning of a build key in the cache")
      ->type_name("FILE|DIR|KEY")
      ->required();
  flags->cache.add(command);
}

}  // namespace attune::cli
