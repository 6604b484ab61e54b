#include "cache/store_impl.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "cache/rows.h"
#include "cache/schema.h"

namespace attune::cache {
namespace {

// Damage once is an accident; damage again and again is a broken disk, and each file set aside takes room.
constexpr std::int64_t kMostDatabasesSetAside = 3;
constexpr int kMostFileNames = 9;

std::string file_name(const std::string& directory, int attempt) {
  const std::string suffix = attempt == 1 ? std::string() : fmt::format("-{}", attempt);
  return fmt::format("{}/cache-v{}{}.sqlite", directory, kSchemaVersion, suffix);
}

}  // namespace

// SQLite must not carry an open connection through fork(): the child would inherit its notes on locks, but not the
// locks. So all connections are closed before, and parent and child open anew when they next need one. Holding every
// Store's mutex meanwhile keeps other threads out of SQLite, whose own mutexes the child could never get again.
class StoreImpl::ForkGuard {
 public:
  static ForkGuard& instance() {
    static ForkGuard* const guard = new ForkGuard;  // never destroyed: a fork may come late
    return *guard;
  }
  void add(StoreImpl* impl) {
    const std::lock_guard lock(mutex_);
    stores_.insert(impl);
  }
  void remove(StoreImpl* impl) {
    const std::lock_guard lock(mutex_);
    stores_.erase(impl);
  }

 private:
  ForkGuard() { pthread_atfork(prepare, resume, resume); }
  static void prepare() {
    ForkGuard& guard = instance();
    guard.mutex_.lock();
    for (StoreImpl* impl : guard.stores_) {
      impl->mutex_.lock();
      impl->disk_.reset();
    }
  }
  static void resume() {
    ForkGuard& guard = instance();
    for (StoreImpl* impl : guard.stores_) impl->mutex_.unlock();
    guard.mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<StoreImpl*> stores_;
};

StoreImpl::StoreImpl(Options options)
    : options_(std::move(options)),
      system_(options_.system == nullptr ? real_system() : *options_.system),
      pid_(getpid()) {
  std::error_code error;
  if (!options_.directory.empty()) directory_ = std::filesystem::absolute(options_.directory, error).string();
  if (directory_.empty()) {
    given_up_ = true;
    warn(Warning::location, "no folder for the cache (none of ATTUNE_CACHE_DIR, XDG_CACHE_HOME, HOME is set)");
  }
  ForkGuard::instance().add(this);
}

StoreImpl::~StoreImpl() {
  ForkGuard::instance().remove(this);
  if (pid_ != getpid()) {
    static_cast<void>(disk_.release());  // the parent's, see enter_child
  } else if (memory_has_rows_) {
    no_disk_until_ = no_writing_until_ = 0;
    write_to_disk([](Database&) {});  // the last chance to write them down
  }
}

StoreImpl::Use::Use(StoreImpl& impl) : impl_(impl), lock_(impl.mutex_) {
  if (impl_.pid_ != getpid()) impl_.enter_child();
}

StoreImpl::Use::~Use() {
  const std::vector<std::string> messages = std::exchange(impl_.to_tell_, {});
  lock_.unlock();
  if (impl_.options_.warn) {
    for (const std::string& message : messages) impl_.options_.warn(message);
  }
}

void StoreImpl::enter_child() {
  pid_ = getpid();
  if (disk_) {
    // Whoever made this process went round the fork handlers. This connection can be neither used nor closed here.
    static_cast<void>(disk_.release());
    given_up_ = true;
    warn(Warning::io, "this process was made without fork(); it keeps its kernels in memory only");
  }
  // Leases in memory are the parent's threads'.
  if (memory_) write_to_memory([](Database& database) { database.execute("DELETE FROM leases"); });
}

void StoreImpl::warn(Warning warning, const std::string& message) {
  if (warned_.insert(warning).second) to_tell_.push_back("attune cache: " + message);
}

void StoreImpl::warn_of(const Fault& fault) {
  constexpr const char* kConsequence = "what cannot be stored is kept in memory";
  switch (fault.kind()) {
    case FaultKind::busy:
      return warn(Warning::busy, fmt::format("another process holds {} for longer than {} ms; {}: {}", directory_,
                                             options_.busy_timeout.count(), kConsequence, fault.what()));
    case FaultKind::full:
      return warn(Warning::full, fmt::format("the disk of {} is full; {}: {}", directory_, kConsequence, fault.what()));
    case FaultKind::read_only:
      return warn(Warning::read_only,
                  fmt::format("{} cannot be written; {}: {}", directory_, kConsequence, fault.what()));
    case FaultKind::corrupt: return warn(Warning::corrupt, fmt::format("{} is damaged: {}", file_, fault.what()));
    case FaultKind::io:
      return warn(Warning::io, fmt::format("{} cannot be used; {}: {}", directory_, kConsequence, fault.what()));
  }
}

std::int64_t StoreImpl::next_time() {
  last_time_ = std::max(now(), last_time_ + 1);
  return last_time_;
}

// -- opening

Database* StoreImpl::disk_for_reading() {
  if (given_up_) return nullptr;
  if (disk_ && disk_->moved()) disk_.reset();  // deleted, or set aside by another process
  if (!disk_ && now() >= no_disk_until_) {
    try {
      open_disk();
    } catch (const Fault& fault) {
      recover(fault, false);
    }
  }
  return disk_.get();
}

Database* StoreImpl::disk_for_writing() {
  if (options_.read_only || now() < no_writing_until_) return nullptr;
  if (disk_ && !writable_) disk_.reset();  // it was read-only some time ago; look again
  Database* disk = disk_for_reading();
  if (disk != nullptr && !writable_) {
    leave_writing_alone();
    return nullptr;
  }
  return disk;
}

void StoreImpl::open_disk() {
  if (!options_.read_only) {
    try {
      make_folder(directory_);
    } catch (const Fault& fault) {
      if (fault.kind() != FaultKind::read_only) throw;
    }
  }
  if (inode_of(directory_) == 0) {
    if (!options_.read_only) throw Fault(FaultKind::read_only, "the folder cannot be made");
    return leave_disk_alone();
  }
  if (const std::string reason = distrust(directory_); !reason.empty()) {
    given_up_ = true;
    return warn(Warning::distrust, fmt::format("{} is not used: {}", directory_, reason));
  }
  writable_ = !options_.read_only && may_write(directory_);
  if (!writable_ && !options_.read_only) {
    warn(Warning::read_only, fmt::format("{} is read-only: what is new is kept in memory", directory_));
  }
  network_ = system_.is_network_file_system(directory_);
  if (network_) {
    warn(Warning::network, fmt::format("{} lies on a network file system, where SQLite is slower and less safe; set "
                                       "ATTUNE_CACHE_DIR to a local disk",
                                       directory_));
  }
  for (int attempt = 1; attempt <= kMostFileNames; ++attempt) {
    if (open_file(file_name(directory_, attempt))) return;
  }
  leave_disk_alone();
}

// SQLite knows the files beside a database (WAL, shared memory, rollback journal) by name only. A connection that was
// opened just before its file was set aside would take the fresh database's for its own. So nothing is set aside while
// a file is opened, and what is set aside or made was seen under the lock that the change is made under.
bool StoreImpl::open_file(const std::string& file) {
  Found found = Found::damaged;
  try {
    const FolderLock lock(directory_, FolderLock::Mode::shared, writable_, options_.busy_timeout);
    found = look_at(file);
  } catch (const Fault& fault) {
    if (fault.kind() != FaultKind::corrupt || !writable_) throw;
  }
  const bool made = found == Found::ours || found == Found::later_version;
  if (writable_ && !made && found != Found::unusable) {
    const FolderLock lock(directory_, FolderLock::Mode::exclusive, writable_, options_.busy_timeout);
    found = make_or_mend(file, lock);
  }
  if (found == Found::nothing || found == Found::empty) leave_disk_alone();
  // It may have been made on a local disk and moved.
  if (found == Found::ours && network_ && writable_) disk_->execute("PRAGMA journal_mode=DELETE");
  return found != Found::later_version;
}

StoreImpl::Found StoreImpl::look_at(const std::string& file) {
  file_ = file;
  inode_ = inode_of(file);
  if (inode_ == 0) return Found::nothing;
  if (const std::string reason = distrust(file); !reason.empty()) {
    given_up_ = true;
    warn(Warning::distrust, fmt::format("{} is not used: {}", file, reason));
    return Found::unusable;
  }
  std::unique_ptr<Database> database = connect(file);
  switch (schema_state(*database)) {
    case SchemaState::ours: break;
    case SchemaState::newer:
      warn(Warning::newer, fmt::format("{} was made by a later version of attune and is left alone", file));
      return Found::later_version;
    case SchemaState::empty: return Found::empty;
    case SchemaState::foreign: throw Fault(FaultKind::corrupt, "it is not a cache");
  }
  if (writable_) {
    database->set_busy_timeout(std::chrono::milliseconds(0));
    try {
      renew_views(*database);
    } catch (const Fault&) {
      // Nothing here reads them, and the next who opens the file may succeed. What is damaged shows when it is read.
    }
    database->set_busy_timeout(options_.busy_timeout);
  }
  disk_ = std::move(database);
  return Found::ours;
}

StoreImpl::Found StoreImpl::make_or_mend(const std::string& file, const FolderLock& exclusive) {
  for (bool first = true;; first = false) {
    make_file(file);
    try {
      const Found found = look_at(file);
      if (found != Found::empty) return found;
      std::unique_ptr<Database> database = connect(file);
      set_up(*database);
      disk_ = std::move(database);
      return Found::ours;
    } catch (const Fault& fault) {
      if (fault.kind() != FaultKind::corrupt || !first) throw;
      if (!recover(fault, false, &exclusive)) return Found::unusable;
    }
  }
}

std::unique_ptr<Database> StoreImpl::connect(const std::string& file) const {
  if (writable_) return std::make_unique<Database>(file, Database::Access::write, options_.busy_timeout);
  try {
    auto database = std::make_unique<Database>(file, Database::Access::read, options_.busy_timeout);
    schema_state(*database);
    return database;
  } catch (const Fault& fault) {
    // In a folder that cannot be written SQLite cannot make the shared memory of a WAL. It can do without if nothing
    // changes the file and nothing is left in the WAL.
    if (fault.kind() == FaultKind::corrupt || size_of(file + "-wal") != 0) throw;
    return std::make_unique<Database>(file, Database::Access::immutable, options_.busy_timeout);
  }
}

void StoreImpl::set_up(Database& database) const {
  // The order matters: auto_vacuum can only be chosen before the first page is written. A file system that cannot share
  // memory refuses WAL by answering another mode.
  database.execute("PRAGMA auto_vacuum=INCREMENTAL");
  if (!network_) database.execute("PRAGMA journal_mode=WAL");
  create_schema(database);
}

bool StoreImpl::set_aside(const std::string& file, ino_t damaged, std::int64_t time) {
  if (inode_of(file) != damaged) return false;  // another process was faster
  const std::string other = fmt::format("{}.damaged-{}-{}", file, time, getpid());
  // The side files first: a fresh database must never meet the old one's.
  for (const char* suffix : {"-wal", "-shm", "-journal", ""}) {
    if (rename((file + suffix).c_str(), (other + suffix).c_str()) != 0 && errno != ENOENT) {
      raise_errno(errno, "cannot rename " + file + suffix);
    }
  }
  return true;
}

// -- faults

void StoreImpl::leave_disk_alone() {
  disk_.reset();
  no_disk_until_ = now() + options_.retry_after.count();
}

void StoreImpl::leave_writing_alone() { no_writing_until_ = now() + options_.retry_after.count(); }

bool StoreImpl::recover(const Fault& fault, bool writing, const FolderLock* held) {
  ++stats_.faults;
  if (fault.is_of(memory_.get())) return false;  // no reason to blame the disk
  warn_of(fault);
  if (fault.kind() != FaultKind::corrupt) {
    writing ? leave_writing_alone() : leave_disk_alone();
    return false;
  }
  disk_.reset();
  if (!writable_) {
    leave_disk_alone();
    return false;
  }
  if (stats_.quarantined >= kMostDatabasesSetAside) {
    given_up_ = true;
    return false;
  }
  try {
    std::optional<FolderLock> lock;
    if (held == nullptr) lock.emplace(directory_, FolderLock::Mode::exclusive, writable_, options_.busy_timeout);
    if (set_aside(file_, inode_, now())) ++stats_.quarantined;
  } catch (const Fault& next) {
    warn_of(next);
    leave_disk_alone();
    return false;
  }
  return true;
}

// -- reading and writing

Database& StoreImpl::memory() {
  if (!memory_) {
    memory_ = std::make_unique<Database>();
    create_schema(*memory_);
  }
  return *memory_;
}

void StoreImpl::flush_rows(Database& disk) {
  if (!memory_has_rows_) return;
  MergeReport report;
  Transaction transaction(disk);
  copy_trials(*memory_, disk, {}, &report);
  copy_finished(*memory_, disk, {}, &report);
  copy_others(*memory_, disk, &report);
  transaction.commit();
  memory_->execute(
      "DELETE FROM trials; DELETE FROM finished; DELETE FROM rejections; DELETE FROM quarantine; DELETE FROM misses");
}

void StoreImpl::flush_kernels(Database& disk) {
  if (!memory_has_rows_) return;
  for (const std::string& key : kernel_keys(*memory_)) {
    MergeReport report;
    Transaction transaction(disk);
    copy_kernel(*memory_, disk, key, &report);
    transaction.commit();
    Query(*memory_, "DELETE FROM kernels WHERE build_key = ?").bind(key).run();
  }
  memory_has_rows_ = false;
}

bool StoreImpl::write_to_disk(const Change& change) {
  bool committed = false;
  for (int attempt = 0; attempt < 2 && !committed; ++attempt) {
    Database* disk = disk_for_writing();
    if (disk == nullptr) break;
    try {
      flush_rows(*disk);
      Transaction transaction(*disk);
      change(*disk);
      transaction.commit();
      committed = true;
      flush_kernels(*disk);  // last, because they may not fit
    } catch (const Fault& fault) {
      if (!recover(fault, true)) break;
    }
  }
  return committed;
}

void StoreImpl::write_to_memory(const Change& change) {
  try {
    Transaction transaction(memory());
    change(memory());
    transaction.commit();
  } catch (const Fault&) {
    ++stats_.faults;  // memory ran out: the row is lost, which is a miss later
  }
}

bool StoreImpl::write(const Change& change) {
  if (write_to_disk(change)) return true;
  ++stats_.memory_only;
  memory_has_rows_ = true;
  write_to_memory(change);
  return false;
}

void StoreImpl::try_to_write(const Change& change) {
  Database* disk = disk_for_writing();
  if (disk == nullptr) return;
  try {
    disk->set_busy_timeout(std::chrono::milliseconds(0));
    disk->execute("PRAGMA synchronous=NORMAL");
    Transaction transaction(*disk);
    change(*disk);
    transaction.commit();
  } catch (const Fault&) {
    // Nothing depends on it. If the disk is at fault, the next operation that matters meets it too.
  }
  try {
    disk->set_busy_timeout(options_.busy_timeout);
    disk->execute("PRAGMA synchronous=FULL");
  } catch (const Fault& fault) {
    recover(fault, true);
  }
}

void StoreImpl::read(const Change& query) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    Database* disk = disk_for_reading();
    if (disk == nullptr) break;
    try {
      query(*disk);
      break;
    } catch (const Fault& fault) {
      if (!recover(fault, false)) break;
    }
  }
  if (!memory_) return;
  try {
    query(*memory_);
  } catch (const Fault&) {
    ++stats_.faults;
  }
}

void StoreImpl::read_plan(const std::string& plan_key, const Change& query) {
  // Usually nothing is in memory, and the disk has it all.
  if (!memory_has_rows_) return read(query);
  MergeReport report;
  read([&](Database& database) {
    if (&database != memory_.get()) {
      Transaction transaction(*memory_);
      copy_trials(database, *memory_, plan_key, &report);
      copy_finished(database, *memory_, plan_key, &report);
      transaction.commit();
    } else {
      query(database);
    }
  });
}

void StoreImpl::maintain(const Change& work, bool writing) {
  no_disk_until_ = 0;
  no_writing_until_ = 0;
  Database* disk = writing ? disk_for_writing() : disk_for_reading();
  if (disk == nullptr) {
    fail(ErrorCode::cache, "the cache {} cannot be {}", directory_.empty() ? "(no folder)" : directory_,
         writing ? "written" : "read");
  }
  try {
    if (writing) flush_rows(*disk);
    work(*disk);
  } catch (const Fault& fault) {
    recover(fault, writing);
    fail(ErrorCode::cache, "{}: {}", file_, fault.what());
  }
}

}  // namespace attune::cache
