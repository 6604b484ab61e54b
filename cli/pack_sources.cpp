#include "cli/pack_sources.h"

#include <algorithm>

#include <attune/attune.h>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/store_lookup.h"
#include "cli/wording.h"
#include "codegen/space.h"

namespace attune::cli {

namespace {

std::vector<PackSideLaunch> pack_sides(const std::vector<codegen::SideLaunch>& sides) {
  std::vector<PackSideLaunch> all;
  for (const codegen::SideLaunch& side : sides)
    all.push_back({.entry = side.entry, .threads = side.threads, .shared_bytes = side.shared_bytes});
  return all;
}

}  // namespace

PackDraft::PackDraft() { manifest_.producer = fmt::format("attune {}", version()); }

bool PackDraft::add(const Problem& problem, const codegen::Config& config, const runtime::Build& build,
                    const PackMeasurement& measured) {
  runtime::require_accepted(build);
  const codegen::LaunchShape& shape = build.info.shape;
  PackEntry entry;
  entry.problem = to_string(problem);
  entry.config = codegen::to_string(config);
  entry.spec = build.info.spec;
  entry.arch = codegen::parse_kernel_spec(build.info.spec).arch;
  for (const PackEntry& other : manifest_.entries)
    if (other.problem == entry.problem && other.arch == entry.arch && other.config == entry.config) return false;
  entry.launch = {.entry = shape.entry,
                  .threads = shape.threads,
                  .shared_bytes = shape.shared_bytes,
                  .block_m = shape.block_m,
                  .block_n = shape.block_n,
                  .q_box_rows = shape.q_box_rows,
                  .kv_box_rows = shape.kv_box_rows,
                  .o_box_rows = shape.o_box_rows,
                  .counter = shape.counter,
                  .before = pack_sides(shape.before),
                  .after = pack_sides(shape.after),
                  .dq_rows = shape.dq_rows};
  entry.build_key = build.key;
  entry.cubin_sha256 = sha256_hex(build.cubin);
  entry.cubin_bytes = build.cubin.size();
  entry.registers = build.info.registers;
  entry.errors = measured.errors;
  if (measured.median > 0) {
    entry.median = fmt::format("{:.9f} s", measured.median);
    entry.tflops = fmt::format("{:.1f}", tflops(problem, measured.median));
  }
  entry.environment = measured.environment.empty() ? fmt::format("nvrtc={}", build.info.nvrtc) : measured.environment;
  cubins_.emplace(entry.cubin_sha256, build.cubin);
  manifest_.entries.push_back(std::move(entry));
  return true;
}

void PackDraft::add_quarantine(const cache::Quarantine& entry) {
  manifest_.quarantine.push_back({entry.build_key, entry.environment, entry.reason});
}

namespace {

runtime::Build build_of(runtime::Builder& builder, const cache::Standing& standing, const Problem& problem,
                        const codegen::Config& config, const Arch& arch) {
  if (!standing.build_key.empty()) {
    if (auto build = builder.find(standing.build_key)) return *std::move(build);
  }
  return builder.build(codegen::specialise(arch, problem, config));
}

}  // namespace

void add_winners(cache::Store& store, const std::function<bool(const Problem&)>& wanted, const std::string& identity,
                 int alternates, PackDraft& draft, Output& output) {
  std::vector<KnownPlan> plans = plans_of(store);
  const std::size_t stale =
      static_cast<std::size_t>(std::ranges::count_if(plans, [](const KnownPlan& plan) { return !plan.current; }));
  if (stale > 0) output.note("{} plans of another version of the emitter are left out", stale);
  std::erase_if(plans, [&](const KnownPlan& plan) { return !plan.current || !wanted(*plan.problem); });
  if (!plans.empty()) {
    const std::string device = choose_identity(plans, identity);
    std::erase_if(plans, [&](const KnownPlan& plan) { return plan.row.device != device; });
  }
  runtime::Builder builder(store);
  for (const KnownPlan& plan : plans) {
    const std::optional<cache::Winner> winner = store.winner(plan.row.plan_key);
    if (!winner) continue;
    const Arch arch = arch_of_identity(plan.row.device);
    int room = 1 + alternates;
    for (const cache::Standing& standing : winner->tie_set) {
      if (room-- == 0) break;
      const codegen::Config config = codegen::parse_config(standing.config);
      const bool first = standing.config == winner->config;
      draft.add(*plan.problem, config, build_of(builder, standing, *plan.problem, config, arch),
                {standing.median, first ? winner->errors : "", winner->environment});
    }
  }
  if (draft.manifest().entries.empty()) {
    fail(ErrorCode::not_found,
         "pack create: the cache {} has no winner that fits (attune tune makes some; --config compiles without a GPU)",
         store.directory());
  }
  for (const cache::Quarantine& entry : store.list_quarantine()) draft.add_quarantine(entry);
}

}  // namespace attune::cli
