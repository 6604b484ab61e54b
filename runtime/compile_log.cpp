// Reading what NVRTC and ptxas print.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/text.h"
#include "runtime/compiler.h"

namespace attune::runtime {
namespace {

// How ptxas begins its notes that it made wgmma instructions wait for each other (C7510 to C7520), or ignored
// setmaxnreg (C7507). C7519, which stands among them, costs nothing and begins otherwise.
constexpr std::string_view kLoss = ") Potential Performance Loss";

// How rejection()'s reasons begin.
constexpr std::string_view kSerialised = "ptxas serialised the wgmma instructions", kSpills = "registers spill";

template <typename Line>
void for_each_line(std::string_view text, const Line& line) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number that stands before `words` ("16 bytes spill stores"), or -1.
int number_before(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos) return -1;
  std::size_t first = at;
  while (first > 0 && is_digit(line[first - 1])) --first;
  int value = -1;
  std::from_chars(line.data() + first, line.data() + at, value);
  return value;
}

// "C7511" of a line "... (C7511) Potential Performance Loss ...", else nothing.
std::string code_of_loss(std::string_view line) {
  const std::size_t end = line.find(kLoss);
  const std::size_t open = end == std::string_view::npos ? end : line.rfind('(', end);
  return open == std::string_view::npos ? std::string() : std::string(line.substr(open + 1, end - open - 1));
}

// "sm90/forward.cuh(120): error: identifier ..." or "ptxas fatal   : ...".
std::optional<Diagnostic> parse_diagnostic(std::string_view line) {
  for (const auto& [words, error] :
       {std::pair<std::string_view, bool>{"error", true}, {"catastrophic error", true}, {"warning", false}}) {
    const std::size_t at = line.find(fmt::format("): {}", words));
    const std::size_t open = at == std::string_view::npos ? at : line.rfind('(', at);
    if (open == std::string_view::npos || open == 0) continue;
    Diagnostic d;
    d.file = line.substr(0, open);
    d.error = error;
    const auto parsed = std::from_chars(line.data() + open + 1, line.data() + at, d.line);
    const std::size_t colon = line.find(':', at + 3);
    if (parsed.ec != std::errc{} || colon == std::string_view::npos) continue;
    d.message = trimmed(line.substr(colon + 1));
    return d;
  }
  // "ptxas application ptx input, line 21; error   : Unknown modifier '.such'"
  constexpr std::string_view kPtxInput = "ptxas application ptx input, line ";
  if (line.starts_with(kPtxInput)) {
    const std::size_t colon = line.find(':'), kind = line.find("; error");
    Diagnostic d{.file = "ptx", .error = kind != std::string_view::npos};
    std::from_chars(line.data() + kPtxInput.size(), line.data() + line.size(), d.line);
    if (colon == std::string_view::npos) return std::nullopt;
    d.message = trimmed(line.substr(colon + 1));
    return d;
  }
  for (const std::string_view start : {"ptxas error", "ptxas fatal", "nvrtc: error", "nvrtc-builtins: error"}) {
    const std::size_t colon = line.find(':', start.size());
    if (!line.starts_with(start) || colon == std::string_view::npos) continue;
    return Diagnostic{std::string(start.substr(0, start.find_first_of(" :"))), 0, true,
                      std::string(trimmed(line.substr(colon + 1)))};
  }
  return std::nullopt;
}

}  // namespace

void parse_log(std::string_view log, CompileResult* result) {
  result->registers = result->spill_stores = result->spill_loads = result->stack = 0;
  result->serialised.clear();
  for_each_line(log, [&](std::string_view line) {
    // A function that was not inlined has its own line; what it spills costs the kernel all the same.
    result->spill_stores += std::max(0, number_before(line, " bytes spill stores"));
    result->spill_loads += std::max(0, number_before(line, " bytes spill loads"));
    result->stack = std::max(result->stack, number_before(line, " bytes stack frame"));
    result->registers = std::max(result->registers, number_before(line, " registers"));
    if (const std::string code = code_of_loss(line); !code.empty() && std::ranges::count(result->serialised, code) == 0)
      result->serialised.push_back(code);
  });
}

std::optional<std::string> rejection(const CompileResult& result) {
  if (!result.serialised.empty()) {
    return fmt::format("{} ({})", kSerialised, fmt::join(result.serialised, ", "));
  }
  if (result.spill_stores > 0 || result.spill_loads > 0) {
    return fmt::format("{}: {} bytes of stores, {} bytes of loads", kSpills, result.spill_stores, result.spill_loads);
  }
  return std::nullopt;
}

const char* rejection_cause(std::string_view reason) noexcept {
  if (reason.find(kSerialised) != std::string_view::npos) return "serialised wgmma";
  if (reason.find(kSpills) != std::string_view::npos) return "spills";
  return "build error";
}

std::vector<Diagnostic> parse_diagnostics(std::string_view log) {
  std::vector<Diagnostic> found;
  for_each_line(log, [&](std::string_view line) {
    if (auto diagnostic = parse_diagnostic(line)) found.push_back(std::move(*diagnostic));
  });
  return found;
}

std::vector<std::string> checked_options(std::vector<std::string> options) {
  // Spelled as one word or in two; "-v" may be the only item of the list or one of several.
  const bool verbose = std::ranges::any_of(options, [](const std::string& option) {
    return (option.find("ptxas-options") != std::string::npos || option.starts_with("-Xptxas")) &&
           (option.ends_with("-v") || option.find("-v,") != std::string::npos ||
            option.find("--verbose") != std::string::npos);
  });
  if (!verbose) options.emplace_back("--ptxas-options=-v");
  return options;
}

}  // namespace attune::runtime
