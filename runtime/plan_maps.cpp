#include "runtime/plan_maps.h"

#include <atomic>

#include "base/error.h"

namespace attune::runtime {
namespace {

// Any address will do for a map whose base is replaced before use; it is never read through.
const void* const kNowhere = reinterpret_cast<const void*>(std::uintptr_t{1} << 32);

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> ids{0};
  return ++ids;
}

}  // namespace

PlanMaps::PlanMaps(Device& device, const Problem& problem, const codegen::LaunchShape& shape,
                   std::initializer_list<Operand> operands)
    : device_(device), problem_(problem), shape_(shape), id_(next_id()) {
  for (const Operand operand : operands) {
    std::optional<TensorMap>& map = prebuilt_[static_cast<std::size_t>(operand)];
    try {
      device.encode(geometry(problem_, shape_, operand, default_strides(problem_, operand)), kNowhere, &map.emplace());
    } catch (const Error&) {
      map.reset();
    }
  }
}

PlanMaps::Memo& PlanMaps::of_this_thread() const {
  // A few plans take turns in a model's passes; more than eight share places and re-encode.
  thread_local std::array<Memo, 8> memos;
  Memo& memo = memos[id_ % memos.size()];
  if (memo.plan != id_) {
    memo.plan = id_;
    memo.known = {};
  }
  return memo;
}

void PlanMaps::update(Memo& memo, Operand operand, const void* base, const Strides& strides) const {
  const auto i = static_cast<std::size_t>(operand);
  check_base(operand, base);
  if (memo.known[i] && memo.strides[i] == strides) [[likely]] {
    if (memo.base[i] == base) return;
    memo.known[i] = false;  // in case the next call throws
    device_.replace_base(&memo.map[i], base);
  } else if (strides == Strides{} && prebuilt_[i]) {
    memo.known[i] = false;
    memo.map[i] = *prebuilt_[i];
    device_.replace_base(&memo.map[i], base);
  } else {
    memo.known[i] = false;
    const Strides resolved = resolve_strides(problem_, operand, strides);
    device_.encode(geometry(problem_, shape_, operand, resolved), base, &memo.map[i]);
  }
  memo.base[i] = base;
  memo.strides[i] = strides;
  memo.known[i] = true;
}

void PlanMaps::check(Memo& memo, Operand operand, const void* base, const Strides& strides) const {
  const auto i = static_cast<std::size_t>(operand);
  check_base(operand, base);
  if (memo.known[i] && memo.strides[i] == strides) [[likely]]
    return;
  check_strides(problem_, operand, resolve_strides(problem_, operand, strides));
  memo.strides[i] = strides;
  memo.known[i] = true;
}

}  // namespace attune::runtime
