#include "cli/emulator/finding_output.h"

#include <algorithm>

namespace attune::cli {
namespace {

Json thread_json(const emulator::ThreadPosition& t) {
  return {{"block", {t.block.x, t.block.y, t.block.z}}, {"thread", {t.thread.x, t.thread.y, t.thread.z}}};
}

Json position_json(const emulator::SourcePosition& at) {
  Json json{{"file", at.file}, {"line", at.line}, {"ptx_line", at.ptx_line}, {"instruction", at.instruction}};
  if (!at.inlined_file.empty()) {
    json["inlined_file"] = at.inlined_file;
    json["inlined_line"] = at.inlined_line;
  }
  return json;
}

std::string position_text(const emulator::SourcePosition& at) {
  return at.file.empty() ? fmt::format("PTX line {}", at.ptx_line) : fmt::format("{}:{}", at.file, at.line);
}

/// Findings that differ in their instructions alone: a loop that was unrolled has the same fault in every turn.
struct Group {
  const emulator::Finding* first;
  int more = 0;
};

bool same_line(const emulator::SourcePosition& a, const emulator::SourcePosition& b) {
  return !a.file.empty() && a.file == b.file && a.line == b.line && a.inlined_file == b.inlined_file &&
         a.inlined_line == b.inlined_line;
}

bool same_lines(const emulator::Finding& a, const emulator::Finding& b) {
  if (a.kind != b.kind || !same_line(a.at, b.at)) return false;
  return a.other_at && b.other_at ? same_line(*a.other_at, *b.other_at) : !a.other_at && !b.other_at;
}

}  // namespace

Json finding_json(const emulator::Finding& f) {
  Json json{{"kind", emulator::finding_kind_name(f.kind)},
            {"message", f.message},
            {"count", f.count},
            {"thread", thread_json(f.thread)},
            {"at", position_json(f.at)}};
  if (f.other_thread) json["other_thread"] = thread_json(*f.other_thread);
  if (f.other_at) json["other_at"] = position_json(*f.other_at);
  return json;
}

std::string short_text(const emulator::Finding& finding) {
  return fmt::format("{} ({})", emulator::finding_kind_name(finding.kind), position_text(finding.at));
}

std::string long_text(const std::vector<emulator::Finding>& findings) {
  std::vector<Group> groups;
  for (const emulator::Finding& finding : findings) {
    const auto known = std::ranges::find_if(groups, [&](const Group& g) { return same_lines(*g.first, finding); });
    if (known == groups.end())
      groups.push_back({&finding});
    else
      ++known->more;
  }
  std::string text;
  for (const Group& group : groups) {
    emulator::Report report;
    report.findings = {*group.first};
    text += report.text();
    text.resize(text.find_last_not_of('\n') + 1);
    if (group.more > 0)
      text += fmt::format("\n  and at {} more instruction{} of the same source lines", group.more,
                          group.more == 1 ? "" : "s");
    text += "\n\n";
  }
  text.resize(text.find_last_not_of('\n') + 1);
  return text;
}

}  // namespace attune::cli
