// What on_device.py saw of the planted faults on a GPU, in the words of the table.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace attune::emulator {

class DeviceResults {
 public:
  /// Throws nlohmann's exceptions for a file that is none of on_device.py's.
  explicit DeviceResults(const std::filesystem::path& file) : json_(nlohmann::json::parse(std::ifstream(file))) {}

  std::string gpu() const { return text("gpu"); }
  /// "no sign", "wrong output", "hangs", "error CUDA_ERROR_..." or "compile error", and in how many of the launches if
  /// not in all; "not run".
  std::string device(const std::string& kernel, const std::string& fault) const {
    const nlohmann::json& seen = find(kernel, fault).at("device");
    const std::string result = seen.at("result");
    const int launches = json_.at("launches"), wrong = seen.value("wrong_launches", 0),
              launch = seen.value("launch", 0);
    if (result == "wrong output" && wrong < launches) return fmt::format("{} ({} of {})", result, wrong, launches);
    return launch > 1 ? fmt::format("{} (launch {})", result, launch) : result;
  }
  /// What each tool found; "nothing" if some have looked at all of it and none found anything. Tools that did not get
  /// to an end are named.
  std::string sanitizer(const std::string& kernel, const std::string& fault) const {
    const nlohmann::json& tools = find(kernel, fault).at("sanitizer");
    std::string found;
    std::map<std::string, std::string> without_end;
    std::size_t complete = 0;
    for (const auto& [tool, seen] : tools.items()) {
      const std::string result = seen.at("result");
      if (result == "times out" || result == "not run" || result == "tool failed") {
        std::string& names = without_end[result];
        names += fmt::format("{}{}", names.empty() ? "" : ", ", tool);
        continue;
      }
      ++complete;
      if (is_finding(kernel, tool, result)) found += fmt::format("{}{}: {}", found.empty() ? "" : "; ", tool, result);
    }
    if (complete == 0 && without_end.size() <= 1) return without_end.empty() ? "not run" : without_end.begin()->first;
    std::string text = complete == 0 ? "no result" : found.empty() ? "nothing" : found;
    for (const auto& [result, names] : without_end) text += fmt::format(" ({}: {})", result, names);
    return text;
  }

  /// A sentence for the head of the table.
  std::string summary() const {
    int faults = 0, run = 0, silent = 0, unseen = 0, unseen_silent = 0, checked = 0;
    std::string plain;
    for (const nlohmann::json& one : json_.at("cases")) {
      const std::string kernel = one.at("kernel"), fault = one.at("fault"), result = one.at("device").at("result");
      if (fault.empty()) {
        if (result != "no sign") plain += fmt::format(" Without a fault, {} gave: {}.", kernel, result);
        for (const auto& [tool, seen] : one.at("sanitizer").items()) {
          const std::string found = seen.at("result");
          if (found != "nothing")
            plain += fmt::format(" Without a fault, {} under {}: {} (not counted as a finding).", kernel, tool, found);
        }
        continue;
      }
      ++faults;
      run += result != "not run";
      silent += result == "no sign";
      const std::string seen = sanitizer(kernel, fault);
      checked += seen != "not run";
      const bool nothing = seen.starts_with("nothing");
      unseen += nothing;
      unseen_silent += nothing && result == "no sign";
    }
    return fmt::format(
        "{} of {} run on an {} without any sign in {} launches ({} were run); compute-sanitizer saw nothing in {} of "
        "the {} that it was given, {} of which run without any sign. (Driver {}, compute-sanitizer {}, kernels by "
        "NVRTC {}, {}.){}",
        silent, faults, text("gpu"), json_.at("launches").get<int>(), run, unseen, checked, unseen_silent,
        text("driver"), text("compute_sanitizer"), text("nvrtc"), text("date"), plain);
  }

 private:
  std::string text(const char* field) const { return json_.at(field); }

  const nlohmann::json& find(const std::string& kernel, const std::string& fault) const {
    for (const nlohmann::json& one : json_.at("cases"))
      if (one.at("kernel") == kernel && one.at("fault") == fault) return one;
    throw std::out_of_range(fmt::format("the results of the GPU have no \"{}\" of {}", fault, kernel));
  }
  /// What a tool says of the kernel without a fault, too, is none.
  bool is_finding(const std::string& kernel, const std::string& tool, const std::string& result) const {
    if (result == "nothing") return false;
    const nlohmann::json& plain = find(kernel, "").at("sanitizer");
    return !plain.contains(tool) || plain.at(tool).at("result") != result;
  }

  nlohmann::json json_;
};

}  // namespace attune::emulator
