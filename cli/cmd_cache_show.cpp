// attune cache ls, attune cache show: plans and kernels, and one of them in full.
#include <algorithm>

#include "base/error.h"
#include "cli/cache_commands.h"
#include "cli/store_lookup.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "runtime/build_info.h"

namespace attune::cli {
namespace {

struct LsFlags {
  CacheFlag cache;
  bool kernels = false, all = false;
};

struct ShowFlags {
  CacheFlag cache;
  std::string key;
};

std::string config_words(const std::string& text) {
  try {
    return config_text(codegen::parse_config(text));
  } catch (const Error&) {
    return text;  // another version's
  }
}

Json winner_json(const cache::Winner& w) {
  Json ties = Json::array();
  for (const cache::Standing& s : w.tie_set)
    ties.push_back({{"config", s.config}, {"build_key", s.build_key}, {"median", s.median}});
  return {{"config", w.config},
          {"build_key", w.build_key},
          {"regime", w.regime},
          {"median", w.median},
          {"low", w.low},
          {"high", w.high},
          {"session", w.session},
          {"finished", w.session_finished},
          {"time", w.time},
          {"errors", errors_json(w.errors)},
          {"environment", w.environment},
          {"tie_set", std::move(ties)}};
}

ExitCode list_kernels(cache::Store& store, Output& output) {
  Table table({{"build", Align::left}, {"size"}, {"registers"}, {"used", Align::left}, {"spec", Align::left}});
  Json list = Json::array();
  for (const cache::KernelRow& row : store.list_kernels()) {
    std::string spec, registers;
    try {
      const runtime::BuildInfo info = runtime::parse_build_info(row.metadata);
      spec = info.spec;
      registers = std::to_string(info.registers);
    } catch (const Error&) {
      spec = "(of another version)";
    }
    table.row({short_key(row.build_key), bytes_text(row.bytes), registers, time_text(row.used), spec});
    list.push_back({{"build_key", row.build_key},
                    {"sha256", row.sha256},
                    {"bytes", row.bytes},
                    {"spec", spec},
                    {"created", row.created},
                    {"used", row.used}});
  }
  if (table.empty())
    output.line("no kernels");
  else
    table.print(output);
  output.document()["kernels"] = std::move(list);
  return ExitCode::ok;
}

ExitCode ls(const LsFlags& flags, Output& output) {
  cache::Store store = flags.cache.require(output, true);
  if (flags.kernels) return list_kernels(store, output);
  Table table({{"plan", Align::left},
               {"problem", Align::left},
               {"device", Align::left},
               {"winner", Align::left},
               {"time"},
               {"TFLOP/s"},
               {"ties"},
               {"trials"}});
  Json list = Json::array();
  std::size_t stale = 0;
  for (const KnownPlan& plan : plans_of(store)) {
    stale += !plan.current;
    if (!plan.current && !flags.all) continue;
    const std::optional<cache::Winner> winner = store.winner(plan.row.plan_key);
    Json item{{"plan_key", plan.row.plan_key}, {"problem", plan.row.problem}, {"device", plan.row.device},
              {"trials", plan.row.trials},     {"ok", plan.row.ok},           {"last", plan.row.last},
              {"current", plan.current}};
    item["winner"] = winner ? winner_json(*winner) : Json(nullptr);
    list.push_back(std::move(item));
    table.row({short_key(plan.row.plan_key), plan.problem ? problem_text(*plan.problem) : plan.row.problem,
               device_name(plan.row.device), winner ? config_words(winner->config) : "none",
               winner ? seconds_text(winner->median) : "",
               winner && plan.problem ? tflops_text(*plan.problem, winner->median) : "",
               winner ? std::to_string(winner->tie_set.size()) : "", std::to_string(plan.row.trials)});
  }
  if (table.empty())
    output.line("no plans");
  else
    table.print(output);
  if (stale > 0 && !flags.all) output.note("{} plans of another version of the emitter are not shown (--all)", stale);
  output.document()["plans"] = std::move(list);
  return ExitCode::ok;
}

void show_kernel(cache::Store& store, const cache::KernelRow& row, Output& output) {
  const runtime::BuildInfo info = runtime::parse_build_info(row.metadata);
  output.line("build key  {}", row.build_key);
  output.line("sha256     {}", row.sha256);
  output.line("size       {}", bytes_text(row.bytes));
  output.line("made       {}, used {}", time_text(row.created), time_text(row.used));
  output.line("spec       {}", info.spec);
  output.line("registers  {}, spills {} + {} bytes, stack {}", info.registers, info.spill_stores, info.spill_loads,
              info.stack);
  output.line("compiler   NVRTC {}, {:.0f} ms", info.nvrtc, info.compile_ms);
  output.document()["kernel"] = {{"build_key", row.build_key},  {"sha256", row.sha256}, {"bytes", row.bytes},
                                 {"created", row.created},      {"used", row.used},     {"spec", info.spec},
                                 {"registers", info.registers}, {"nvrtc", info.nvrtc}};
  static_cast<void>(store);
}

void show_plan(cache::Store& store, const KnownPlan& plan, Output& output) {
  output.line("plan key  {}", plan.row.plan_key);
  output.line("problem   {}", plan.row.problem);
  output.line("device    {}", plan.row.device);
  if (!plan.current) output.line("note      made by another version of the emitter: not used by this one");
  Json& document = output.document();
  document["plan_key"] = plan.row.plan_key;
  document["problem"] = plan.row.problem;
  document["device"] = plan.row.device;
  document["current"] = plan.current;
  const std::optional<cache::Winner> winner = store.winner(plan.row.plan_key);
  document["winner"] = winner ? winner_json(*winner) : Json(nullptr);
  if (winner) {
    output.line("winner    {}", winner->config);
    output.line("          {} [{}, {}], {}, tie set of {}{}", seconds_text(winner->median), seconds_text(winner->low),
                seconds_text(winner->high), winner->regime, winner->tie_set.size(),
                winner->session_finished ? "" : ", of a run that was not finished");
  }
  output.line();
  Table table({{"time", Align::left},
               {"status", Align::left},
               {"regime", Align::left},
               {"median"},
               {"TFLOP/s"},
               {"config", Align::left},
               {"reason", Align::left}});
  Json list = Json::array();
  for (const cache::Trial& t : store.trials(plan.row.plan_key)) {
    const bool ok = t.status == cache::TrialStatus::ok;
    table.row({time_text(t.time), cache::to_string(t.status), t.regime, ok ? seconds_text(t.median) : "",
               ok && plan.problem ? tflops_text(*plan.problem, t.median) : "", config_words(t.config), t.reason});
    list.push_back({{"uid", t.uid},
                    {"time", t.time},
                    {"status", cache::to_string(t.status)},
                    {"regime", t.regime},
                    {"session", t.session},
                    {"config", t.config},
                    {"build_key", t.build_key},
                    {"median", t.median},
                    {"low", t.low},
                    {"high", t.high},
                    {"samples", t.samples},
                    {"errors", errors_json(t.errors)},
                    {"environment", t.environment},
                    {"reason", t.reason}});
  }
  table.print(output);
  document["trials"] = std::move(list);
}

ExitCode show(const ShowFlags& flags, Output& output) {
  if (!looks_like_key(flags.key))
    fail(ErrorCode::invalid_argument,
         "key: '{}' is not the beginning of a plan key or a build key (4 to 64 digits 0-9a-f)", flags.key);
  cache::Store store = flags.cache.require(output, true);
  std::vector<KnownPlan> plans = plans_of(store);
  std::erase_if(plans, [&](const KnownPlan& plan) { return !plan.row.plan_key.starts_with(flags.key); });
  if (plans.size() > 1) fail(ErrorCode::invalid_argument, "key: {} begins more than one plan key", flags.key);
  if (plans.size() == 1)
    show_plan(store, plans.front(), output);
  else
    show_kernel(store, kernel_by_prefix(store, flags.key), output);
  return ExitCode::ok;
}

}  // namespace

void add_cache_ls(CLI::App& group, Invocation& invocation) {
  auto flags = std::make_shared<LsFlags>();
  CLI::App& command = invocation.add(group, "ls", "List the plans and their winners",
                                     [flags](Output& output) { return ls(*flags, output); });
  flags->cache.add(command);
  command.add_flag("--kernels", flags->kernels, "list the kernels instead");
  command.add_flag("--all", flags->all, "also plans of other versions of the emitter");
}

void add_cache_show(CLI::App& group, Invocation& invocation) {
  auto flags = std::make_shared<ShowFlags>();
  CLI::App& command = invocation.add(group, "show", "Show a plan with its trials, or a kernel",
                                     [flags](Output& output) { return show(*flags, output); });
  flags->cache.add(command);
  command.add_option("key", flags->key, "the beginning of a plan key or build key")->type_name("KEY")->required();
}

}  // namespace attune::cli
