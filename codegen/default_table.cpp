#include "codegen/default_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "codegen/backward/space.h"
#include "codegen/default_table_text.h"
#include "codegen/schedule.h"
#include "codegen/space.h"

namespace attune::codegen {
namespace {

constexpr std::size_t kMostRows = 4;
// In doublings: of the number of keys, and of the tiles an SM has to do, as far as there are few of them.
constexpr double kFurthest = 3;
constexpr double kManyTiles = 8;

std::vector<std::string_view> columns(std::string_view line) {
  std::vector<std::string_view> all;
  for (std::size_t bar = line.find('|'); bar != std::string_view::npos; bar = line.find('|')) {
    all.push_back(trimmed(line.substr(0, bar)));
    line.remove_prefix(bar + 1);
  }
  all.push_back(trimmed(line));
  return all;
}

double parse_positive(int line, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || !std::isfinite(value))
    fail(ErrorCode::invalid_argument, "default table, line {}: '{}' (allowed: a number above 0)", line, text);
  return value;
}

TabledWinner parse_row(int line, std::string_view text) {
  const std::vector<std::string_view> parts = columns(text);
  if (parts.size() != 4) {
    fail(ErrorCode::invalid_argument,
         "default table, line {}: {} columns (allowed: 4: problem | config | seconds | error)", line, parts.size());
  }
  try {
    return {parse_problem(parts[0]), parse_config(parts[1]), parse_positive(line, parts[2]),
            parse_positive(line, parts[3])};
  } catch (const Error& error) {
    fail(error.code(), "default table, line {}: {}", line, error.what());
  }
}

double doublings(double a, double b) { return std::abs(std::log2(std::max(a, 1.0) / std::max(b, 1.0))); }

// Tiles of 128 rows for each SM; beyond some, more of them change nothing.
double tiles_an_sm(const Arch& arch, const Problem& p) {
  const double tiles = std::ceil(static_cast<double>(p.seqlen_q) / 128) * p.heads * static_cast<double>(p.batch);
  return std::min(kManyTiles, tiles / arch.sms);
}

// How far a tuned problem is from this one, or above kFurthest.
double distance(const Arch& arch, const Problem& tuned, const Problem& p) {
  if (tuned.op != p.op || tuned.head_dim != p.head_dim || tuned.head_dim_v != p.head_dim_v ||
      tuned.causal != p.causal || tuned.deterministic != p.deterministic || tuned.scores != p.scores)
    return 2 * kFurthest;
  const double few = std::abs(std::log2(tiles_an_sm(arch, tuned) / tiles_an_sm(arch, p)));
  return doublings(static_cast<double>(tuned.seqlen_k), static_cast<double>(p.seqlen_k)) + few +
         0.1 * doublings(tuned.heads / tuned.heads_kv, p.heads / p.heads_kv) + (tuned.dtype == p.dtype ? 0.0 : 0.05);
}

// The config for another problem: what depends on its lengths and head counts is set anew.
Config fitted(const Arch& arch, const TabledWinner& row, const Problem& p) {
  Config c = row.config;
  if (row.problem == p) return c;
  if (p.op == Op::backward) {
    c.backward.section = c.backward.parts = 0;
    if (c.backward.workers > arch.sms) c.backward.workers = 0;
    return c;
  }
  c.exact_tail = !p.causal && p.seqlen_k > 0 && p.seqlen_k % c.block_n != 0 && p.seqlen_k % c.block_n % 16 == 0;
  c.section = 0;
  if (c.workers > arch.sms) c.workers = 0;
  if (!clusters_pay(arch, p)) c.cluster = 1;
  c.skip_idle = c.skip_idle && has_idle_rows(p, c);
  return c;
}

}  // namespace

std::vector<TabledWinner> parse_default_table(std::string_view text) {
  std::vector<TabledWinner> rows;
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = trimmed(text.substr(0, end));
    if (!row.empty() && row.front() != '#') rows.push_back(parse_row(line, row));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

const std::vector<TabledWinner>& default_table() {
  static const std::vector<TabledWinner> rows = parse_default_table(kDefaultTable);
  return rows;
}

std::vector<Config> tabled_configs(const Arch& arch, const Problem& p) {
  std::vector<std::pair<double, const TabledWinner*>> near;
  if (p.seqlen_q == 0 || p.seqlen_k == 0 || p.batch == 0) return {};
  for (const TabledWinner& row : default_table()) {
    const double away = distance(arch, row.problem, p);
    if (away <= kFurthest) near.emplace_back(away, &row);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Config> chosen;
  std::set<std::string> kernels;
  for (const auto& [away, row] : near) {
    if (chosen.size() == kMostRows) break;
    const Config config = fitted(arch, *row, p);
    const KernelSpec spec = specialise(arch, p, config);
    if (kernels.contains(kernel_part(config)) || violates(arch, spec)) continue;
    if (p.op == Op::backward && config.backward.dkv == backward::DkvPath::parts &&
        !backward::wants_parts(arch, p, config.backward))
      continue;
    if (p.op == Op::forward && !simulate(spec).empty()) continue;
    kernels.insert(kernel_part(config));
    chosen.push_back(config);
  }
  return chosen;
}

}  // namespace attune::codegen
