// attune emit: the CUDA source of a kernel, or the candidates of a problem.
#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/problem_flags.h"
#include "cli/ranking.h"
#include "cli/table.h"
#include "cli/wording.h"

namespace attune::cli {
namespace {

struct Flags {
  KernelFlags kernel;
  std::string file, limit = "20";
  bool list = false;
};

void describe_shape(const codegen::LaunchShape& shape, Json& json) {
  json["entry"] = shape.entry;
  json["threads"] = shape.threads;
  json["shared_bytes"] = shape.shared_bytes;
  json["block_m"] = shape.block_m;
  json["block_n"] = shape.block_n;
}

ExitCode list(const Flags& flags, Output& output) {
  if (!flags.kernel.spec.empty()) fail(ErrorCode::invalid_argument, "spec: --list needs a problem, not a kernel");
  if (!flags.kernel.config.empty()) fail(ErrorCode::invalid_argument, "config: --list shows all of them");
  const Problem problem = flags.kernel.problem.problem();
  const Arch arch = flags.kernel.problem.arch();
  const std::size_t limit = static_cast<std::size_t>(parse_count("limit", flags.limit, 0));
  const std::vector<RankedConfig> ranked = ranked_candidates(arch, problem);
  const std::size_t shown = limit == 0 ? ranked.size() : std::min(limit, ranked.size());

  Table table({{"#"}, {"config", Align::left}, {"estimate"}, {"TFLOP/s"}, {"limit", Align::left}, {"shared"}});
  Json candidates = Json::array();
  for (std::size_t i = 0; i < shown; ++i) {
    const RankedConfig& r = ranked[i];
    const codegen::LaunchShape shape = codegen::launch_shape(codegen::specialise(arch, problem, r.config));
    table.row({std::to_string(i + 1), config_text(r.config), seconds_text(r.estimate.total),
               tflops_text(problem, r.estimate.total), r.estimate.limit, bytes_text(shape.shared_bytes)});
    candidates.push_back({{"config", codegen::to_string(r.config)},
                          {"estimate", estimate_json(r.estimate)},
                          {"shared_bytes", shape.shared_bytes}});
  }
  output.line("{}: {} candidates, {} shown, by the cost model's estimate", problem_text(problem), ranked.size(), shown);
  table.print(output);
  Json& document = output.document();
  document["problem"] = to_string(problem);
  document["arch"] = arch.name;
  document["count"] = ranked.size();
  document["candidates"] = std::move(candidates);
  return ExitCode::ok;
}

ExitCode run(const Flags& flags, Output& output) {
  if (flags.list) return list(flags, output);
  const KernelFlags::Choice choice = flags.kernel.choice();
  const codegen::EmittedKernel kernel = codegen::emit(choice.spec);
  Json& document = output.document();
  if (choice.problem) document["problem"] = to_string(*choice.problem);
  document["config"] = codegen::to_string(choice.config);
  document["spec"] = codegen::to_string(choice.spec);
  describe_shape(kernel.shape, document);
  document["cluster"] = choice.spec.config.cluster;
  document["options"] = codegen::compile_options(choice.spec);
  document["sha256"] = sha256_hex(kernel.source);
  if (flags.file.empty() || flags.file == "-") {
    document["source"] = kernel.source;
    output.raw(kernel.source);
  } else {
    write_file(flags.file, kernel.source);
    document["file"] = flags.file;
    output.note("{}: {} lines", flags.file, std::ranges::count(kernel.source, '\n'));
  }
  return ExitCode::ok;
}

}  // namespace

void add_emit(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "emit", "Print the CUDA source of a kernel; needs no GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->kernel.add(command);
  command.add_flag("--list", flags->list, "show the problem's candidates and what the cost model says of them");
  command.add_option("--limit", flags->limit, "with --list: how many; 0: all (default: 20)")->type_name("N");
  command.add_option("-o,--output", flags->file, "write to a file instead of stdout")->type_name("FILE");
}

}  // namespace attune::cli
