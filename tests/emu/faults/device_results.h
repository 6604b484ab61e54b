// What on_device.py saw of the planted faults on a GPU, in the words of the documentation.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace attune::emulator {

class DeviceResults {
 public:
  /// Throws nlohmann's exceptions for a file that is none of on_device.py's.
  explicit DeviceResults(const std::filesystem::path& file) : json_(nlohmann::json::parse(std::ifstream(file))) {}

  /// "no sign", "wrong output", "hangs", "error: ..." or "compile error", and in which of the launches if not in all;
  /// "not run".
  std::string device(const std::string& kernel, const std::string& fault) const {
    const std::string result = outcome(kernel, fault);
    const nlohmann::json* const entry = find(kernel, fault);
    if (!entry) return result;
    const nlohmann::json& seen = entry->at("device");
    const int launches = json_.at("launches"), wrong = seen.value("wrong_launches", 0),
              launch = seen.value("launch", 0);
    if (result == "wrong output" && wrong < launches) return fmt::format("{} ({} of {})", result, wrong, launches);
    constexpr std::string_view kError = "error CUDA_ERROR_";
    std::string text = result;
    if (result.starts_with(kError)) {
      text = result.substr(kError.size());
      std::ranges::transform(text, text.begin(), [](char c) { return c == '_' ? ' ' : lower(c); });
      text = "error: " + text;
    }
    return launch > 1 ? fmt::format("{} (launch {})", text, launch) : text;
  }

  /// What each tool found; "nothing" if all that came to an end found nothing. Tools that did not are named.
  std::string sanitizer(const std::string& kernel, const std::string& fault) const {
    const nlohmann::json* const entry = find(kernel, fault);
    if (!entry) return "not run";
    std::string found;
    std::map<std::string, std::vector<std::string>> without_end;
    std::size_t complete = 0;
    for (const auto& [tool, seen] : entry->at("sanitizer").items()) {
      if (const std::string result = seen.at("result"); !is_end(result)) {
        without_end[result].push_back(tool);
        continue;
      }
      ++complete;
      if (const std::string kinds = findings(kernel, tool, seen); !kinds.empty())
        found += fmt::format("{}{}: {}", found.empty() ? "" : "; ", tool, kinds);
    }
    if (complete == 0 && without_end.size() <= 1) return without_end.empty() ? "not run" : without_end.begin()->first;
    std::string text = complete == 0 ? "no result" : found.empty() ? "nothing" : found;
    for (const auto& [result, tools] : without_end) text += fmt::format(" ({}: {})", result, fmt::join(tools, ", "));
    return text;
  }

  /// A table of how many of the faults end how on the GPU, and in how many of those the tools see something.
  std::string summary(const std::vector<std::pair<std::string, std::string>>& faults) const {
    std::vector<Count> counts{{"no sign"}, {"wrong output"}, {"hangs"}, {"error"}, {"compile error"}, {"not run"}};
    Count all{"all"};
    for (const auto& [kernel, fault] : faults) {
      const std::string result = outcome(kernel, fault), seen = sanitizer(kernel, fault);
      for (Count* count :
           {&*std::ranges::find_if(counts, [&](const Count& c) { return result.starts_with(c.name); }), &all}) {
        ++count->faults;
        ++(seen == "nothing" || seen.starts_with("nothing (")                          ? count->nothing
           : seen == "times out" || seen == "not run" || seen.starts_with("no result") ? count->without_result
                                                                                       : count->found);
      }
    }
    counts.push_back(all);
    std::string text =
        "| on an H200 | faults | a tool finds something | no tool finds anything | no tool comes to an end |\n"
        "|---|---|---|---|---|\n";
    for (const Count& count : counts) {
      if (count.faults == 0) continue;
      text += fmt::format("| {} | {} | {} | {} | {} |\n", count.name, count.faults, count.found, count.nothing,
                          count.without_result);
    }
    return text;
  }

 private:
  struct Count {
    std::string name;
    int faults = 0, found = 0, nothing = 0, without_result = 0;
  };

  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
  static bool is_end(const std::string& result) {
    return result != "times out" && result != "not run" && result != "tool failed";
  }

  /// Nothing for a fault that has been planted since.
  const nlohmann::json* find(const std::string& kernel, const std::string& fault) const {
    for (const nlohmann::json& one : json_.at("cases"))
      if (one.at("kernel") == kernel && one.at("fault") == fault) return &one;
    return nullptr;
  }
  std::string outcome(const std::string& kernel, const std::string& fault) const {
    const nlohmann::json* const entry = find(kernel, fault);
    return entry ? entry->at("device").at("result").get<std::string>() : "not run";
  }
  /// The kinds that the tool does not report of the kernel without a fault, too.
  std::string findings(const std::string& kernel, const std::string& tool, const nlohmann::json& seen) const {
    const std::string result = seen.at("result");
    if (result != "findings") return result == "nothing" ? "" : result;
    std::vector<std::string> known;
    if (const nlohmann::json* const plain = find(kernel, "")) {
      if (plain->at("sanitizer").contains(tool))
        known = plain->at("sanitizer").at(tool).value("kinds", std::vector<std::string>{});
    }
    std::vector<std::string> kinds = seen.at("kinds");
    std::erase_if(kinds, [&](const std::string& kind) { return std::ranges::find(known, kind) != known.end(); });
    return fmt::format("{}", fmt::join(kinds, ", "));
  }

  nlohmann::json json_;
};

}  // namespace attune::emulator
