// attune pack: kernels for machines with no compiler.
#include "base/error.h"
#include "cli/best_guess.h"
#include "cli/command.h"
#include "cli/pack_sources.h"
#include "cli/problem_set.h"
#include "cli/table.h"
#include "cli/wording.h"

namespace attune::cli {
namespace {

struct CreateFlags {
  ProblemSetFlags problems;
  CacheFlag cache;
  std::string directory, identity, alternates = "0";
  std::vector<std::string> configs, specs;
  bool all = false;
};

void print(const Manifest& manifest, Output& output) {
  Table table({{"problem", Align::left},
               {"arch", Align::left},
               {"config", Align::left},
               {"time"},
               {"TFLOP/s"},
               {"registers"},
               {"size"},
               {"cubin", Align::left}});
  Json entries = Json::array();
  for (const PackEntry& e : manifest.entries) {
    std::string problem = e.problem, config = e.config;
    try {
      problem = problem_text(parse_problem(e.problem));
      config = config_text(codegen::parse_config(e.config));
    } catch (const Error&) {
      // Another version's words: shown as they are.
    }
    table.row({problem, e.arch, config, pack_time_text(e.median), e.tflops, std::to_string(e.registers),
               bytes_text(static_cast<std::int64_t>(e.cubin_bytes)), short_key(e.cubin_sha256)});
    entries.push_back({{"problem", e.problem},
                       {"arch", e.arch},
                       {"config", e.config},
                       {"spec", e.spec},
                       {"build_key", e.build_key},
                       {"cubin_sha256", e.cubin_sha256},
                       {"cubin_bytes", e.cubin_bytes},
                       {"registers", e.registers},
                       {"median", e.median},
                       {"tflops", e.tflops},
                       {"errors", errors_json(e.errors)},
                       {"environment", e.environment}});
  }
  table.print(output);
  output.document()["producer"] = manifest.producer;
  output.document()["entries"] = std::move(entries);
  output.document()["quarantined"] = manifest.quarantine.size();
}

void note_twice(const codegen::Config& config, Output& output) {
  output.warn(fmt::format("given twice, kept once: {}", codegen::to_string(config)));
}

void add_builds(const CreateFlags& flags, cache::Store store, PackDraft& draft, Output& output) {
  const Arch arch = flags.problems.arch();
  runtime::Builder builder(std::move(store));
  const auto add = [&](const Problem& problem, const codegen::Config& config, const codegen::KernelSpec& spec) {
    output.progress(fmt::format("compiling  {}", draft.manifest().entries.size() + 1));
    if (!draft.add(problem, config, builder.build(spec))) note_twice(config, output);
  };
  for (const Problem& problem : flags.problems.problems(output)) {
    for (const std::string& text : flags.configs) {
      if (text == kDefaultConfig) {
        output.progress(fmt::format("compiling  {}", draft.manifest().entries.size() + 1));
        const Guess guess = best_guess(builder, arch, problem, output);
        if (!draft.add(problem, guess.config, guess.build)) note_twice(guess.config, output);
        continue;
      }
      const codegen::Config config = checked_config(arch, problem, text);
      add(problem, config, codegen::specialise(arch, problem, config));
    }
    for (const std::string& text : flags.specs) {
      const codegen::KernelSpec spec = checked_spec(text);
      if (!codegen::serves(spec, problem))
        fail(ErrorCode::invalid_argument, "spec: {} does not serve {}", text, to_string(problem));
      add(problem, spec.config, spec);
    }
  }
}

ExitCode create(const CreateFlags& flags, Output& output) {
  const bool explicit_builds = !flags.configs.empty() || !flags.specs.empty();
  if (!explicit_builds && !flags.all && !flags.problems.any()) {
    fail(ErrorCode::invalid_argument,
         "pack create: says not what to pack (allowed: --all, problem flags that choose among the cache's winners, or "
         "problems with --config or --spec)");
  }
  if (explicit_builds && flags.all) fail(ErrorCode::invalid_argument, "all: excludes --config and --spec");
  const int alternates = static_cast<int>(parse_count("alternates", flags.alternates, 0, 64));
  PackDraft draft;
  if (explicit_builds) {
    add_builds(flags, flags.cache.open(output), draft, output);
  } else {
    cache::Store store = flags.cache.require(output);
    add_winners(store, flags.problems.filter(output), flags.identity, alternates, draft, output);
  }
  output.end_progress();
  draft.write(flags.directory);
  print(draft.manifest(), output);
  output.document()["directory"] = flags.directory;
  output.line("{}: {} entries, not signed", flags.directory, draft.manifest().entries.size());
  return ExitCode::ok;
}

ExitCode ls(const std::string& directory, Output& output) {
  const Pack pack = read_pack(directory, {.allow_unsigned = true});
  print(pack.manifest(), output);
  return ExitCode::ok;
}

ExitCode verify(const std::string& directory, Output& output) {
  const std::vector<std::string> problems = verify_pack(directory);
  output.document()["directory"] = directory;
  output.document()["signed"] = false;
  output.document()["problems"] = problems;
  if (!problems.empty()) {
    for (const std::string& problem : problems) output.line(std::string_view(problem));
    fail(ErrorCode::pack, "{}: {} (and {} more)", directory, problems.front(), problems.size() - 1);
  }
  const std::size_t entries = read_pack(directory, {.allow_unsigned = true}).entries().size();
  output.document()["entries"] = entries;
  output.line("{}: sound, {} entries, not signed", directory, entries);
  return ExitCode::ok;
}

struct TwoPacks {
  std::string first, second, directory;
};

ExitCode diff(const TwoPacks& flags, Output& output) {
  const Pack older = read_pack(flags.first, {.allow_unsigned = true});
  const Pack newer = read_pack(flags.second, {.allow_unsigned = true});
  const std::vector<std::string> lines = diff_packs(older, newer);
  for (const std::string& line : lines) output.line(std::string_view(line));
  if (lines.empty()) output.line("no difference");
  output.document()["differences"] = lines;
  return lines.empty() ? ExitCode::ok : ExitCode::failure;
}

ExitCode merge(const TwoPacks& flags, Output& output) {
  const Pack preferred = read_pack(flags.first, {.allow_unsigned = true});
  const Pack other = read_pack(flags.second, {.allow_unsigned = true});
  merge_packs(preferred, other, flags.directory);
  const std::size_t entries = read_pack(flags.directory, {.allow_unsigned = true}).entries().size();
  output.document()["directory"] = flags.directory;
  output.document()["entries"] = entries;
  output.line("{}: {} entries, not signed", flags.directory, entries);
  return ExitCode::ok;
}

void add_create(CLI::App& group, Invocation& invocation) {
  auto flags = std::make_shared<CreateFlags>();
  CLI::App& command = invocation.add(group, "create", "Make a pack of the cache's winners, or of configs of your own",
                                     [flags](Output& output) { return create(*flags, output); });
  flags->problems.add(command);
  flags->cache.add(command);
  command.add_option("-o,--output", flags->directory, "folder to make; an existing pack is replaced")
      ->type_name("DIR")
      ->required();
  command.add_flag("--all", flags->all, "every winner in the cache");
  command.add_option("--alternates", flags->alternates, "configs of the tie set beside each winner (default: 0)")
      ->type_name("N");
  command
      .add_option("--device-identity", flags->identity, "winners of this device (default: the only one in the cache)")
      ->type_name("TEXT");
  command
      .add_option("--config", flags->configs,
                  "compile this config for the problems, or `default`: the best guess; may be repeated, best first")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--spec", flags->specs, "compile this kernel for the problem; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

void add_on_one(CLI::App& group, Invocation& invocation, const char* name, const char* description,
                ExitCode (*action)(const std::string&, Output&)) {
  auto directory = std::make_shared<std::string>();
  CLI::App& command = invocation.add(group, name, description,
                                     [directory, action](Output& output) { return action(*directory, output); });
  command.add_option("pack", *directory, "its folder")->type_name("DIR")->required();
}

CLI::App& add_on_two(CLI::App& group, Invocation& invocation, const char* name, const char* description,
                     const char* first, const char* second, const std::shared_ptr<TwoPacks>& flags,
                     ExitCode (*action)(const TwoPacks&, Output&)) {
  CLI::App& command =
      invocation.add(group, name, description, [flags, action](Output& output) { return action(*flags, output); });
  command.add_option(first, flags->first, "folder of a pack")->type_name("DIR")->required();
  command.add_option(second, flags->second, "folder of a pack")->type_name("DIR")->required();
  return command;
}

}  // namespace

void add_pack(CLI::App& app, Invocation& invocation) {
  CLI::App& group = *app.add_subcommand("pack", "Make, check and compare packs of kernels");
  group.require_subcommand(1);
  add_create(group, invocation);
  add_on_one(group, invocation, "ls", "List what a pack holds", ls);
  add_on_one(group, invocation, "verify", "Check a pack's manifest and every digest", verify);
  add_on_two(group, invocation, "diff", "Say what the newer of two packs gains and loses; exit 1 if they differ",
             "older", "newer", std::make_shared<TwoPacks>(), diff);
  auto flags = std::make_shared<TwoPacks>();
  add_on_two(group, invocation, "merge", "Join two packs", "preferred", "other", flags, merge)
      .add_option("-o,--output", flags->directory, "folder to make; an existing pack is replaced")
      ->type_name("DIR")
      ->required();
}

}  // namespace attune::cli
