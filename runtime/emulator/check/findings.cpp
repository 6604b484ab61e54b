#include "runtime/emulator/check/findings.h"

#include <fmt/format.h>

#include <utility>

namespace attune::emulator {

namespace {

SourcePosition position_of(const ProgramImage& image, std::uint32_t site) {
  return site < image.sites.size() ? image.position(site) : SourcePosition{};
}

std::string text_of(const Dim3& index) { return fmt::format("({},{},{})", index.x, index.y, index.z); }

std::string text_of(const SourcePosition& at) {
  std::string text = at.instruction.empty() ? "the kernel" : "`" + at.instruction + "`";
  if (at.ptx_line > 0) text += fmt::format(", PTX line {}", at.ptx_line);
  if (!at.file.empty()) text += fmt::format(", {}:{}", at.file, at.line);
  if (!at.inlined_file.empty()) text += fmt::format(" inlined at {}:{}", at.inlined_file, at.inlined_line);
  return text;
}

}  // namespace

const char* finding_kind_name(FindingKind kind) noexcept {
  switch (kind) {
    case FindingKind::out_of_bounds: return "out_of_bounds";
    case FindingKind::misaligned: return "misaligned";
    case FindingKind::uninitialised_read: return "uninitialised_read";
    case FindingKind::race: return "race";
    case FindingKind::proxy_race: return "proxy_race";
    case FindingKind::late_load: return "late_load";
    case FindingKind::register_hazard: return "register_hazard";
    case FindingKind::barrier_misuse: return "barrier_misuse";
    case FindingKind::mbarrier_misuse: return "mbarrier_misuse";
    case FindingKind::deadlock: return "deadlock";
    case FindingKind::no_progress: return "no_progress";
    case FindingKind::register_pool: return "register_pool";
    case FindingKind::bulk_leak: return "bulk_leak";
    case FindingKind::divergence: return "divergence";
    case FindingKind::bad_operand: return "bad_operand";
    case FindingKind::trap: return "trap";
  }
  return "unknown";
}

std::string Report::text() const {
  std::string text;
  for (const Finding& f : findings) {
    text += fmt::format("{}: {}\n", finding_kind_name(f.kind), f.message);
    text += fmt::format("  at {}, thread {} of block {}\n", text_of(f.at), text_of(f.thread.thread),
                        text_of(f.thread.block));
    if (f.other_thread) {
      text += fmt::format("  against {}, thread {} of block {}\n", text_of(f.other_at.value_or(SourcePosition{})),
                          text_of(f.other_thread->thread), text_of(f.other_thread->block));
    }
    if (f.count > 1) text += fmt::format("  {} times\n", f.count);
    text += "\n";
  }
  return text;
}

bool Findings::count(FindingKind kind, std::uint32_t site, std::uint32_t other_site) {
  const auto found = known_.find({kind, site, other_site});
  if (found == known_.end()) return false;
  ++findings_[found->second].count;
  return true;
}

void Findings::add(FindingKind kind, std::uint32_t site, const ThreadPosition& thread, std::string message,
                   std::uint32_t other_site, const std::optional<ThreadPosition>& other) {
  if (count(kind, site, other_site) || full()) return;
  known_.emplace(std::tuple(kind, site, other_site), findings_.size());
  Finding& finding = findings_.emplace_back();
  finding.kind = kind;
  finding.message = std::move(message);
  finding.thread = thread;
  finding.at = position_of(image_, site);
  if (!other) return;
  finding.other_thread = other;
  finding.other_at = position_of(image_, other_site);
}

std::vector<Finding> Findings::take() {
  known_.clear();
  return std::exchange(findings_, {});
}

}  // namespace attune::emulator
