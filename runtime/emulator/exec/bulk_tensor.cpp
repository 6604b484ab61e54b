// cp.async.bulk.tensor and cp.reduce.async.bulk.tensor in tile mode.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/emulator/exec/bulk.h"

namespace attune::emulator {
namespace {

constexpr std::uint32_t kSharedAlignment = 128;
constexpr const char* kName = "cp.async.bulk.tensor";

std::optional<AtomicType> reduction_type(TensorType type) {
  switch (type) {
    case TensorType::u32: return AtomicType::u32;
    case TensorType::s32: return AtomicType::s32;
    case TensorType::u64: return AtomicType::u64;
    case TensorType::s64: return AtomicType::s64;
    case TensorType::f16: return AtomicType::f16;
    case TensorType::bf16: return AtomicType::bf16;
    case TensorType::f32:
    case TensorType::f32_ftz: return AtomicType::f32;
    case TensorType::f64: return AtomicType::f64;
    default: return std::nullopt;
  }
}

/// Accesses to the shared memory of a box: the whole of it, or where rows are padded the chunks that hold elements.
template <typename Record>
void for_each_shared_range(const TensorBox& box, const Location& location, const Record& record) {
  if (box.pitch() == box.row_bytes()) return record(location, box.span());
  const auto start = static_cast<std::uint32_t>(location.offset);
  for (std::uint32_t row = 0; row < box.rows(); ++row) {
    for (std::uint32_t at = 0; at < box.row_bytes(); at += kChunkBytes) {
      Location chunk = location;
      chunk.offset = swizzled(start + row * box.pitch() + at, box.map().swizzle);
      chunk.host = location.host + chunk.offset - location.offset;
      record(chunk, kChunkBytes);
    }
  }
}

/// Where shared address 0 of the block that holds a location lies.
std::uint8_t* shared_origin(const Location& location) { return location.host - location.offset; }

class TensorLoad final : public BulkOperation {
 public:
  TensorLoad(ThreadContext* context, const TensorBox& box, const BulkDestination& destination, std::uint32_t site)
      : BulkOperation(context, site), box_(box), destination_(destination) {}

 protected:
  void run() override {
    Agent agent;
    std::uint32_t epoch = 0;
    if (!agent_of(destination_.signal, kName, &agent, &epoch)) return;
    const Location& to = destination_.location;
    check_mbarrier_overwrite(issue().context(), to, box_.span(), issue().site());
    for_each_shared_range(
        box_, to, [&](const Location& location, std::size_t bytes) { issue().write(location, bytes, agent, epoch); });
    load_box(box_, shared_origin(to), static_cast<std::uint32_t>(to.offset),
             [&](std::uint64_t address, std::uint32_t bytes) -> const std::uint8_t* {
               Location from;
               if (!locate(issue().context(), AddressSpace::global, address, bytes, AccessKind::read,
                           "row of the tensor that cp.async.bulk.tensor reads", issue().site(), &from)) {
                 return nullptr;
               }
               issue().read(from, bytes, agent, epoch);
               return from.host;
             });
    mbarrier_complete_tx(issue().context(), destination_.signal.block, destination_.signal.offset, box_.bytes(),
                         issue().site());
  }

 private:
  TensorBox box_;
  BulkDestination destination_;
};

class TensorStore final : public BulkOperation {
 public:
  TensorStore(ThreadContext* context, const TensorBox& box, const Location& source,
              const std::optional<Reduction>& reduce, std::uint32_t site)
      : BulkOperation(context, site),
        box_(box),
        source_(source),
        reduce_(reduce),
        reading_(BulkGroups::of(context).reading),
        complete_(BulkGroups::of(context).complete),
        epoch_(BulkGroups::of(context).groups.epoch()) {}

 protected:
  void run() override {
    // Only what goes to memory need have been written: rows outside the tensor are left out.
    read_rows();
    store_box(
        box_, shared_origin(source_), static_cast<std::uint32_t>(source_.offset),
        [&](std::uint64_t address, std::uint32_t bytes) -> std::uint8_t* {
          Location to;
          if (!locate(issue().context(), AddressSpace::global, address, bytes, AccessKind::write,
                      "row of the tensor that cp.async.bulk.tensor writes", issue().site(), &to)) {
            return nullptr;
          }
          if (reduce_) {
            issue().update(to, bytes, complete_, epoch_);
          } else {
            issue().write(to, bytes, complete_, epoch_);
          }
          return to.host;
        },
        reduce_ ? Combine(*reduce_) : Combine());
  }

 private:
  void read_rows() {
    const auto start = static_cast<std::uint32_t>(source_.offset);
    const auto read = [&](std::uint32_t address, std::uint32_t bytes) {
      Location location = source_;
      location.offset = address;
      location.host = shared_origin(source_) + address;
      issue().read(location, bytes, reading_, epoch_);
    };
    // Whole rows that follow each other are one range: swizzles permute within it.
    std::uint32_t begin = 0, end = 0;
    for (std::uint32_t index = 0; index < box_.rows(); ++index) {
      const BoxRow row = box_.row(index);
      if (row.bytes == 0) continue;
      if (row.bytes == box_.pitch()) {
        if (row.shared != end) {
          if (end != begin) read(start + begin, end - begin);
          begin = row.shared;
        }
        end = row.shared + box_.pitch();
        continue;
      }
      for (std::uint32_t at = row.skipped / kChunkBytes * kChunkBytes; at < row.skipped + row.bytes;
           at += kChunkBytes) {
        const std::uint32_t first = std::max(at, row.skipped);
        const std::uint32_t last = std::min(at + kChunkBytes, row.skipped + row.bytes);
        read(swizzled(start + row.shared + at, box_.map().swizzle) + (first - at), last - first);
      }
    }
    if (end != begin) read(start + begin, end - begin);
  }

  TensorBox box_;
  Location source_;
  std::optional<Reduction> reduce_;
  Agent reading_, complete_;
  std::uint32_t epoch_;
};

void complain(ThreadContext* context, std::uint32_t site, const std::string& text) {
  context->grid().add(FindingKind::bad_operand, context, site, text);
}

/// The description in a map that the kernel names; nothing after a finding.
std::optional<TensorMapDescription> read_map(ThreadContext* context, std::uint64_t address, std::uint32_t site) {
  Location location;
  if (!check_alignment(context, address, kTensorMapAlignment, "tensor map", site) ||
      !locate(context, AddressSpace::generic, address, sizeof(TensorMap), AccessKind::read, "tensor map", site,
              &location)) {
    return std::nullopt;
  }
  check_access(context, location, sizeof(TensorMap), {.reads = true}, site);
  std::optional<TensorMapDescription> map = decode_tensor_map(location.host);
  if (!map) complain(context, site, fmt::format("the 128 bytes at {:#x} are not an encoded tensor map", address));
  return map;
}

}  // namespace

void tensor_copy(ThreadContext* context, const BulkInfo& info, const BulkOperands& operands, std::uint32_t site) {
  if (info.mode == BulkInfo::Mode::im2col) {
    return complain(context, site, "im2col copies need an im2col tensor map, and this one was encoded for tiles");
  }
  const std::optional<TensorMapDescription> map = read_map(context, operands.map, site);
  if (!map) return;
  if (map->rank != info.rank) {
    return complain(context, site,
                    fmt::format("{}: {} coordinates for a tensor map of rank {}", kName, info.rank, map->rank));
  }
  std::array<std::int32_t, 5> coordinates{};
  std::copy_n(operands.coordinates, info.rank, coordinates.begin());
  const TensorBox box(*map, coordinates);
  if (!box.starts_on_chunk() && info.direction != BulkInfo::Direction::prefetch) {
    return complain(
        context, site,
        fmt::format("{}: coordinate 0 is {}, {} bytes of {} (allowed: multiples of {} bytes)", kName, coordinates[0],
                    std::int64_t{coordinates[0]} * box.element_bytes(), tensor_type_name(map->type), kChunkBytes));
  }

  switch (info.direction) {
    case BulkInfo::Direction::prefetch: return;
    case BulkInfo::Direction::global_to_shared:
      for (const BulkDestination& destination :
           bulk_destinations(context, info, operands, box.span(), kSharedAlignment, site)) {
        submit_bulk(context, std::make_shared<TensorLoad>(context, box, destination, site), false, site);
      }
      return;
    case BulkInfo::Direction::shared_to_global: {
      std::optional<Reduction> reduce;
      if (info.reduce != BulkInfo::Reduce::none) {
        const std::optional<AtomicType> type = reduction_type(map->type);
        if (type) reduce = find_reduction(info.reduce, *type);
        if (!reduce) {
          return complain(context, site,
                          fmt::format("cp.reduce.async.bulk.tensor: .{} of elements of {} does not exist",
                                      reduce_name(info.reduce), tensor_type_name(map->type)));
        }
      }
      constexpr const char* kSource = "source of cp.async.bulk.tensor";
      Location source;
      if (!check_alignment(context, operands.source, kSharedAlignment, kSource, site) ||
          !locate(context, AddressSpace::shared, operands.source, box.span(), AccessKind::read, kSource, site,
                  &source)) {
        return;
      }
      submit_bulk(context, std::make_shared<TensorStore>(context, box, source, reduce, site), true, site);
      return;
    }
    case BulkInfo::Direction::shared_to_shared_cluster:
      return complain(context, site, fmt::format("{} between shared memories does not exist", kName));
  }
}

extern "C" {

void att_prefetch_tensormap(ThreadContext* context, std::uint64_t map, std::uint32_t site) {
  read_map(context, map, site);
}

}  // extern "C"

}  // namespace attune::emulator
