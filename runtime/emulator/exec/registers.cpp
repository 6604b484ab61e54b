#include "runtime/emulator/exec/registers.h"

#include <fmt/format.h>

#include <bit>

#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

constexpr std::uint32_t kLeast = 24, kMost = 256, kMultiple = 8;

/// What each lane brings.
struct Request {
  bool increase;
  std::uint32_t count;
  std::uint32_t site;
};

std::uint32_t needed(const Warpgroup& group, std::uint32_t count) { return (count - group.registers) * kWarpgroupSize; }

void report(ThreadContext* thread, const Request& request, const std::string& text) {
  thread->grid().add(FindingKind::register_pool, thread, request.site,
                     fmt::format("setmaxnreg.{} {}: {}", request.increase ? "inc" : "dec", request.count, text));
}

bool check(ThreadContext* thread, const Request& request, std::uint32_t now) {
  if (request.count < kLeast || request.count > kMost || request.count % kMultiple != 0) {
    report(thread, request, fmt::format("allowed are multiples of {} from {} to {}", kMultiple, kLeast, kMost));
  } else if (request.increase && request.count < now) {
    report(thread, request, fmt::format("the warpgroup has {} registers a thread, which is more", now));
  } else if (!request.increase && request.count > now) {
    report(thread, request, fmt::format("the warpgroup has {} registers a thread, which is less", now));
  } else {
    return true;
  }
  return false;
}

void serve(Block* block) {
  RegisterPool& pool = block->registers;
  while (!pool.waiting.empty()) {
    const RegisterRequest request = pool.waiting.front();
    Warpgroup& group = block->warpgroups[request.warpgroup];
    if (needed(group, request.count) > pool.free) return;
    pool.free -= needed(group, request.count);
    group.registers = request.count;
    pool.waiting.erase(pool.waiting.begin());
    block->grid->progress();
    const std::uint32_t first = request.warpgroup * kWarpgroupSize;
    for (std::uint32_t i = first; i < first + kWarpgroupSize && i < block->thread_count; ++i) {
      if (block->threads[i].wait.kind == Wait::Kind::register_pool) block->grid->wake(&block->threads[i]);
    }
  }
}

bool perform(Gathering& gathering) {
  std::uint32_t lane = 0;
  while (!gathering.has(lane)) ++lane;
  ThreadContext* first = gathering.thread(lane);
  const Request request = *gathering.operand<Request>(lane);
  Block* block = first->block;
  Warpgroup& group = first->warpgroup();
  if (!check(first, request, group.registers)) return true;
  for (std::uint32_t other = lane; other < gathering.size; ++other) {
    const auto* own = gathering.operand<Request>(other);
    if (own && own->count != request.count) {
      report(gathering.thread(other), *own, fmt::format("other threads of the warpgroup ask for {}", request.count));
      return true;
    }
  }
  if (!request.increase) {
    block->registers.free += (group.registers - request.count) * kWarpgroupSize;
    group.registers = request.count;
    serve(block);
    return true;
  }
  block->registers.waiting.push_back({group.index, request.count, request.site});
  for (; lane < gathering.size; ++lane) {
    if (!gathering.has(lane)) continue;
    gathering.thread(lane)->wait = {
        .kind = Wait::Kind::register_pool, .site = request.site, .id = request.count, .what = "setmaxnreg.inc"};
  }
  serve(block);
  return first->wait.kind == Wait::Kind::none;
}

}  // namespace

std::string register_shortage(const Block& block, const RegisterRequest& request) {
  return fmt::format("needs {} registers more, {} of the block's pool are free",
                     needed(block.warpgroups[request.warpgroup], request.count), block.registers.free);
}

extern "C" {

void att_setmaxnreg(ThreadContext* context, std::uint32_t increase, std::uint32_t count, std::uint32_t site) {
  Request request{increase != 0, count, site};
  gather_warpgroup(context, increase ? "setmaxnreg.inc" : "setmaxnreg.dec", site, &request, perform);
}

}  // extern "C"

}  // namespace attune::emulator
