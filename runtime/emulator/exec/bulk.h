// Bulk copies: what contiguous and tensor ones have in common. An instruction becomes one operation, or with multicast
// one for each block that receives.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/emulator/exec/async.h"
#include "runtime/emulator/exec/async_access.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/exec/operation_groups.h"
#include "runtime/emulator/exec/tensor_map.h"

namespace attune::emulator {

/// Bulk groups of one thread. Their reads of the source and the whole of them complete at different times.
class BulkGroups final : public Extension {
 public:
  OperationGroups groups;
  Agent reading, complete;

  static BulkGroups& of(ThreadContext* context);
  void thread_exits(ThreadContext* thread, std::uint32_t site) override;

  std::uint32_t last_site = 0;  ///< of the last operation
};

/// An mbarrier that is credited when a copy is complete.
struct BulkSignal {
  Block* block = nullptr;
  std::uint32_t offset = 0;
};

class BulkOperation : public AsyncOperation {
 public:
  BulkOperation(ThreadContext* context, std::uint32_t site)
      : AsyncOperation(context->block), issue_(context, site, Proxy::async) {}

 protected:
  const AsyncIssue& issue() const { return issue_; }
  /// The agent of copies that complete on this mbarrier, with the phase that they complete now; false after a finding.
  /// The mbarrier remembers the copy.
  bool agent_of(const BulkSignal& signal, const char* what, Agent* agent, std::uint32_t* epoch) const;

 private:
  AsyncIssue issue_;
};

/// Submits it, as part of the thread's open bulk group if it has no mbarrier.
void submit_bulk(ThreadContext* context, std::shared_ptr<BulkOperation> operation, bool in_group, std::uint32_t site);

/// A block has ended, and all that was issued has run: copies into its shared memory that none of its threads waited
/// for could still have been on their way, and so could copies from it to other blocks' that none of its threads has
/// learned the end of.
void report_unawaited_copies(const Block& block);

/// The blocks that receive: that of the destination, or those of the multicast mask. Empty after a finding.
struct BulkDestination {
  Location location;
  BulkSignal signal;
};
std::vector<BulkDestination> bulk_destinations(ThreadContext* context, const BulkInfo& info,
                                               const BulkOperands& operands, std::size_t bytes, std::uint32_t alignment,
                                               std::uint32_t site);

/// Combines elements in memory: destination = destination op source.
struct Reduction {
  AtomicOp op;
  AtomicType type;
  void operator()(std::uint8_t* destination, const std::uint8_t* source, std::uint32_t bytes) const;
};
/// Nothing if the type has no such reduction.
std::optional<Reduction> find_reduction(BulkInfo::Reduce reduce, AtomicType type);
const char* reduce_name(BulkInfo::Reduce reduce);

/// The tensor forms; operands not yet checked.
void tensor_copy(ThreadContext* context, const BulkInfo& info, const BulkOperands& operands, std::uint32_t site);

}  // namespace attune::emulator
