// What the tuner and its worker say to each other: one JSON object a line, over the worker's stdin and stdout.
//
// The tuner sends one command at a time and reads until the line that ends it:
//
//   {"cmd":"hello"}                              -> {"done":{"version","emitter","device","limits","nvml"}}
//   {"cmd":"code","key":K,"data":BASE64}         -> {"done":{}}       a cubin, kept under its key
//   {"cmd":"tools","helpers":K}                  -> {"done":{}}       before any of the following
//   {"cmd":"reference","spec":S,"key":K}         -> {"done":{}}
//   {"cmd":"gate","id":I,"spec":S,"key":K}       -> {"begin":I} {"done":JUDGEMENT}
//   {"cmd":"problem","problem":P}                -> {"done":{"sets":N}}   forgets the entrants of the problem before
//   {"cmd":"load","id":I,"spec":S,"config":C,"key":K} -> {"done":{}}
//   {"cmd":"check","id":I}                       -> {"begin":I} {"done":JUDGEMENT}
//   {"cmd":"race","ids":[...],OPTIONS}           -> ( {"begin":I} {"samples":I,"turn":T,"seconds":[...]} )*
//   {"done":READINGS}
//   {"cmd":"quit"}                               -> the worker exits
//
// {"error":{"code","message"}} ends a command that failed and harmed nothing. {"fatal":{"kind","message"}} ends the
// worker too: kind "context" if the last id that was begun has broken the context, "hardware" if the device is not to
// be trusted any more.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/nvml.h"
#include "tuner/measure/shape_bench.h"

namespace attune::tuner {

using Json = nlohmann::json;

/// Longest line that either side accepts: a cubin of 48 MB.
inline constexpr std::size_t kLongestLine = 64u << 20;

std::string to_base64(std::string_view bytes);
/// Throws Error(invalid_argument).
std::string from_base64(std::string_view text);

/// One line, newline included. Numbers that are not finite become null.
std::string to_line(const Json& message);
/// Throws Error(invalid_argument) for anything but one JSON object.
Json parse_line(std::string_view line);

/// {"code","message"} as an error; a code that is not known becomes `internal`.
Error error_from_json(const Json& json);
Json to_json(const Error& error);
Json to_json(const runtime::DeviceProperties& device);
runtime::DeviceProperties device_from_json(const Json& json);
Json to_json(const runtime::NvmlLimits& limits);
runtime::NvmlLimits limits_from_json(const Json& json);
Json to_json(const Judgement& judgement);
Judgement judgement_from_json(const Json& json);
Json to_json(const RaceOptions& options);
RaceOptions race_options_from_json(const Json& json);
Json to_json(const RaceReadings& readings);
RaceReadings readings_from_json(const Json& json);
/// The part of a trial's errors that a judgement gives.
Json accuracy_json(const Accuracy& accuracy);

}  // namespace attune::tuner
