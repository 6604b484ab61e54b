// attune cache: looking into the cache and looking after it. cmd_cache_show.cpp has the views of plans.
#include <filesystem>

#include "base/error.h"
#include "cli/cache_commands.h"
#include "cli/store_lookup.h"
#include "cli/table.h"
#include "cli/wording.h"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  CacheFlag cache;
};

struct MergeFlags : Flags {
  std::string other;
};

struct PruneFlags : Flags {
  std::optional<std::string> keep, unused_days;
};

struct ClearFlags : Flags {
  bool trials = false;
};

struct MissesFlags : Flags {
  bool forget = false;
};

struct QuarantineFlags : Flags {
  std::string lift;
};

ExitCode path(const Flags& flags, Output& output) {
  const std::string directory = flags.cache.directory();
  if (directory.empty())
    fail(ErrorCode::cache, "cache_dir: no folder for the cache (set ATTUNE_CACHE_DIR, XDG_CACHE_HOME or HOME)");
  output.line(std::string_view(directory));
  output.document()["directory"] = directory;
  return ExitCode::ok;
}

ExitCode stats(const Flags& flags, Output& output) {
  cache::Store store = flags.cache.require(output, true);
  std::int64_t bytes = 0, trials = 0, won = 0;
  const auto kernels = store.list_kernels();
  for (const cache::KernelRow& row : kernels) bytes += row.bytes;
  const auto plans = plans_of(store);
  std::int64_t stale = 0;
  for (const KnownPlan& plan : plans) {
    trials += plan.row.trials;
    won += plan.row.ok > 0;
    stale += !plan.current;
  }
  std::error_code error;
  const auto file_size = static_cast<std::int64_t>(fs::file_size(store.file(), error));
  const auto free = static_cast<std::int64_t>(fs::space(store.directory(), error).available);
  const std::size_t rejections = store.list_rejections().size(), quarantined = store.list_quarantine().size(),
                    misses = store.list_misses().size();
  output.line("file         {} ({}, {} free on the disk)", store.file(), bytes_text(file_size), bytes_text(free));
  output.line("kernels      {} ({})", kernels.size(), bytes_text(bytes));
  output.line("plans        {} ({} with a winner, {} of another version of the emitter)", plans.size(), won, stale);
  output.line("trials       {}", trials);
  output.line("rejections   {}", rejections);
  output.line("quarantine   {}", quarantined);
  output.line("misses       {}", misses);
  Json& document = output.document();
  document["file"] = store.file();
  document["file_bytes"] = file_size;
  document["free_bytes"] = free;
  document["kernels"] = kernels.size();
  document["kernel_bytes"] = bytes;
  document["plans"] = plans.size();
  document["plans_with_winner"] = won;
  document["stale_plans"] = stale;
  document["trials"] = trials;
  document["rejections"] = rejections;
  document["quarantined"] = quarantined;
  document["misses"] = misses;
  return ExitCode::ok;
}

ExitCode verify(const Flags& flags, Output& output) {
  cache::Store store = flags.cache.require(output, true);
  const cache::VerifyReport report = store.verify();
  for (const std::string& problem : report.problems) output.line(std::string_view(problem));
  output.line("{}: {} kernels and {} trials checked, {}", store.file(), report.kernels, report.trials,
              report.problems.empty() ? "sound" : fmt::format("{} problems", report.problems.size()));
  output.document()["file"] = store.file();
  output.document()["kernels"] = report.kernels;
  output.document()["trials"] = report.trials;
  output.document()["problems"] = report.problems;
  return report.problems.empty() ? ExitCode::ok : ExitCode::bad_store;
}

// The database of a folder, or the file itself.
std::string database_of(const std::string& other, Output& output) {
  std::error_code error;
  if (!fs::exists(other, error)) fail(ErrorCode::not_found, "other: {} does not exist", other);
  if (!fs::is_directory(other, error)) return other;
  cache::Options options;
  options.directory = other;
  options.read_only = true;
  options.warn = [&output](const std::string& message) { output.warn(message); };
  const std::string file = cache::Store::open(std::move(options)).file();
  if (file.empty()) fail(ErrorCode::cache, "other: {} holds no usable cache", other);
  return file;
}

ExitCode merge(const MergeFlags& flags, Output& output) {
  cache::Store store = flags.cache.require(output);
  const std::string file = database_of(flags.other, output);
  const cache::MergeReport report = store.merge(file);
  output.line("{}: {} kernels, {} trials and {} other rows added, {} refused", store.file(), report.kernels,
              report.trials, report.others, report.refused);
  output.document()["kernels"] = report.kernels;
  output.document()["trials"] = report.trials;
  output.document()["others"] = report.others;
  output.document()["refused"] = report.refused;
  if (report.refused > 0)
    output.warn(fmt::format("{}: {} rows do not match their digests and were left out", file, report.refused));
  return ExitCode::ok;
}

ExitCode prune(const PruneFlags& flags, Output& output) {
  if (!flags.keep && !flags.unused_days)
    fail(ErrorCode::invalid_argument, "prune: says nothing to do (allowed: --keep SIZE, --unused-days N, or both)");
  cache::PruneOptions options;
  if (flags.keep) options.keep_bytes = parse_bytes("keep", *flags.keep);
  if (flags.unused_days) {
    constexpr std::int64_t kDay = 24ll * 3600 * 1000;
    const std::int64_t days = parse_count("unused_days", *flags.unused_days, 0, 36500);
    options.unused_since = cache::real_system().now_ms() - days * kDay;
  }
  cache::Store store = flags.cache.require(output);
  const std::int64_t deleted = store.prune(options);
  output.line("{} kernels deleted; trials stay", deleted);
  output.document()["deleted"] = deleted;
  return ExitCode::ok;
}

ExitCode clear(const ClearFlags& flags, Output& output) {
  cache::Store store = flags.cache.require(output);
  const std::size_t kernels = store.list_kernels().size();
  store.clear(flags.trials);
  output.line("{} kernels deleted{}", kernels, flags.trials ? ", and every measurement" : "; trials stay");
  output.document()["deleted"] = kernels;
  output.document()["trials_too"] = flags.trials;
  return ExitCode::ok;
}

ExitCode misses(const MissesFlags& flags, Output& output) {
  cache::Store store = flags.cache.require(output, !flags.forget);
  Table table({{"asked"}, {"last", Align::left}, {"problem", Align::left}});
  Json list = Json::array();
  for (const cache::Miss& miss : store.list_misses()) {
    table.row({std::to_string(miss.count), time_text(miss.last), miss.problem});
    list.push_back(
        {{"plan_key", miss.plan_key}, {"problem", miss.problem}, {"count", miss.count}, {"last", miss.last}});
    if (flags.forget) store.forget_miss(miss.plan_key);
  }
  if (table.empty())
    output.line("no misses");
  else
    table.print(output);
  output.document()["misses"] = std::move(list);
  output.document()["forgotten"] = flags.forget;
  return ExitCode::ok;
}

ExitCode quarantine(const QuarantineFlags& flags, Output& output) {
  cache::Store store = flags.cache.require(output, flags.lift.empty());
  if (!flags.lift.empty() && !looks_like_key(flags.lift))
    fail(ErrorCode::invalid_argument, "lift: '{}' is not the beginning of a build key", flags.lift);
  Table table({{"build", Align::left}, {"since", Align::left}, {"config", Align::left}, {"reason", Align::left}});
  Json list = Json::array();
  std::size_t lifted = 0;
  for (const cache::Quarantine& q : store.list_quarantine()) {
    if (!flags.lift.empty() && !q.build_key.starts_with(flags.lift)) continue;
    if (!flags.lift.empty()) lifted += store.lift_quarantine(q.build_key);
    table.row({short_key(q.build_key), time_text(q.time), q.config, q.reason});
    list.push_back({{"build_key", q.build_key},
                    {"environment", q.environment},
                    {"config", q.config},
                    {"reason", q.reason},
                    {"time", q.time}});
  }
  if (!flags.lift.empty() && list.empty()) fail(ErrorCode::not_found, "lift: nothing is quarantined as {}", flags.lift);
  if (table.empty())
    output.line("nothing is quarantined");
  else
    table.print(output);
  if (!flags.lift.empty()) output.line("{} lifted", lifted);
  output.document()["quarantine"] = std::move(list);
  output.document()["lifted"] = lifted;
  return ExitCode::ok;
}

template <typename F>
std::pair<CLI::App*, std::shared_ptr<F>> add(CLI::App& group, Invocation& invocation, const char* name,
                                             const char* description, ExitCode (*action)(const F&, Output&)) {
  auto flags = std::make_shared<F>();
  CLI::App& command =
      invocation.add(group, name, description, [flags, action](Output& output) { return action(*flags, output); });
  flags->cache.add(command);
  return {&command, flags};
}

}  // namespace

void add_cache(CLI::App& app, Invocation& invocation) {
  CLI::App& group = *app.add_subcommand("cache", "Look into the cache and look after it");
  group.require_subcommand(1);
  add(group, invocation, "path", "Print the cache's folder", path);
  add_cache_ls(group, invocation);
  add_cache_show(group, invocation);
  add(group, invocation, "stats", "Count what the cache holds", stats);
  add(group, invocation, "verify", "Check the database and every digest; changes nothing", verify);
  {
    auto [command, flags] = add(group, invocation, "merge", "Add what another cache has", merge);
    command->add_option("other", flags->other, "its folder or database file")->type_name("DIR|FILE")->required();
  }
  {
    auto [command, flags] = add(group, invocation, "prune", "Delete kernels that are least needed; trials stay", prune);
    command->add_option("--keep", flags->keep, "shrink to so many bytes of cubins, least recently used first")
        ->type_name("SIZE");
    command->add_option("--unused-days", flags->unused_days, "delete kernels that nobody used for so long")
        ->type_name("N");
  }
  {
    auto [command, flags] = add(group, invocation, "clear", "Delete all kernels and rejections", clear);
    command->add_flag("--trials", flags->trials, "delete every measurement, too");
  }
  {
    auto [command, flags] = add(group, invocation, "misses", "List what was asked for and was not tuned", misses);
    command->add_flag("--forget", flags->forget, "empty the list");
  }
  {
    auto [command, flags] =
        add(group, invocation, "quarantine", "List builds that hung or crashed and are not tried again", quarantine);
    command->add_option("--lift", flags->lift, "allow a build again")->type_name("KEY");
  }
}

}  // namespace attune::cli
