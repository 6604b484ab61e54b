#include "tuner/protocol.h"

#include <array>

namespace attune::tuner {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> decoding_table() {
  std::array<std::int8_t, 256> table{};
  table.fill(-1);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  return table;
}
constexpr std::array<std::int8_t, 256> kDecoding = decoding_table();

template <typename T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

template <typename T>
std::optional<T> optional_from(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return std::nullopt;
  return it->get<T>();
}

// A figure that was not finite has become null.
double number_or_nan(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? 1e300 : it->get<double>();
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (std::size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * j) & 63];
  }
  return text;
}

std::string from_base64(std::string_view text) {
  if (text.size() % 4 != 0)
    fail(ErrorCode::invalid_argument, "base64: {} characters (allowed: a multiple of 4)", text.size());
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = kDecoding[static_cast<unsigned char>(c)];
    if (value < 0) fail(ErrorCode::invalid_argument, "base64: character {} is not allowed", static_cast<int>(c));
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 255);
  }
  return bytes;
}

std::string to_line(const Json& message) { return message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json parse_line(std::string_view line) {
  Json message = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object()) {
    fail(ErrorCode::invalid_argument, "message: not a JSON object: '{}'", line.substr(0, 80));
  }
  return message;
}

Error error_from_json(const Json& json) {
  const std::string name = json.value("code", ""), message = json.value("message", "");
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    if (name == error_code_name(static_cast<ErrorCode>(code))) return {static_cast<ErrorCode>(code), message};
  }
  return {ErrorCode::internal, message};
}

Json to_json(const Error& error) { return {{"code", error_code_name(error.code())}, {"message", error.what()}}; }

Json to_json(const runtime::DeviceProperties& d) {
  return {{"ordinal", d.ordinal},
          {"name", d.name},
          {"uuid", d.uuid},
          {"compute_capability", d.compute_capability},
          {"sms", d.sms},
          {"l2_bytes", d.l2_bytes},
          {"memory_bytes", d.memory_bytes},
          {"shared_per_block", d.shared_per_block},
          {"registers_per_sm", d.registers_per_sm},
          {"clock_khz", d.clock_khz},
          {"memory_clock_khz", d.memory_clock_khz},
          {"memory_bus_bits", d.memory_bus_bits},
          {"driver_version", d.driver_version}};
}

runtime::DeviceProperties device_from_json(const Json& json) {
  runtime::DeviceProperties d;
  json.at("ordinal").get_to(d.ordinal);
  json.at("name").get_to(d.name);
  json.at("uuid").get_to(d.uuid);
  json.at("compute_capability").get_to(d.compute_capability);
  json.at("sms").get_to(d.sms);
  json.at("l2_bytes").get_to(d.l2_bytes);
  json.at("memory_bytes").get_to(d.memory_bytes);
  json.at("shared_per_block").get_to(d.shared_per_block);
  json.at("registers_per_sm").get_to(d.registers_per_sm);
  json.at("clock_khz").get_to(d.clock_khz);
  json.at("memory_clock_khz").get_to(d.memory_clock_khz);
  json.at("memory_bus_bits").get_to(d.memory_bus_bits);
  json.at("driver_version").get_to(d.driver_version);
  return d;
}

Json to_json(const runtime::NvmlLimits& limits) {
  return {{"power_cap_watts", optional_json(limits.power_cap_watts)},
          {"power_cap_default_watts", optional_json(limits.power_cap_default_watts)},
          {"max_sm_mhz", optional_json(limits.max_sm_mhz)},
          {"mig", optional_json(limits.mig)},
          {"ecc_uncorrected", optional_json(limits.ecc_uncorrected)},
          {"driver", limits.driver}};
}

runtime::NvmlLimits limits_from_json(const Json& json) {
  runtime::NvmlLimits limits;
  limits.power_cap_watts = optional_from<double>(json, "power_cap_watts");
  limits.power_cap_default_watts = optional_from<double>(json, "power_cap_default_watts");
  limits.max_sm_mhz = optional_from<unsigned>(json, "max_sm_mhz");
  limits.mig = optional_from<bool>(json, "mig");
  limits.ecc_uncorrected = optional_from<std::uint64_t>(json, "ecc_uncorrected");
  limits.driver = json.value("driver", "");
  return limits;
}

Json accuracy_json(const Accuracy& a) {
  if (a.op == Op::backward) {
    return {{"dq_rel_l2", a.dq_rel_l2},
            {"dk_rel_l2", a.dk_rel_l2},
            {"dv_rel_l2", a.dv_rel_l2},
            {"dq_usual_l2", a.dq_usual_l2},
            {"dk_usual_l2", a.dk_usual_l2},
            {"dv_usual_l2", a.dv_usual_l2},
            {"rows", a.rows}};
  }
  return {{"o_rel_l2", a.o_rel_l2},
          {"o_row_l2", a.o_row_l2},
          {"o_max_abs", a.o_max_abs},
          {"lse_max_abs", a.lse_max_abs},
          {"rows", a.rows}};
}

namespace {

Accuracy accuracy_from_json(const Json& json) {
  Accuracy a;
  json.at("rows").get_to(a.rows);
  if (json.contains("dq_rel_l2")) {
    a.op = Op::backward;
    a.dq_rel_l2 = number_or_nan(json, "dq_rel_l2");
    a.dk_rel_l2 = number_or_nan(json, "dk_rel_l2");
    a.dv_rel_l2 = number_or_nan(json, "dv_rel_l2");
    a.dq_usual_l2 = number_or_nan(json, "dq_usual_l2");
    a.dk_usual_l2 = number_or_nan(json, "dk_usual_l2");
    a.dv_usual_l2 = number_or_nan(json, "dv_usual_l2");
  } else {
    a.o_rel_l2 = number_or_nan(json, "o_rel_l2");
    a.o_row_l2 = number_or_nan(json, "o_row_l2");
    a.o_max_abs = number_or_nan(json, "o_max_abs");
    a.lse_max_abs = number_or_nan(json, "lse_max_abs");
  }
  return a;
}

}  // namespace

Json to_json(const Judgement& judgement) {
  return {{"wrong", optional_json(judgement.wrong)},
          {"accuracy", accuracy_json(judgement.accuracy)},
          {"share_of_bounds", judgement.share_of_bounds},
          {"worst_case", judgement.worst_case},
          {"cases", judgement.cases}};
}

Judgement judgement_from_json(const Json& json) {
  Judgement judgement;
  judgement.wrong = optional_from<std::string>(json, "wrong");
  judgement.accuracy = accuracy_from_json(json.at("accuracy"));
  judgement.share_of_bounds = number_or_nan(json, "share_of_bounds");
  json.at("worst_case").get_to(judgement.worst_case);
  json.at("cases").get_to(judgement.cases);
  return judgement;
}

Json to_json(const RaceOptions& options) {
  return {{"turns", options.turns},
          {"launches", options.launches},
          {"warm", options.warm},
          {"rest_seconds", options.rest_seconds},
          {"run_seconds", options.run_seconds}};
}

RaceOptions race_options_from_json(const Json& json) {
  RaceOptions options;
  json.at("turns").get_to(options.turns);
  json.at("launches").get_to(options.launches);
  json.at("warm").get_to(options.warm);
  json.at("rest_seconds").get_to(options.rest_seconds);
  json.at("run_seconds").get_to(options.run_seconds);
  if (options.turns < 1 || options.launches < 1 || options.warm < 0) {
    fail(ErrorCode::invalid_argument,
         "race: turns {}, launches {}, warm {} (allowed: 1 and more, 1 and more, 0 and more)", options.turns,
         options.launches, options.warm);
  }
  return options;
}

Json to_json(const RaceReadings& readings) {
  return {{"sm_mhz", readings.sm_mhz},
          {"watts", optional_json(readings.watts)},
          {"celsius", optional_json(readings.celsius)},
          {"throttle", readings.throttle}};
}

RaceReadings readings_from_json(const Json& json) {
  RaceReadings readings;
  for (const Json& mhz : json.at("sm_mhz")) {
    if (mhz.is_number()) readings.sm_mhz.push_back(mhz.get<double>());
  }
  readings.watts = optional_from<double>(json, "watts");
  readings.celsius = optional_from<unsigned>(json, "celsius");
  readings.throttle = json.value("throttle", std::uint64_t{0});
  return readings;
}

}  // namespace attune::tuner
