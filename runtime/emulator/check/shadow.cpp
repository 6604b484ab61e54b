#include "runtime/emulator/check/shadow.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/emulator/check/checker.h"

namespace attune::emulator {

ShadowRegion::ShadowRegion(std::string name, ProxySpace space, std::size_t bytes, bool written)
    : name_(std::move(name)), space_(space), bytes_(bytes), pages_((bytes + kPageBytes - 1) / kPageBytes) {
  if (!written) return;
  for (Page& page : pages_) page.all_written = true;
}

ShadowRegion::~ShadowRegion() {
  if (checker_) checker_->leave(this);
}

namespace {

/// The bits from `first` to before `last` of the 64 that a word holds.
std::uint64_t bits(std::size_t first, std::size_t last) {
  const std::uint64_t below = last == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << last) - 1;
  return below & ~((std::uint64_t{1} << first) - 1);
}

}  // namespace

void ShadowRegion::mark_written(std::size_t offset, std::size_t count, bool written) {
  const std::size_t end = offset + count;
  while (offset < end) {
    Page& page = pages_[offset / kPageBytes];
    const std::size_t first = offset % kPageBytes, last = std::min(kPageBytes, first + (end - offset));
    offset += last - first;
    if (!page.written && page.all_written == written) continue;
    if (first == 0 && last == kPageBytes) {
      page.written.reset();
      page.all_written = written;
      continue;
    }
    if (!page.written) {
      page.written = std::make_unique<Bits>();
      page.written->fill(page.all_written ? ~std::uint64_t{0} : 0);
    }
    for (std::size_t word = first / 64; word * 64 < last; ++word) {
      const std::uint64_t mask =
          bits(word * 64 < first ? first - word * 64 : 0, std::min<std::size_t>(64, last - word * 64));
      if (written) {
        (*page.written)[word] |= mask;
      } else {
        (*page.written)[word] &= ~mask;
      }
    }
  }
}

std::size_t ShadowRegion::first_unwritten(std::size_t offset, std::size_t count) const {
  const std::size_t end = offset + count;
  while (offset < end) {
    const Page& page = pages_[offset / kPageBytes];
    const std::size_t first = offset % kPageBytes, last = std::min(kPageBytes, first + (end - offset));
    if (!page.written && !page.all_written) return offset;
    if (page.written) {
      for (std::size_t word = first / 64; word * 64 < last; ++word) {
        const std::uint64_t mask =
            bits(word * 64 < first ? first - word * 64 : 0, std::min<std::size_t>(64, last - word * 64));
        if (const std::uint64_t missing = mask & ~(*page.written)[word])
          return offset - first + word * 64 + static_cast<std::size_t>(std::countr_zero(missing));
      }
    }
    offset += last - first;
  }
  return end;
}

}  // namespace attune::emulator
