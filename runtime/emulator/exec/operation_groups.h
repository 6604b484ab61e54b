// Groups of asynchronous operations that a thread commits and waits for: of cp.async and of bulk copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/emulator/exec/async.h"

namespace attune::emulator {

/// Operations have an epoch, which the checker knows them by; a group ends with an epoch.
class OperationGroups {
 public:
  /// Of operations that are issued now.
  std::uint32_t epoch() const { return epoch_; }
  void add(std::shared_ptr<AsyncOperation> operation) {
    open_.any = true;
    if (!operation->done()) open_.operations.push_back(std::move(operation));
  }
  /// Ends an epoch within a group: what was issued up to now can be known apart from what follows.
  std::uint32_t end_epoch() { return epoch_++; }
  void commit() {
    open_.epoch = end_epoch();
    committed_.push_back(std::exchange(open_, {}));
  }
  /// Finishes all committed groups but the last `pending`. The epoch up to which all is complete. With `read_only`,
  /// later waits count these groups again.
  std::uint32_t wait(AsyncQueue* queue, std::size_t pending, bool read_only = false) {
    for (; committed_.size() - finished_ > pending; ++finished_) {
      Group& group = committed_[finished_];
      for (const std::shared_ptr<AsyncOperation>& operation : std::exchange(group.operations, {})) {
        queue->finish(operation.get());
      }
      group.any = false;
    }
    if (committed_.size() > pending) {
      const std::size_t covered = committed_.size() - pending;
      if (read_only) return committed_[covered - 1].epoch;
      complete_ = committed_[covered - 1].epoch;
      committed_.erase(committed_.begin(), committed_.begin() + static_cast<std::ptrdiff_t>(covered));
      finished_ -= covered;
    }
    return complete_;
  }
  /// Everything that was issued and has not run.
  std::vector<std::shared_ptr<AsyncOperation>> unfinished() const {
    std::vector<std::shared_ptr<AsyncOperation>> all;
    const auto append = [&](const Group& group) {
      for (const std::shared_ptr<AsyncOperation>& operation : group.operations) {
        if (!operation->done()) all.push_back(operation);
      }
    };
    for (const Group& group : committed_) append(group);
    append(open_);
    return all;
  }
  /// How many groups with operations, the open one among them, no wait of either kind covers.
  std::size_t not_waited_for() const {
    std::size_t count = open_.any ? 1 : 0;
    for (const Group& group : committed_) count += group.any ? 1 : 0;
    return count;
  }

 private:
  struct Group {
    std::uint32_t epoch = 0;
    bool any = false;  ///< operations that no wait covers
    std::vector<std::shared_ptr<AsyncOperation>> operations;
  };
  std::deque<Group> committed_;  ///< that no full wait covers
  std::size_t finished_ = 0;     ///< of those, from the front
  Group open_;
  std::uint32_t epoch_ = 1;
  std::uint32_t complete_ = 0;
};

}  // namespace attune::emulator
