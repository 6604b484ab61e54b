// Instructions that the lanes of a warp, or the four warps of a warpgroup, execute together.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace attune::emulator {

struct Block;
struct ThreadContext;

/// What the lanes of a warp or a warpgroup brought to one instruction.
struct Gathering {
  ThreadContext* threads;              ///< of its first lane; the others follow
  std::uint32_t size;                  ///< 32 or 128
  std::uint32_t site;                  ///< of the first lane that is there
  std::array<std::uint32_t, 4> lanes;  ///< bit masks of who is there, a warp each

  bool has(std::uint32_t lane) const { return (lanes[lane / 32] >> lane % 32 & 1) != 0; }
  ThreadContext* thread(std::uint32_t lane) const;
  /// What the lane passed; lies on its stack and stays valid until the instruction is done. Null for lanes not there.
  template <typename T>
  T* operand(std::uint32_t lane) const {
    return static_cast<T*>(operand_of(lane));
  }

 private:
  void* operand_of(std::uint32_t lane) const;
};

/// Does the work of all lanes; called once, when the last one has come, on that one's fibre; must not wait. True: all
/// go on. False: they keep waiting for something else, `perform` has set their ThreadContext::wait, and who ends that
/// wait wakes them (Grid::wake).
using Perform = bool (*)(Gathering& gathering);

/// .sync with a member mask: waits until every lane of the mask that has not exited is at an instruction of the same
/// kind, qualifiers (`key`: two instructions match if theirs is equal) and mask. `what` is a literal naming the
/// instruction.
void gather_masked(ThreadContext* context, const char* what, std::uint32_t key, std::uint32_t mask, std::uint32_t site,
                   void* operand, Perform perform);
/// .aligned: all lanes of the warp at this very instruction. Exited lanes are a divergence unless `exited_allowed`.
void gather_warp(ThreadContext* context, const char* what, std::uint32_t site, void* operand, Perform perform,
                 bool exited_allowed = false);
/// .aligned over a warpgroup. Lanes that have exited or do not exist are a divergence; the others go on without them.
void gather_warpgroup(ThreadContext* context, const char* what, std::uint32_t site, void* operand, Perform perform);

/// A rendezvous that some lanes have come to and others have not yet.
struct OpenRendezvous {
  const char* what;
  std::uint64_t key;
  std::array<std::uint32_t, 4> wanted;
  std::array<std::uint32_t, 4> arrived;
  std::uint32_t site;
  bool exited_allowed;
  Perform perform;
};
/// Those of one warp or one warpgroup.
struct Rendezvous {
  std::vector<OpenRendezvous> open;
};
struct RendezvousLane {
  void* operand = nullptr;
};
/// After a thread has exited: what waited for it alone goes on.
void rendezvous_exit(ThreadContext* context);
/// "vote.sync with threads 3-5 (warp 0)": what a thread waits for.
std::string rendezvous_text(const ThreadContext* context);
/// Findings about what can never be complete, when no thread of the block can go on.
void report_incomplete(const Block* block);

}  // namespace attune::emulator
