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
  std::string text = fmt::format("d{}", p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format("/{}", p.head_dim_v);
  if (p.causal) text += " causal";
  text += fmt::format(" {}x{}", p.batch, p.seqlen_q);
  if (p.seqlen_k != p.seqlen_q) text += fmt::format("/{}", p.seqlen_k);
  return text;
}

std::string problem_text(const Problem& p) {
  std::string text = fmt::format("{} {} h{}", to_string(p.dtype), short_problem_text(p), p.heads);
  if (p.heads_kv != p.heads) text += fmt::format("/{}", p.heads_kv);
  if (p.layout != Layout::bshd) text += fmt::format(" {}", to_string(p.layout));
  return text;
}

std::string config_text(const codegen::Config& c) {
  if (c.family == codegen::Family::reference) return "reference";
  std::string text = fmt::format("{}x{}x{}", c.block_m(), c.block_n, c.stages);
  const Fields defaults = parse_fields("config", codegen::to_string(codegen::Config{}));
  const Fields fields = parse_fields("config", codegen::to_string(c));
  for (const auto& [key, value] : fields) {
    if (key == "family" || key == "consumers" || key == "block_n" || key == "stages") continue;
    const bool names_itself =
        key == "softmax" || key == "order" || key == "boundary" || key == "grid" || key == "diagonal";
    const bool always = key == "softmax" || key == "order" || key == "grid";
    if (!always && std::ranges::find(defaults, std::pair(key, value)) != defaults.end()) continue;
    text += ' ';
    if (names_itself)
      text += value;
    else if (value == "1")
      text += key;
    else if (value == "0")
      text += "no-" + key;
    else
      text += fmt::format("{}={}", key, value);
  }
  return text;
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
  if (!o || !lse) return errors;
  std::string text = fmt::format("O {:.2g} relative L2, LSE {:.2g}", *o, *lse);
  if (!json.contains("gate")) return text;
  if (const auto share = number(json["gate"], "share_of_bounds"))
    text += fmt::format("; small problems at most {:.0f}% of their bounds", 100 * *share);
  return text;
}

std::string short_key(const std::string& key) { return key.substr(0, 12); }

}  // namespace attune::cli
