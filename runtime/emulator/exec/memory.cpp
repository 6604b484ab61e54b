#include "runtime/emulator/exec/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

constexpr std::uint64_t kWindowMask = std::uint64_t{0xFF} << 56;

bool inside(std::uint64_t address, std::size_t bytes, std::uint64_t size) {
  return address <= size && bytes <= size - address;
}

const char* space_name(AddressSpace space) {
  switch (space) {
    case AddressSpace::generic: return "generic";
    case AddressSpace::global: return "global";
    case AddressSpace::shared: return "shared";
    case AddressSpace::shared_cluster: return "shared::cluster";
    case AddressSpace::local: return "local";
    case AddressSpace::constant: return "constant";
  }
  return "";
}

/// The space that an address belongs to, and the address in it.
AddressSpace resolve_generic(std::uint64_t* address) {
  switch (*address & kWindowMask) {
    case kSharedWindow: *address &= ~kWindowMask; return AddressSpace::shared_cluster;
    case kLocalWindow: *address &= ~kWindowMask; return AddressSpace::local;
    default: return AddressSpace::global;
  }
}

std::string describe_shared(const ThreadContext* context, std::uint64_t address, std::size_t bytes) {
  std::uint32_t offset = 0;
  const Block* block = address >> 32 ? nullptr : shared_block(context, address, &offset);
  if (!block) return "names no block of the cluster";
  if (block->live == 0) return fmt::format("belongs to block {} of the cluster, which has exited", block->rank);
  if (offset < kSharedReserved)
    return fmt::format("lies in the first {} bytes, which are the system's", kSharedReserved);
  const std::uint64_t end = std::uint64_t{offset} + bytes;
  const std::uint32_t size = block->shared_bytes - kSharedReserved;
  if (end > block->shared_bytes)
    return fmt::format("ends {} bytes past the end of the {} bytes of shared memory", end - block->shared_bytes, size);
  return "is another block's, which needs .shared::cluster";
}

std::string describe(const ThreadContext* context, AddressSpace space, std::uint64_t address, std::size_t bytes) {
  switch (space) {
    case AddressSpace::shared:
    case AddressSpace::shared_cluster: return describe_shared(context, address, bytes);
    case AddressSpace::local:
      return fmt::format("ends past the {} bytes of the thread's local memory",
                         context->grid().plan().kernel->local_bytes);
    default: break;
  }
  std::uint64_t inner = address;
  if (resolve_generic(&inner) != AddressSpace::global) return "is a shared or local one";
  return context->grid().plan().ranges.describe(address, bytes);
}

/// False for what lies outside; what is not writable is found by the caller.
bool place(const ThreadContext* context, AddressSpace space, std::uint64_t address, std::size_t bytes,
           Location* location, const MemoryRange** range) {
  if (space == AddressSpace::generic) space = resolve_generic(&address);
  switch (space) {
    case AddressSpace::shared:
    case AddressSpace::shared_cluster: {
      if (address >> 32) return false;
      std::uint32_t offset = 0;
      Block* block = shared_block(context, address, &offset);
      if (!block || offset < kSharedReserved || !inside(offset, bytes, block->shared_bytes)) return false;
      if (block != context->block && (space == AddressSpace::shared || block->live == 0)) return false;
      *location = {block->shared + offset, block->shared_region, offset, block, false};
      return true;
    }
    case AddressSpace::local:
      if (!inside(address, bytes, context->grid().plan().kernel->local_bytes)) return false;
      *location = {context->local + address, nullptr, address, nullptr, true};
      return true;
    default: break;
  }
  *range = context->grid().plan().ranges.find(address, bytes);
  if (!*range) return false;
  *location = {reinterpret_cast<std::uint8_t*>(address), (*range)->region,
               address - reinterpret_cast<std::uintptr_t>((*range)->base), nullptr, false};
  return true;
}

void check_local(ThreadContext* context, const Location& location, std::size_t bytes, bool write, std::uint32_t site) {
  if (!context->local_written) return;
  std::uint8_t* written = context->local_written + location.offset;
  if (write) {
    std::memset(written, 1, bytes);
    return;
  }
  const std::uint8_t* unwritten = std::find(written, written + bytes, 0);
  if (unwritten == written + bytes) return;
  context->grid().add(FindingKind::uninitialised_read, context, site,
                      fmt::format("reads {} bytes of local memory at offset {}: byte {} was never written", bytes,
                                  location.offset, location.offset + static_cast<std::size_t>(unwritten - written)));
  std::memset(written, 1, bytes);
}

}  // namespace

void MemoryRanges::add(MemoryRange range) { ranges_.push_back(std::move(range)); }

void MemoryRanges::sort() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return std::less<>()(a.base, b.base); });
}

const MemoryRange* MemoryRanges::find(std::uint64_t address, std::size_t bytes) const {
  const auto holds = [&](const MemoryRange& range) {
    return inside(address - reinterpret_cast<std::uintptr_t>(range.base), bytes, range.bytes);
  };
  if (last_ < ranges_.size() && holds(ranges_[last_])) return &ranges_[last_];
  const auto behind =
      std::upper_bound(ranges_.begin(), ranges_.end(), address, [](std::uint64_t value, const MemoryRange& range) {
        return value < reinterpret_cast<std::uintptr_t>(range.base);
      });
  if (behind == ranges_.begin() || !holds(*(behind - 1))) return nullptr;
  last_ = static_cast<std::size_t>(behind - 1 - ranges_.begin());
  return &ranges_[last_];
}

std::string MemoryRanges::describe(std::uint64_t address, std::size_t bytes) const {
  const MemoryRange* nearest = nullptr;
  std::uint64_t least = ~std::uint64_t{0};
  std::string text = "there is no memory at all";
  for (const MemoryRange& range : ranges_) {
    const auto base = reinterpret_cast<std::uintptr_t>(range.base);
    const std::uint64_t end = base + range.bytes;
    std::uint64_t distance = 0;
    std::string where;
    if (address >= end) {
      distance = address - end;
      where = distance == 0 ? fmt::format("right behind the {}", range.name)
                            : fmt::format("{} bytes behind the {}", distance, range.name);
    } else if (address < base) {
      distance = base - address;
      where = fmt::format("{} bytes before the {}", distance, range.name);
    } else {
      where = fmt::format("{} bytes before the end of the {}", end - address, range.name);
    }
    if (!nearest || distance < least) {
      nearest = &range;
      least = distance;
      text = std::move(where);
    }
  }
  constexpr std::uint64_t kFar = std::uint64_t{1} << 32;
  if (least >= kFar && nearest) return address == 0 ? "is null" : "is far from all allocations";
  return fmt::format("({} bytes) is {}", bytes, text);
}

Block* shared_block(const ThreadContext* context, std::uint64_t address, std::uint32_t* offset) {
  *offset = static_cast<std::uint32_t>(address & 0xFFFFFF);
  const std::uint64_t rank = address >> 24;
  if (rank == 0) return context->block;
  const std::vector<Block*>& blocks = context->block->cluster->blocks;
  return rank <= blocks.size() ? blocks[rank - 1] : nullptr;
}

bool locate(ThreadContext* context, AddressSpace space, std::uint64_t address, std::size_t bytes, AccessKind kind,
            const char* what, std::uint32_t site, Location* location) {
  const MemoryRange* range = nullptr;
  if (!place(context, space, address, bytes, location, &range)) {
    context->grid().add(FindingKind::out_of_bounds, context, site,
                        fmt::format("{} of {} bytes: {} address {:#x} {}", what, bytes, space_name(space), address,
                                    describe(context, space, address, bytes)));
    return false;
  }
  if (kind == AccessKind::write && range && !range->writable) {
    context->grid().add(FindingKind::out_of_bounds, context, site,
                        fmt::format("{} of {} bytes at offset {} of {}, which is read-only", what, bytes,
                                    location->offset, range->name));
    return false;
  }
  return true;
}

bool check_alignment(ThreadContext* context, std::uint64_t address, std::size_t alignment, const char* what,
                     std::uint32_t site) {
  if (alignment == 0 || address % alignment == 0) return true;
  context->grid().add(FindingKind::misaligned, context, site,
                      fmt::format("{}: address {:#x} is not a multiple of {}", what, address, alignment));
  return false;
}

void check_mbarrier_overwrite(ThreadContext* context, const Location& location, std::size_t bytes, std::uint32_t site) {
  if (!location.block) return;
  const Mbarrier* mbarrier = location.block->mbarriers.overlapping(static_cast<std::uint32_t>(location.offset), bytes);
  if (!mbarrier) return;
  Block* owner = mbarrier->block;
  context->grid().add(FindingKind::mbarrier_misuse, context, site,
                      fmt::format("{} bytes written at shared address {:#x} overwrite the mbarrier at {:#x}", bytes,
                                  location.offset, mbarrier->offset),
                      &owner->threads[mbarrier->initialiser], mbarrier->init_site);
}

void check_access(ThreadContext* context, const Location& location, std::size_t bytes, const AccessTraits& traits,
                  std::uint32_t site) {
  if (location.local) {
    if (traits.reads) check_local(context, location, bytes, false, site);
    if (traits.writes) check_local(context, location, bytes, true, site);
    return;
  }
  if (traits.writes) check_mbarrier_overwrite(context, location, bytes, site);
  Checker* checker = context->checker();
  if (!checker || !location.region) return;
  const Agent agent = context->agent();
  Access access;
  access.agent = agent;
  access.issuer = agent;
  access.write = traits.writes;
  access.atomic = traits.semantics != Semantics::weak;
  access.updates = traits.reads && traits.writes;
  access.site = site;
  access.load = traits.load;
  checker->access(location.region, location.offset, bytes, access);
  if (!access.atomic) return;
  const Semantics semantics = traits.semantics;
  const bool both = semantics == Semantics::acq_rel || semantics == Semantics::seq_cst;
  checker->atomic_access(agent, location.region, location.offset, traits.reads, traits.writes,
                         traits.reads && (both || semantics == Semantics::acquire),
                         traits.writes && (both || semantics == Semantics::release));
}

void finish_loads(ThreadContext* context) {
  if (context->unused_loads == 0) return;
  context->checker()->finish_loads(context->agent());
  context->unused_loads = 0;
}

extern "C" {

std::uint8_t* att_access(ThreadContext* context, std::uint64_t address, std::uint32_t access, std::uint32_t site) {
  const bool write = (access & 0xF) == static_cast<std::uint32_t>(AccessKind::write);
  const auto space = static_cast<AddressSpace>(access >> 4 & 0xF);
  const std::size_t bytes = access >> 16 & 0xFF;
  const std::uint32_t alignment = access >> 24;
  const char* what = write ? "store" : "load";
  Grid& grid = context->grid();
  Location location;
  if (!check_alignment(context, address, alignment, what, site) ||
      !locate(context, space, address, bytes, write ? AccessKind::write : AccessKind::read, what, site, &location)) {
    return grid.scratch();
  }
  if (write) grid.progress();
  AccessTraits traits{.reads = !write, .writes = write, .semantics = static_cast<Semantics>(access >> 8 & 0xF)};
  if (Checker* checker = context->checker(); checker && location.block && (access & kMayBeLate) != 0) {
    traits.load = checker->begin_load();
    context->unused_loads = checker->fill(context->agent(), site, traits.load);
  }
  check_access(context, location, bytes, traits, site);
  return location.host;
}

void att_loads_used(ThreadContext* context, const std::uint32_t* sites, std::uint32_t count) {
  Checker* checker = context->checker();
  if (!checker) return;
  for (std::uint32_t i = 0; i < count; ++i) context->unused_loads = checker->use(context->agent(), sites[i]);
}

std::uint64_t att_cvta_to(ThreadContext*, std::uint64_t generic, AddressSpace space, std::uint32_t) {
  std::uint64_t address = generic;
  const AddressSpace actual = resolve_generic(&address);
  // An address of another space gives one that lies nowhere, so that its use is found.
  switch (space) {
    case AddressSpace::shared:
    case AddressSpace::shared_cluster: return actual == AddressSpace::shared_cluster ? address : 0;
    case AddressSpace::local: return actual == AddressSpace::local ? address : 0xFFFFFFFF;
    default: return generic;
  }
}

std::uint64_t att_cvta_from(ThreadContext*, std::uint64_t address, AddressSpace space) {
  switch (space) {
    case AddressSpace::shared:
    case AddressSpace::shared_cluster: return kSharedWindow | (address & 0xFFFFFFFF);
    case AddressSpace::local: return kLocalWindow | (address & 0xFFFFFFFF);
    default: return address;
  }
}

std::uint32_t att_is_space(ThreadContext* context, std::uint64_t generic, AddressSpace space) {
  std::uint64_t address = generic;
  const AddressSpace actual = resolve_generic(&address);
  switch (space) {
    case AddressSpace::shared:
      return actual == AddressSpace::shared_cluster &&
             (address >> 24 == 0 || address >> 24 == context->block->rank + 1);
    case AddressSpace::shared_cluster: return actual == AddressSpace::shared_cluster;
    case AddressSpace::local: return actual == AddressSpace::local;
    case AddressSpace::constant: {
      const MemoryRange* range = context->grid().plan().ranges.find(generic, 1);
      return range && range->constant;
    }
    default: return actual == AddressSpace::global;
  }
}

std::uint32_t att_mapa(ThreadContext* context, std::uint32_t shared, std::uint32_t rank, std::uint32_t site) {
  const std::size_t ranks = context->block->cluster->blocks.size();
  if (rank >= ranks) {
    context->grid().add(FindingKind::bad_operand, context, site,
                        fmt::format("mapa: rank {} in a cluster of {} blocks", rank, ranks));
  }
  return (rank + 1) << 24 | (shared & 0xFFFFFF);
}

std::uint32_t att_getctarank(ThreadContext* context, std::uint32_t shared_cluster) {
  return shared_cluster >> 24 == 0 ? context->block->rank : (shared_cluster >> 24) - 1;
}

}  // extern "C"

}  // namespace attune::emulator
