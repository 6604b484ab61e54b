// The cache of compiled kernels, measured trials and what follows from them: one SQLite file on local disk.
//
// It knows nothing of attention: keys, problems, configs and environments are opaque texts, cubins are opaque bytes.
// What enters a key is written down in cache/KEY.md.
//
// Faults. No function throws for a fault of the file system or of the database, unless it says so (the maintenance
// functions do). A fault is a miss: it is counted, the warn callback hears of it once for each kind of fault, and what
// could not be stored on disk is kept in memory, where this Store still finds it; it is written to disk when the disk
// can be used again. A corrupt database is set aside under another name and a fresh one is made.
// Error(invalid_argument) is thrown for a malformed argument (a key that is not 64 hexadecimal digits and the like).
//
// Threads. A Store is a handle: copies share one connection, and every function may be called from any thread at any
// time. No lock of any kind is held between calls, so compile and measure between them as long as you like.
//
// Processes. Any number may use one directory. After fork() the child may go on using the Store; it reopens the file.
// Leases stay with the parent. Do not open the file with another copy of SQLite in the same process: POSIX drops all
// locks of a process on a file when any descriptor of it is closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/system.h"

namespace attune::cache {

class StoreImpl;

/// $ATTUNE_CACHE_DIR, else $XDG_CACHE_HOME/attune, else ~/.cache/attune; empty if none of them is set.
std::string default_directory();

struct Options {
  std::string directory = default_directory();     ///< made (0700) if missing; empty: memory only
  bool read_only = false;                          ///< never write to disk; what is put is kept in memory
  std::int64_t size_cap_bytes = 4ll << 30;         ///< of all cubins; the least recently used go first. 0: no cap
  std::chrono::milliseconds busy_timeout{2000};    ///< longest wait for another process's lock
  std::chrono::milliseconds retry_after{10000};    ///< after a fault the disk is left alone for so long
  std::chrono::hours rejection_lifetime{24 * 30};  ///< find_rejection forgets older ones
  /// Hears one line for each kind of fault, never more than once a kind; called without any lock held, from the
  /// thread that met the fault. It must not throw. Empty: silence.
  std::function<void(const std::string& message)> warn;
  System* system = nullptr;  ///< null: the real one. Must outlive the Store
};

/// Counters since this Store was opened. Those of a forked child start from the parent's.
struct Stats {
  std::int64_t hits = 0;         ///< find_kernel and winner that found something
  std::int64_t misses = 0;       ///< find_kernel and winner that found nothing
  std::int64_t corrupt = 0;      ///< rows whose digest did not match; each was deleted
  std::int64_t quarantined = 0;  ///< databases set aside
  std::int64_t faults = 0;       ///< operations that the disk refused
  std::int64_t memory_only = 0;  ///< writes that went to memory
  std::int64_t evicted = 0;      ///< kernels deleted to keep within the cap
  bool on_disk = false;          ///< false: nothing on disk is in use at this moment
};

// -- rows ---------------------------------------------------------------------------------------------------------
// Times are milliseconds since 1970.

struct Kernel {
  std::string build_key;  ///< 64 lower-case hexadecimal digits
  std::string cubin;      ///< bytes; verified against sha256 when found
  std::string sha256;     ///< of cubin
  std::string metadata;   ///< opaque text (JSON): launch shape, registers, ...; covered by a digest too
  std::int64_t created = 0;
  std::int64_t used = 0;  ///< last use, to the hour
};

/// A kernel without its bytes, for listings.
struct KernelRow {
  std::string build_key;
  std::string sha256;
  std::string metadata;
  std::int64_t bytes = 0;
  std::int64_t created = 0;
  std::int64_t used = 0;
};

/// A build that failed or was refused after building (spills, serialised wgmma).
struct Rejection {
  std::string build_key;
  std::string reason;
  std::string environment;
  std::int64_t time = 0;  ///< filled by the Store
};

enum class TrialStatus { ok, rejected, wrong, timeout, crashed };
const char* to_string(TrialStatus status) noexcept;

/// One measured config. Trials are appended and never changed.
struct Trial {
  std::string uid;       ///< filled by append_trial; equal in all caches that this trial was merged into
  std::string plan_key;  ///< 64 hexadecimal digits
  std::string problem;
  std::string config;       ///< in full, never an index
  std::string build_key;    ///< 64 hexadecimal digits, or empty if the source was never built
  std::string device;       ///< device identity
  std::string environment;  ///< driver, NVRTC, digest of templates and emitter
  std::string regime;       ///< "brief" (quick rounds), "burst" or "sustained"
  std::string session;      ///< one run of the tuner on one plan
  std::vector<double> samples;
  double median = 0;  ///< of samples; with low and high its interval. Required to be finite and ordered if status is ok
  double low = 0;
  double high = 0;
  std::string errors;  ///< error against the reference, opaque text (JSON)
  TrialStatus status = TrialStatus::ok;
  std::string reason;     ///< why it is not ok
  std::int64_t time = 0;  ///< filled by append_trial
};

/// A config that a plan may use. Derived from trials by the view `standings`; see cache/KEY.md for the rules.
struct Standing {
  std::string config;
  std::string build_key;
  double median = 0;
  double low = 0;
  double high = 0;
  bool tied = false;  ///< not clearly slower than the fastest: its low is at most the fastest's high
  std::string uid;    ///< of the trial that it stands on
};

struct Winner {
  std::string plan_key;
  std::string problem;
  std::string config;
  std::string build_key;
  std::string device;
  std::string environment;  ///< if it differs from today's (driver, NVRTC), race the tie set again
  std::string regime;
  std::string session;
  std::string errors;
  double median = 0;
  double low = 0;
  double high = 0;
  std::int64_t time = 0;
  bool session_finished = false;  ///< false: a tuning run that is going on or was cut off
  std::vector<Standing> tie_set;  ///< the winner first, then by median; at least the winner
};

struct PlanRow {
  std::string plan_key;
  std::string problem;
  std::string device;
  std::int64_t trials = 0;
  std::int64_t ok = 0;
  std::int64_t last = 0;
};

/// A build that hung or crashed in an environment.
struct Quarantine {
  std::string build_key;
  std::string environment;
  std::string config;
  std::string reason;
  std::int64_t time = 0;  ///< filled by the Store
};

/// A plan that was asked for and was not there.
struct Miss {
  std::string plan_key;
  std::string problem;
  std::int64_t count = 0;
  std::int64_t last = 0;
};

// -- leases -------------------------------------------------------------------------------------------------------

/// The right to compile one key, held by at most one thread of all processes. Released when destroyed; expires when
/// its owner dies (seen at once on the same machine) or its time passes. A forked child does not release it.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  bool held() const noexcept { return impl_ != nullptr; }
  void release() noexcept;
  /// Puts off the expiry. False if the lease was lost meanwhile (its time passed and another took it).
  bool renew(std::chrono::milliseconds lifetime);

 private:
  friend class StoreImpl;
  std::shared_ptr<StoreImpl> impl_;  // null: not held
  std::string key_;
  std::string token_;
  std::int64_t pid_ = 0;  // of the process that took it
};

/// What became of a key that one wants to compile. Exactly one of the four holds.
struct Claim {
  std::optional<Kernel> kernel;        ///< it is there (another process may have compiled it meanwhile)
  std::optional<Rejection> rejection;  ///< it is known to fail
  Lease lease;                         ///< held: compile, put_kernel or reject, then drop the lease
  bool timed_out = false;              ///< another process still compiles: compile without a lease, or give up
};

// -- maintenance --------------------------------------------------------------------------------------------------

struct MergeReport {
  std::int64_t kernels = 0;  ///< added rows
  std::int64_t trials = 0;
  std::int64_t others = 0;
  std::int64_t refused = 0;  ///< kernels and trials whose digest did not match
};

struct VerifyReport {
  std::vector<std::string> problems;  ///< empty: sound
  std::int64_t kernels = 0;           ///< checked
  std::int64_t trials = 0;
};

struct PruneOptions {
  std::optional<std::int64_t> keep_bytes;    ///< shrink to so many bytes of cubins, least recently used first
  std::optional<std::int64_t> unused_since;  ///< delete kernels whose last use is before this time
};

class Store {
 public:
  /// Opens or makes the cache. Does not throw for any state of the disk: see "Faults" above.
  static Store open(Options options = {});
  /// One that keeps everything in memory and ends with its last handle.
  static Store memory_only();

  // -- kernels

  /// The kernel if it is there and its digests match. A mismatch deletes it, counts it and is a miss.
  std::optional<Kernel> find_kernel(const std::string& build_key);
  /// Publishes a kernel; the first to publish a key wins, later ones are ignored. Forgets a rejection of that key and
  /// evicts if the cap is passed. True once it is on disk, false if it is in memory only.
  bool put_kernel(const std::string& build_key, const std::string& cubin, const std::string& metadata);
  /// Remembers that a build failed or was refused. `time` is set here. True once on disk.
  bool reject(const Rejection& rejection);
  std::optional<Rejection> find_rejection(const std::string& build_key);

  // -- one compile per key

  /// The lease if nobody holds it. Without a usable disk the lease excludes this process's threads only.
  /// `owner` is a text for listings ("attune tune, rank 3").
  std::optional<Lease> try_lease(const std::string& key, const std::string& owner, std::chrono::milliseconds lifetime);
  /// Returns when the kernel or a rejection is there (true), or nobody holds the lease any more or `timeout` has
  /// passed (false). Polls; holds no lock while it sleeps.
  bool wait_for_kernel(const std::string& build_key, std::chrono::milliseconds timeout);
  /// The whole protocol: find, else find the rejection, else take the lease, else wait and begin again. What comes
  /// back with a lease is certain not to have been published before the lease was taken.
  Claim claim(const std::string& build_key, const std::string& owner, std::chrono::milliseconds lifetime,
              std::chrono::milliseconds timeout);

  // -- trials and what follows from them

  /// Appends; uid and time are set here, and the uid is returned in `*uid` if given. True once it is committed to
  /// disk: from then on it survives kill -9 and loss of power.
  bool append_trial(const Trial& trial, std::string* uid = nullptr);
  /// All trials of a plan, in the order of time.
  std::vector<Trial> trials(const std::string& plan_key);
  /// Marks a session of a plan as complete: only then it outranks an older session that is complete.
  bool finish_session(const std::string& plan_key, const std::string& session);
  /// The session with the latest trial of this plan if it is not finished: go on with it after a kill.
  std::optional<std::string> unfinished_session(const std::string& plan_key);
  /// The best config by the rules of cache/KEY.md. An empty regime takes that of the latest session; if it has both,
  /// "sustained".
  std::optional<Winner> winner(const std::string& plan_key, const std::string& regime = {});
  /// All configs of the session that the winner comes from: the winner, the rest of the tie set, then the others, each
  /// by median. At most `limit`.
  std::vector<Standing> alternates(const std::string& plan_key, const std::string& regime = {}, std::size_t limit = 8);
  std::vector<PlanRow> list_plans();

  // -- quarantine and misses

  bool quarantine(const Quarantine& entry);
  /// The reason if this build hung or crashed in this environment.
  std::optional<std::string> quarantined(const std::string& build_key, const std::string& environment);
  /// Lifts the quarantine of a build in all environments. True if there was one.
  bool lift_quarantine(const std::string& build_key);
  bool note_miss(const std::string& plan_key, const std::string& problem);
  /// Most frequent first.
  std::vector<Miss> list_misses();
  bool forget_miss(const std::string& plan_key);

  // -- listings

  std::vector<KernelRow> list_kernels();  ///< most recently used first
  std::vector<Rejection> list_rejections();
  std::vector<Quarantine> list_quarantine();
  Stats stats();
  std::string directory();  ///< empty if memory only
  std::string file();       ///< the database; empty if memory only

  // -- maintenance. These throw Error(cache) if the disk or the database refuses.

  /// Union with another database file: adds what is missing here, changes nothing that is there. Doing it twice is
  /// doing it once. Rows of the other file whose digests do not match are refused and counted.
  MergeReport merge(const std::string& other_file);
  /// SQLite's integrity check and every digest. Changes nothing.
  VerifyReport verify();
  /// Number of kernels deleted. Trials stay.
  std::int64_t prune(const PruneOptions& options);
  /// Deletes kernels and rejections; with `trials_too` everything else as well.
  void clear(bool trials_too);

 private:
  explicit Store(std::shared_ptr<StoreImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<StoreImpl> impl_;
};

}  // namespace attune::cache
