#include "cli/wording.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/fields.h"

namespace attune::cli {

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string time_text(std::int64_t milliseconds_since_1970) {
  if (milliseconds_since_1970 == 0) return {};
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(static_cast<std::time_t>(milliseconds_since_1970 / 1000)));
}

double tflops(const Problem& problem, double seconds) { return seconds > 0 ? flops(problem) / seconds * 1e-12 : 0; }

std::string tflops_text(const Problem& problem, double seconds) {
  return fmt::format("{:.0f}", tflops(problem, seconds));
}

std::string short_problem_text(const Problem& p) {
  std::string text = p.op == Op::backward ? "backward " : "";
  text += fmt::format("d{}", p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format("/{}", p.head_dim_v);
  if (p.causal) text += " causal";
  text += fmt::format(" {}x{}", p.batch, p.seqlen_q);
  if (p.seqlen_k != p.seqlen_q) text += fmt::format("/{}", p.seqlen_k);
  return text;
}

std::string problem_text(const Problem& p) {
  std::string text = fmt::format("{} {} h{}", to_string(p.dtype), short_problem_text(p), p.heads);
  if (p.heads_kv != p.heads) text += fmt::format("/{}", p.heads_kv);
  if (p.deterministic) text += " deterministic";
  if (p.scores != ScoreKind::any) text += fmt::format(" {} scores", to_string(p.scores));
  if (p.layout != Layout::bshd) text += fmt::format(" {}", to_string(p.layout));
  return text;
}

namespace {

// What of a config is not the default, beside the tile and the stages; `named` values say what they are by themselves.
std::string choices_text(const codegen::Config& c, const std::vector<std::string>& tile,
                         const std::vector<std::string>& named, const std::vector<std::string>& always) {
  const auto is_in = [](const std::vector<std::string>& all, const std::string& key) {
    return std::ranges::find(all, key) != all.end();
  };
  std::string text;
  const Fields defaults = parse_fields("config", codegen::to_string(codegen::Config{.family = c.family}));
  for (const auto& [key, value] : parse_fields("config", codegen::to_string(c))) {
    if (key == "family" || is_in(tile, key)) continue;
    if (!is_in(always, key) && std::ranges::find(defaults, std::pair(key, value)) != defaults.end()) continue;
    text += ' ';
    if (is_in(named, key))
      text += value;
    else if (value == "1" && key != "workers" && key != "section" && key != "parts")
      text += key;
    else if (value == "0")
      text += "no-" + key;
    else
      text += fmt::format("{}={}", key, value);
  }
  return text;
}

}  // namespace

std::string config_text(const codegen::Config& c) {
  if (codegen::is_reference(c.family)) return "reference";
  if (c.family == codegen::Family::sm90_backward) {
    const codegen::backward::Tunables& t = c.backward;
    return fmt::format("{}x{}x{}/{}/{}", t.block_m, t.block_n(), t.q_stages, t.do_stages, t.ds_stages) +
           choices_text(c, {"block_m", "q_stages", "do_stages", "ds_stages"}, {"split"}, {"split"});
  }
  return fmt::format("{}x{}x{}", c.block_m(), c.block_n, c.stages) +
         choices_text(c, {"consumers", "block_n", "stages"}, {"softmax", "order", "boundary", "grid", "diagonal"},
                      {"softmax", "order", "grid"});
}

std::string pack_time_text(const std::string& text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  return error == std::errc() && unit == " s" ? seconds_text(seconds) : text;
}

Json errors_json(const std::string& errors) {
  Json parsed = Json::parse(errors, nullptr, false);
  return parsed.is_discarded() ? Json(errors) : parsed;
}

std::string errors_text(const std::string& errors) {
  const Json json = errors_json(errors);
  const auto number = [](const Json& from, const char* name) -> std::optional<double> {
    if (!from.is_object() || !from.contains(name) || !from[name].is_number()) return std::nullopt;
    return from[name].get<double>();
  };
  const auto o = number(json, "o_rel_l2"), lse = number(json, "lse_max_abs");
  const auto dq = number(json, "dq_rel_l2"), dk = number(json, "dk_rel_l2"), dv = number(json, "dv_rel_l2");
  std::string text;
  if (dq && dk && dv)
    text = fmt::format("dQ {:.2g}, dK {:.2g}, dV {:.2g} relative L2", *dq, *dk, *dv);
  else if (o && lse)
    text = fmt::format("O {:.2g} relative L2, LSE {:.2g}", *o, *lse);
  else
    return errors;
  if (!json.contains("gate")) return text;
  if (const auto share = number(json["gate"], "share_of_bounds"))
    text += fmt::format("; small problems at most {:.0f}% of their bounds", 100 * *share);
  return text;
}

std::string short_key(const std::string& key) { return key.substr(0, 12); }

}  // namespace attune::cli
