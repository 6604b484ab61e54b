// Rows as the tables hold them: keys, digests, reading, inserting and copying.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/database.h"
#include "cache/store.h"

namespace attune::cache {

bool is_key(std::string_view text);
/// Throws Error(invalid_argument) unless `text` has 64 lower-case hexadecimal digits.
void check_key(const char* name, std::string_view text);
/// 32 random hexadecimal digits, also different in processes that were forked from one.
std::string random_id();

std::optional<TrialStatus> parse_status(std::string_view text);

std::string digest_of(const Trial& trial);
/// Ignored if the uid is there. Returns whether it was added.
bool insert_trial(Database& database, const Trial& trial);
/// Trials of a plan, or of all plans if the key is empty, in the order of time. Those whose digest does not match are
/// left out and their uids added to `damaged` if given.
std::vector<Trial> select_trials(Database& database, const std::string& plan_key,
                                 std::vector<std::string>* damaged = nullptr);
/// Nothing if there is none or its digest does not match.
std::optional<Trial> select_trial(Database& database, const std::string& uid);

/// Ignored if the key is there. Returns whether it was added.
bool insert_kernel(Database& database, const Kernel& kernel);
struct FoundKernel {
  Kernel kernel;
  bool sound = false;  ///< both digests match
};
std::optional<FoundKernel> select_kernel(Database& database, const std::string& build_key);
std::vector<std::string> kernel_keys(Database& database);
/// Deletes the least recently used kernels until `bytes` are left; the number deleted.
std::int64_t shrink_kernels(Database& database, std::int64_t bytes);

/// Copies what `to` lacks. Each function expects a transaction on `to`.
void copy_kernel(Database& from, Database& to, const std::string& build_key, MergeReport* report);
void copy_trials(Database& from, Database& to, const std::string& plan_key, MergeReport* report);
/// Which sessions are finished, of one plan or of all.
void copy_finished(Database& from, Database& to, const std::string& plan_key, MergeReport* report);
/// Rejections, quarantine and misses.
void copy_others(Database& from, Database& to, MergeReport* report);

}  // namespace attune::cache
