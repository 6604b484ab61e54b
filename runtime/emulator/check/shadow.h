// Shadow memory: for each byte of a block's shared memory or a global allocation whether it was written, and for each 4
// bytes who accessed it last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/emulator/check/clock.h"

namespace attune::emulator {

class Checker;

/// Pages of it are made when they are first needed. Belongs to the owner of the memory; a checker that meets it for the
/// first time forgets the accesses that it holds.
class ShadowRegion {
 public:
  /// `name` as findings say it before " at offset 0x400 (1024)": "shared memory", "global allocation of 4096 bytes".
  ShadowRegion(std::string name, ProxySpace space, std::size_t bytes, bool written);
  ~ShadowRegion();
  ShadowRegion(const ShadowRegion&) = delete;
  ShadowRegion& operator=(const ShadowRegion&) = delete;

  const std::string& name() const { return name_; }
  ProxySpace space() const { return space_; }
  std::size_t bytes() const { return bytes_; }
  void mark_written(std::size_t offset, std::size_t bytes, bool written = true);
  /// Offset of the first byte in the range that was never written; offset + bytes if there is none.
  std::size_t first_unwritten(std::size_t offset, std::size_t bytes) const;

 private:
  friend class Checker;
  friend class AccessWalk;
  static constexpr std::size_t kPageBytes = 4096;
  /// Who accessed 4 bytes, as lists of access records (records.h); 0: nobody.
  struct Cell {
    std::uint32_t writes = 0;  ///< the last plain write of each byte
    std::uint32_t others = 0;  ///< reads and atomic writes since then
    bool operator==(const Cell&) const = default;
  };
  using Cells = std::array<Cell, kPageBytes / 4>;
  using Bits = std::array<std::uint64_t, kPageBytes / 64>;
  struct Page {
    std::unique_ptr<Cells> cells;
    std::unique_ptr<Bits> written;  ///< a bit a byte; null: as all_written says
    bool all_written = false;
  };

  std::string name_;
  ProxySpace space_;
  std::size_t bytes_;
  std::vector<Page> pages_;
  /// What was released through atomic locations, by offset.
  std::unordered_map<std::size_t, SyncState> released_;
  Checker* checker_ = nullptr;  ///< whose records the cells refer to
};

}  // namespace attune::emulator
