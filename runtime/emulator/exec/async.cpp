#include "runtime/emulator/exec/async.h"

#include <iterator>
#include <utility>

#include "runtime/emulator/exec/random.h"

namespace attune::emulator {

namespace {

/// Those that finish() has run are forgotten at the latest when so many are kept.
constexpr std::size_t kManyPending = 256;

/// How long operations are held back differs from seed to seed: from hardly to until something needs them.
std::uint32_t odds_of(Random* random) {
  constexpr std::uint32_t kOdds[] = {2, 8, 64, 1024, 1u << 20};
  return kOdds[random->below(std::size(kOdds))];
}

}  // namespace

AsyncQueue::AsyncQueue(std::uint64_t seed) : eager_(seed == 0), random_(seed ^ 0xA5A5), odds_(odds_of(&random_)) {}

void AsyncQueue::submit(std::shared_ptr<AsyncOperation> operation) {
  if (eager_) {
    finish(operation.get());
  } else {
    if (pending_.size() >= kManyPending) forget_done();
    pending_.push_back(std::move(operation));
  }
}

void AsyncQueue::finish(AsyncOperation* operation) {
  if (operation->done_) return;
  operation->done_ = true;
  for (const std::shared_ptr<AsyncOperation>& earlier : operation->after) finish(earlier.get());
  operation->after.clear();
  operation->run();
}

void AsyncQueue::finish_block(const Block* block) {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i]->block() == block) finish(pending_[i].get());
  }
  forget_done();
}

bool AsyncQueue::run_one() {
  forget_done();
  if (pending_.empty()) return false;
  finish(pending_[random_.below(static_cast<std::uint32_t>(pending_.size()))].get());
  forget_done();
  return true;
}

void AsyncQueue::run_some() {
  if (!pending_.empty() && random_.below(odds_) == 0) run_one();
}

void AsyncQueue::forget_done() {
  std::erase_if(pending_, [](const std::shared_ptr<AsyncOperation>& operation) { return operation->done(); });
}

}  // namespace attune::emulator
