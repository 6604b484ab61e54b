#include "runtime/workspace_pool.h"

#include "base/error.h"

namespace attune::runtime {
namespace {

// Handles with a meaning of their own in CUDA: both spellings of the default stream, and the calling thread's one.
constexpr std::uintptr_t kLegacy = 1;
constexpr std::uintptr_t kPerThread = 2;

// The same for every launch on the same stream, never 0, distinct for distinct streams. One handle stands for as many
// streams as there are threads; those get a number a thread, with low bits that no real handle (a pointer) has.
std::uintptr_t stream_key(Stream stream) {
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  if (handle == 0) return kLegacy;
  if (handle != kPerThread) return handle;
  static std::atomic<std::uintptr_t> threads{0};
  thread_local const std::uintptr_t thread = ++threads;
  return thread << 3 | kPerThread;
}

std::size_t hash(std::uintptr_t key) {
  return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ull) >> 52) % WorkspacePool::kStreams;
}

}  // namespace

WorkspacePool::WorkspacePool(Device& device) : device_(device), memory_(device, kBytes * (kStreams + kCaptures)) {
  device.fill8(memory_.data(), 0, memory_.size(), nullptr);
  device.synchronize(nullptr);
}

void* WorkspacePool::acquire(Stream stream) {
  std::size_t slot = 0;
  if (device_.capturing(stream)) [[unlikely]] {
    // Counted up to the limit only, so that it never wraps around to pieces that graphs hold.
    std::size_t taken = captures_.load(std::memory_order_relaxed);
    do {
      if (taken == kCaptures) {
        fail(ErrorCode::out_of_memory,
             "workspace: {} captured launches have taken all of the runtime's (pass a workspace for each)", kCaptures);
      }
    } while (!captures_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
    slot = kStreams + taken;
  } else {
    slot = slot_of(stream);
  }
  return static_cast<std::byte*>(memory_.data()) + slot * kBytes;
}

std::size_t WorkspacePool::slot_of(Stream stream) {
  const std::uintptr_t key = stream_key(stream);
  std::size_t slot = hash(key);
  for (std::size_t probed = 0; probed < kStreams; ++probed, slot = (slot + 1) % kStreams) {
    std::uintptr_t owner = streams_[slot].load(std::memory_order_relaxed);
    if (owner == key) return slot;
    // Nothing is published through the table but the handle itself, so no ordering is needed.
    if (owner == 0 && streams_[slot].compare_exchange_strong(owner, key, std::memory_order_relaxed)) return slot;
    if (owner == key) return slot;
  }
  fail(ErrorCode::out_of_memory, "workspace: {} streams have taken all of the runtime's (pass a workspace)", kStreams);
}

}  // namespace attune::runtime
