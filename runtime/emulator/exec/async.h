// Asynchronous operations between their issue and their completion.
//
// An operation's run() does all that it does at once: it reads, writes, and completes on its barrier or group. With
// seed 0 it runs when it is issued. With other seeds it runs some time later: when the scheduler's dice say so, when
// something needs it complete (finish(), from a wait_group), or when no thread can go on otherwise. So the same kernel
// sees copies that are there at once and copies that come as late as they may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/emulator/exec/random.h"

namespace attune::emulator {

struct Block;

class AsyncOperation {
 public:
  /// `block` is the issuer's: the operation is finished before that block's memory goes.
  explicit AsyncOperation(Block* block) : block_(block) {}
  virtual ~AsyncOperation() = default;

  Block* block() const { return block_; }
  /// Operations that must have run before it.
  std::vector<std::shared_ptr<AsyncOperation>> after;
  bool done() const { return done_; }

 protected:
  /// On whatever fibre or on the scheduler; must not wait. Threads of its block, the issuer too, may have exited.
  virtual void run() = 0;

 private:
  friend class AsyncQueue;
  Block* block_;
  bool done_ = false;
};

class AsyncQueue {
 public:
  /// `seed` 0: operations run when they are submitted.
  explicit AsyncQueue(std::uint64_t seed);

  void submit(std::shared_ptr<AsyncOperation> operation);
  /// Runs it now, unless it has run, after those that it depends on.
  void finish(AsyncOperation* operation);
  /// Runs everything that threads of this block have issued.
  void finish_block(const Block* block);
  /// Runs one of the pending operations; false if there is none.
  bool run_one();
  /// Perhaps runs one, as the seed wants it.
  void run_some();
  bool empty() const { return pending_.empty(); }

 private:
  void forget_done();

  bool eager_;
  Random random_;
  std::uint32_t odds_;  ///< run_some() runs one in so many times
  std::vector<std::shared_ptr<AsyncOperation>> pending_;
};

}  // namespace attune::emulator
