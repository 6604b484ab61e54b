// Tile counters for launches whose caller passes no workspace.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/device.h"

namespace attune::runtime {

/// Pieces of zeroed device memory: one for each stream, found without a lock, and a fresh one for each captured launch.
///
/// Launches on one stream run one after another and leave the counter zero, so they may share a piece. A captured
/// launch may be replayed on any stream beside others, so its piece is its own for ever. Nothing is given back: a
/// stream's handle keeps its piece after the stream was destroyed, which serves the next stream of that handle (the
/// driver reuses a handle only after the old stream's work is done).
///
/// The stream table is open addressing over atomic handles: a claim is one compare-and-swap, a look-up usually one
/// load.
class WorkspacePool {
 public:
  static constexpr std::size_t kBytes = 8;  ///< a piece
  static constexpr std::size_t kStreams = 4096;
  static constexpr std::size_t kCaptures = 131072 - kStreams;

  /// Allocates 1 MiB and zeroes it. The device must outlive the pool.
  explicit WorkspacePool(Device& device);

  /// The piece for a launch on this stream now; safe from any thread. Asks the device whether the stream is being
  /// captured. Throws Error(out_of_memory) if all pieces of that kind are taken: the caller must pass a workspace.
  void* acquire(Stream stream);

  /// Which piece a stream has, by handle alone. Public for tests.
  std::size_t slot_of(Stream stream);

 private:
  Device& device_;
  DeviceBuffer memory_;
  std::array<std::atomic<std::uintptr_t>, kStreams> streams_{};
  std::atomic<std::size_t> captures_{0};
};

}  // namespace attune::runtime
