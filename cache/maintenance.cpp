// Merging, verifying, pruning, clearing.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "cache/folder.h"
#include "cache/rows.h"
#include "cache/schema.h"
#include "cache/store_impl.h"

namespace attune::cache {
namespace {

// Few enough that other processes are not kept waiting, many enough to share the cost of synchronising.
constexpr std::size_t kKernelsPerTransaction = 32;

std::unique_ptr<Database> open_other(const std::string& file, std::chrono::milliseconds busy_timeout) {
  if (inode_of(file) == 0) fail(ErrorCode::cache, "{}: there is no such file", file);
  SchemaState state{};
  std::unique_ptr<Database> database;
  try {
    try {
      database = std::make_unique<Database>(file, Database::Access::read, busy_timeout);
      state = schema_state(*database);
    } catch (const Fault& fault) {
      // As for the cache itself: a folder that cannot be written, and nothing left in a WAL.
      if (fault.kind() == FaultKind::corrupt || size_of(file + "-wal") != 0) throw;
      database = std::make_unique<Database>(file, Database::Access::immutable, busy_timeout);
      state = schema_state(*database);
    }
  } catch (const Fault& fault) {
    fail(ErrorCode::cache, "{}: {}", file, fault.what());
  }
  if (state == SchemaState::newer) fail(ErrorCode::cache, "{}: it was made by a later version of attune", file);
  if (state != SchemaState::ours) fail(ErrorCode::cache, "{}: it is not a cache", file);
  return database;
}

void copy_database(Database& from, Database& to, MergeReport* report) {
  {
    Transaction transaction(to);
    copy_trials(from, to, {}, report);
    copy_finished(from, to, {}, report);
    copy_others(from, to, report);
    transaction.commit();
  }
  const std::vector<std::string> keys = kernel_keys(from);
  for (std::size_t begin = 0; begin < keys.size(); begin += kKernelsPerTransaction) {
    Transaction transaction(to);
    const std::size_t end = std::min(keys.size(), begin + kKernelsPerTransaction);
    for (std::size_t i = begin; i < end; ++i) copy_kernel(from, to, keys[i], report);
    transaction.commit();
  }
}

// Gives freed pages back to the file system.
void give_back_space(Database& database) {
  database.execute("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)");
}

}  // namespace

MergeReport Store::merge(const std::string& other_file) {
  StoreImpl::Use use(*impl_);
  MergeReport report;
  impl_->maintain(
      [&](Database& disk) {
        if (inode_of(other_file) == inode_of(impl_->file())) return;
        const std::unique_ptr<Database> other = open_other(other_file, impl_->options().busy_timeout);
        try {
          copy_database(*other, disk, &report);
        } catch (const Fault& fault) {
          if (!fault.is_of(other.get())) throw;
          fail(ErrorCode::cache, "{}: {}", other_file, fault.what());
        }
        const std::int64_t cap = impl_->options().size_cap_bytes;
        if (cap <= 0) return;
        Transaction transaction(disk);
        impl_->stats().evicted += shrink_kernels(disk, cap);
        transaction.commit();
      },
      true);
  return report;
}

VerifyReport Store::verify() {
  StoreImpl::Use use(*impl_);
  VerifyReport report;
  impl_->maintain(
      [&](Database& disk) {
        try {
          Query check(disk, "PRAGMA integrity_check");
          while (check.step()) {
            if (check.text(0) != "ok") report.problems.push_back(check.text(0));
          }
          for (const std::string& key : kernel_keys(disk)) {
            const std::optional<FoundKernel> found = select_kernel(disk, key);
            ++report.kernels;
            if (!found || !found->sound) report.problems.push_back(fmt::format("kernel {}: digest mismatch", key));
          }
          std::vector<std::string> damaged;
          report.trials = static_cast<std::int64_t>(select_trials(disk, {}, &damaged).size() + damaged.size());
          for (const std::string& uid : damaged) {
            report.problems.push_back(fmt::format("trial {}: digest mismatch", uid));
          }
        } catch (const Fault& fault) {
          // Damage is what was asked for; the database stays where it is.
          if (fault.kind() != FaultKind::corrupt) throw;
          report.problems.push_back(fault.what());
        }
      },
      false);
  return report;
}

std::int64_t Store::prune(const PruneOptions& options) {
  StoreImpl::Use use(*impl_);
  std::int64_t deleted = 0;
  impl_->maintain(
      [&](Database& disk) {
        Transaction transaction(disk);
        if (options.unused_since) {
          Query(disk, "DELETE FROM kernels WHERE used < ?").bind(*options.unused_since).run();
          deleted += disk.changes();
        }
        if (options.keep_bytes) deleted += shrink_kernels(disk, *options.keep_bytes);
        transaction.commit();
        give_back_space(disk);
      },
      true);
  return deleted;
}

void Store::clear(bool trials_too) {
  StoreImpl::Use use(*impl_);
  impl_->maintain(
      [&](Database& disk) {
        Transaction transaction(disk);
        disk.execute("DELETE FROM kernels; DELETE FROM rejections");
        if (trials_too) {
          disk.execute("DELETE FROM trials; DELETE FROM finished; DELETE FROM quarantine; DELETE FROM misses");
        }
        transaction.commit();
        give_back_space(disk);
      },
      true);
}

}  // namespace attune::cache
