// How asynchronous operations tell the checker what they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

/// The issue of an operation: who, where, and what that thread knew then.
class AsyncIssue {
 public:
  AsyncIssue(ThreadContext* context, std::uint32_t site, Proxy proxy) : context_(context), site_(site), proxy_(proxy) {
    // An operation that runs at once needs no copy of what the thread knows.
    Checker* checker = context->checker();
    if (checker != nullptr && context->grid().seeded()) known_ = checker->snapshot(context->agent());
  }

  ThreadContext* context() const { return context_; }
  Grid& grid() const { return context_->grid(); }
  std::uint32_t site() const { return site_; }

  void read(const Location& location, std::size_t bytes, Agent agent, std::uint32_t epoch) const {
    record(location, bytes, agent, epoch, false, false);
  }
  void write(const Location& location, std::size_t bytes, Agent agent, std::uint32_t epoch) const {
    record(location, bytes, agent, epoch, true, false);
  }
  /// Reads and writes as one.
  void update(const Location& location, std::size_t bytes, Agent agent, std::uint32_t epoch) const {
    record(location, bytes, agent, epoch, true, true);
  }

 private:
  void record(const Location& location, std::size_t bytes, Agent agent, std::uint32_t epoch, bool write,
              bool atomic) const {
    Checker* checker = context_->checker();
    if (checker == nullptr || location.region == nullptr || bytes == 0) return;
    Access access;
    access.agent = agent;
    access.epoch = epoch;
    access.issuer = context_->agent();
    access.proxy = proxy_;
    access.write = write;
    access.atomic = atomic;
    access.updates = atomic;
    access.site = site_;
    checker->access(location.region, location.offset, bytes, access, known_.get());
  }

  ThreadContext* context_;
  std::uint32_t site_;
  Proxy proxy_;
  std::shared_ptr<const SyncState> known_;
};

}  // namespace attune::emulator
