#include "cli/store_lookup.h"

#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "base/fields.h"
#include "cli/wording.h"
#include "codegen/kernel_spec.h"
#include "runtime/keys.h"

namespace attune::cli {
namespace {

std::optional<std::string> field(const std::string& identity, std::string_view key) {
  try {
    for (const auto& [name, value] : parse_fields("device identity", identity))
      if (name == key) return value;
  } catch (const Error&) {
    // Another version's text: it has no fields that we know.
  }
  return std::nullopt;
}

}  // namespace

bool looks_like_key(std::string_view text) {
  return text.size() >= 4 && text.size() <= 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

cache::KernelRow kernel_by_prefix(cache::Store& store, const std::string& prefix) {
  std::optional<cache::KernelRow> found;
  for (cache::KernelRow& row : store.list_kernels()) {
    if (!row.build_key.starts_with(prefix)) continue;
    if (found) fail(ErrorCode::invalid_argument, "key: {} begins more than one build key", prefix);
    found = std::move(row);
  }
  if (!found) fail(ErrorCode::not_found, "key: the cache {} has no kernel {}", store.directory(), prefix);
  return *std::move(found);
}

std::vector<KnownPlan> plans_of(cache::Store& store) {
  const std::string emitter = codegen::emitter_digest();
  std::vector<KnownPlan> plans;
  for (cache::PlanRow& row : store.list_plans()) {
    KnownPlan plan;
    plan.row = std::move(row);
    try {
      plan.problem = parse_problem(plan.row.problem);
      plan.current = runtime::plan_key(*plan.problem, plan.row.device, emitter) == plan.row.plan_key;
    } catch (const Error&) {
      // Another version's problem: listed, not used.
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

Arch arch_of_identity(const std::string& identity) {
  const std::string capability = field(identity, "cc").value_or("");
  if (capability == "90") return parse_arch("sm_90a");
  fail(ErrorCode::unsupported, "device identity: '{}' is of no supported chip (allowed: cc=90)", identity);
}

std::string device_name(const std::string& identity) { return field(identity, "name").value_or(identity); }

std::string choose_identity(const std::vector<KnownPlan>& plans, const std::string& wanted) {
  std::set<std::string> known;
  for (const KnownPlan& plan : plans)
    if (plan.current) known.insert(plan.row.device);
  if (!wanted.empty()) {
    std::vector<std::string> matching;
    for (const std::string& identity : known)
      if (identity == wanted || device_name(identity) == wanted) matching.push_back(identity);
    if (matching.size() == 1) return matching.front();
    if (matching.empty() && wanted.find('=') != std::string::npos) return wanted;
    fail(ErrorCode::invalid_argument, "device_identity: '{}' is {} (allowed: {})", wanted,
         matching.empty() ? "not in the cache" : "the name of several", fmt::format("{}", fmt::join(known, "; ")));
  }
  if (known.size() == 1) return *known.begin();
  if (known.empty()) return {};
  fail(ErrorCode::invalid_argument, "device_identity: the cache has plans of several devices, name one (allowed: {})",
       fmt::join(known, "; "));
}

}  // namespace attune::cli
