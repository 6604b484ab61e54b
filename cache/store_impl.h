// The Store's state and its policy for faults. The operations themselves (kernels.cpp, trials.cpp, ...) are written
// once against a Database and run on the disk's, or on one in memory that takes its place.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cache/database.h"
#include "cache/folder.h"
#include "cache/store.h"

namespace attune::cache {

class StoreImpl : public std::enable_shared_from_this<StoreImpl> {
 public:
  using Change = std::function<void(Database&)>;

  explicit StoreImpl(Options options);
  ~StoreImpl();
  StoreImpl(const StoreImpl&) = delete;
  StoreImpl& operator=(const StoreImpl&) = delete;

  /// Holds the Store for one operation. The warnings that arise are told after the lock is released, so that the
  /// callback may use the Store, or fork.
  class Use {
   public:
    explicit Use(StoreImpl& impl);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    StoreImpl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  // All of the following require a Use.

  /// Runs `change` in a transaction on disk (true), else in memory (false). It may run more than once.
  bool write(const Change& change);
  /// Runs `change` in a transaction on disk if that is possible now. Otherwise false.
  bool write_to_disk(const Change& change);
  /// In memory, for what is not worth writing down later.
  void write_to_memory(const Change& change);
  /// A small change that may as well be lost: tried without waiting and without synchronising.
  void try_to_write(const Change& change);
  /// Runs `query` on the disk's database if there is one, then on the one in memory if there is one. It may run
  /// more than once on the first.
  void read(const Change& query);
  /// Runs `query` on a database that has all trials of the plan.
  void read_plan(const std::string& plan_key, const Change& query);
  /// Runs `work` on the disk's database for a maintenance function; throws Error(cache) for any fault.
  void maintain(const Change& work, bool writing);

  std::int64_t now() { return system_.now_ms(); }
  /// Strictly increasing within this Store, so that trials of one session have an order.
  std::int64_t next_time();
  System& system() { return system_; }
  const Options& options() const { return options_; }
  const std::string& directory() const { return directory_; }
  const std::string& file() const { return file_; }
  bool on_disk() const { return disk_ != nullptr; }
  Stats& stats() { return stats_; }

  /// Token of the lease in `*token`, which is left empty if somebody else holds the key.
  void take_lease(const std::string& key, const std::string& owner, std::chrono::milliseconds lifetime,
                  std::string* token);
  void release_lease(const std::string& key, const std::string& token);
  bool renew_lease(const std::string& key, const std::string& token, std::chrono::milliseconds lifetime);
  /// Whether somebody who may be alive holds the key.
  bool is_leased(const std::string& key);
  Lease make_lease(const std::string& key, const std::string& token);

 private:
  enum class Warning { location, distrust, network, newer, read_only, busy, full, corrupt, io };
  class ForkGuard;

  void warn(Warning warning, const std::string& message);
  void warn_of(const Fault& fault);
  void enter_child();

  /// The disk's database, opened if need be; null while the disk is left alone.
  Database* disk_for_reading();
  Database* disk_for_writing();
  void open_disk();
  enum class Found { ours, later_version, nothing, empty, damaged, unusable };
  /// False if the file belongs to a later version and the next name has to be tried.
  bool open_file(const std::string& file);
  /// Opens the file if it is ours. Throws Fault.
  Found look_at(const std::string& file);
  /// Makes the file, or sets a damaged one aside first.
  Found make_or_mend(const std::string& file, const FolderLock& exclusive);
  std::unique_ptr<Database> connect(const std::string& file) const;
  void set_up(Database& database) const;
  /// False if the file of this name is another one by now. Requires the folder's exclusive lock.
  static bool set_aside(const std::string& file, ino_t damaged, std::int64_t time);
  /// Counts a fault, warns, and decides what becomes of the disk. True: worth trying again at once. Takes the folder's
  /// exclusive lock to set a damaged file aside, unless it is `held`.
  bool recover(const Fault& fault, bool writing, const FolderLock* held = nullptr);
  void leave_disk_alone();
  void leave_writing_alone();
  /// Write down what was kept in memory, and forget it there.
  void flush_rows(Database& disk);
  void flush_kernels(Database& disk);
  Database& memory();

  const Options options_;
  System& system_;
  std::mutex mutex_;
  pid_t pid_;
  std::string directory_;  // absolute; empty: memory only
  std::string file_;       // the one that was opened last
  ino_t inode_ = 0;        // of file_
  bool writable_ = false;  // not in read-only mode, and the folder may be written
  bool network_ = false;
  bool given_up_ = false;  // no disk until this Store is closed
  std::int64_t no_disk_until_ = 0;
  std::int64_t no_writing_until_ = 0;
  std::unique_ptr<Database> disk_;
  std::unique_ptr<Database> memory_;
  bool memory_has_rows_ = false;  // to be written down when the disk can be used again
  std::int64_t last_time_ = 0;
  Stats stats_;
  std::set<Warning> warned_;
  std::vector<std::string> to_tell_;
};

}  // namespace attune::cache
