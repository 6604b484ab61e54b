#include "cache/rows.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

namespace attune::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "samples are stored little endian");

constexpr std::pair<TrialStatus, const char*> kStatuses[] = {{TrialStatus::ok, "ok"},
                                                             {TrialStatus::rejected, "rejected"},
                                                             {TrialStatus::wrong, "wrong"},
                                                             {TrialStatus::timeout, "timeout"},
                                                             {TrialStatus::crashed, "crashed"}};

std::string bytes_of(const std::vector<double>& numbers) {
  std::string bytes(numbers.size() * sizeof(double), '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<double> doubles_of(const std::string& bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

// Each text is preceded by its length, so that different lists never give the same bytes.
std::string digest_of_texts(std::initializer_list<std::string_view> texts) {
  std::string bytes;
  for (const std::string_view text : texts) bytes.append(std::to_string(text.size())).append(":").append(text);
  return sha256_hex(bytes);
}

std::string digest_of(const Kernel& kernel) {
  std::string bytes = kernel.build_key;
  bytes.append(1, '\0').append(kernel.sha256).append(1, '\0').append(kernel.metadata);
  return sha256_hex(bytes);
}

constexpr std::string_view kTrialColumns =
    "SELECT uid, digest, plan_key, problem, config, build_key, device, environment, regime, session, median, low, "
    "high, errors, status, reason, time, samples FROM trials ";

// Nothing if the digest does not match.
std::optional<Trial> read_trial(const Query& query) {
  Trial trial;
  trial.uid = query.text(0);
  trial.plan_key = query.text(2);
  trial.problem = query.text(3);
  trial.config = query.text(4);
  trial.build_key = query.text(5);
  trial.device = query.text(6);
  trial.environment = query.text(7);
  trial.regime = query.text(8);
  trial.session = query.text(9);
  trial.median = query.real(10);
  trial.low = query.real(11);
  trial.high = query.real(12);
  trial.errors = query.text(13);
  const std::optional<TrialStatus> status = parse_status(query.text(14));
  trial.status = status.value_or(TrialStatus::crashed);
  trial.reason = query.text(15);
  trial.time = query.integer(16);
  trial.samples = doubles_of(query.text(17));
  if (!status || digest_of(trial) != query.text(1)) return std::nullopt;
  return trial;
}

}  // namespace

const char* to_string(TrialStatus status) noexcept {
  for (const auto& [value, name] : kStatuses) {
    if (value == status) return name;
  }
  return "unknown";
}

std::optional<TrialStatus> parse_status(std::string_view text) {
  for (const auto& [value, name] : kStatuses) {
    if (name == text) return value;
  }
  return std::nullopt;
}

bool is_key(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void check_key(const char* name, std::string_view text) {
  if (!is_key(text)) {
    fail(ErrorCode::invalid_argument, "{}: '{}' is not a key (allowed: 64 lower-case hexadecimal digits)", name, text);
  }
}

std::string random_id() {
  std::array<unsigned char, 16> bytes{};
  // Sixteen bytes come whole or not at all, and they come as soon as the machine has booted.
  while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// -- trials

std::string digest_of(const Trial& trial) {
  const std::string numbers = bytes_of({trial.median, trial.low, trial.high});
  return digest_of_texts({trial.uid, trial.plan_key, trial.problem, trial.config, trial.build_key, trial.device,
                          trial.environment, trial.regime, trial.session, bytes_of(trial.samples), numbers,
                          trial.errors, to_string(trial.status), trial.reason, std::to_string(trial.time)});
}

bool insert_trial(Database& database, const Trial& trial) {
  Query query(database,
              "INSERT OR IGNORE INTO trials(uid, digest, plan_key, problem, config, build_key, device, environment, "
              "regime, session, median, low, high, errors, status, reason, time, samples) "
              "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  query.bind(trial.uid).bind(digest_of(trial)).bind(trial.plan_key).bind(trial.problem).bind(trial.config);
  query.bind(trial.build_key).bind(trial.device).bind(trial.environment).bind(trial.regime).bind(trial.session);
  query.bind(trial.median).bind(trial.low).bind(trial.high).bind(trial.errors).bind(to_string(trial.status));
  query.bind(trial.reason).bind(trial.time).bind_blob(bytes_of(trial.samples));
  query.run();
  return database.changes() > 0;
}

std::vector<Trial> select_trials(Database& database, const std::string& plan_key, std::vector<std::string>* damaged) {
  static const std::string of_plan = std::string(kTrialColumns) + "WHERE plan_key = ? ORDER BY time, uid";
  static const std::string of_all = std::string(kTrialColumns) + "ORDER BY time, uid";
  Query query(database, plan_key.empty() ? of_all : of_plan);
  if (!plan_key.empty()) query.bind(plan_key);
  std::vector<Trial> trials;
  while (query.step()) {
    if (auto trial = read_trial(query)) {
      trials.push_back(std::move(*trial));
    } else if (damaged != nullptr) {
      damaged->push_back(query.text(0));
    }
  }
  return trials;
}

std::optional<Trial> select_trial(Database& database, const std::string& uid) {
  static const std::string sql = std::string(kTrialColumns) + "WHERE uid = ?";
  Query query(database, sql);
  query.bind(uid);
  return query.step() ? read_trial(query) : std::nullopt;
}

// -- kernels

bool insert_kernel(Database& database, const Kernel& kernel) {
  Query query(database,
              "INSERT OR IGNORE INTO kernels(build_key, sha256, digest, size, created, used, metadata, cubin) "
              "VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  query.bind(kernel.build_key).bind(kernel.sha256).bind(digest_of(kernel));
  query.bind(static_cast<std::int64_t>(kernel.cubin.size())).bind(kernel.created).bind(kernel.used);
  query.bind(kernel.metadata).bind_blob(kernel.cubin);
  query.run();
  return database.changes() > 0;
}

std::optional<FoundKernel> select_kernel(Database& database, const std::string& build_key) {
  Query query(database, "SELECT sha256, digest, created, used, metadata, cubin FROM kernels WHERE build_key = ?");
  query.bind(build_key);
  if (!query.step()) return std::nullopt;
  FoundKernel found;
  Kernel& kernel = found.kernel;
  kernel.build_key = build_key;
  kernel.sha256 = query.text(0);
  kernel.created = query.integer(2);
  kernel.used = query.integer(3);
  kernel.metadata = query.text(4);
  kernel.cubin = query.text(5);
  found.sound = digest_of(kernel) == query.text(1) && sha256_hex(kernel.cubin) == kernel.sha256;
  return found;
}

std::vector<std::string> kernel_keys(Database& database) {
  std::vector<std::string> keys;
  Query query(database, "SELECT build_key FROM kernels ORDER BY build_key");
  while (query.step()) keys.push_back(query.text(0));
  return keys;
}

std::int64_t shrink_kernels(Database& database, std::int64_t bytes) {
  std::int64_t total = 0;
  {
    Query query(database, "SELECT coalesce(sum(size), 0) FROM kernels");
    if (query.step()) total = query.integer(0);
  }
  if (total <= bytes) return 0;
  std::vector<std::string> victims;
  {
    Query query(database, "SELECT build_key, size FROM kernels ORDER BY used, build_key");
    while (total > bytes && query.step()) {
      victims.push_back(query.text(0));
      total -= query.integer(1);
    }
  }
  for (const std::string& key : victims) Query(database, "DELETE FROM kernels WHERE build_key = ?").bind(key).run();
  return static_cast<std::int64_t>(victims.size());
}

// -- copying

void copy_kernel(Database& from, Database& to, const std::string& build_key, MergeReport* report) {
  const std::optional<FoundKernel> found = select_kernel(from, build_key);
  if (!found) return;
  if (!found->sound || !is_key(build_key) || found->kernel.cubin.empty()) {
    ++report->refused;
  } else if (insert_kernel(to, found->kernel)) {
    ++report->kernels;
  }
}

void copy_trials(Database& from, Database& to, const std::string& plan_key, MergeReport* report) {
  std::vector<std::string> damaged;
  for (const Trial& trial : select_trials(from, plan_key, &damaged)) {
    if (!is_key(trial.plan_key)) {
      ++report->refused;
    } else if (insert_trial(to, trial)) {
      ++report->trials;
    }
  }
  report->refused += static_cast<std::int64_t>(damaged.size());
}

void copy_finished(Database& from, Database& to, const std::string& plan_key, MergeReport* report) {
  Query rows(from, "SELECT plan_key, session, time FROM finished WHERE plan_key = ?1 OR ?1 = ''");
  rows.bind(plan_key);
  while (rows.step()) {
    Query insert(to, "INSERT OR IGNORE INTO finished(plan_key, session, time) VALUES (?, ?, ?)");
    insert.bind(rows.text(0)).bind(rows.text(1)).bind(rows.integer(2)).run();
    report->others += to.changes();
  }
}

void copy_others(Database& from, Database& to, MergeReport* report) {
  Query rejections(from, "SELECT build_key, reason, environment, time FROM rejections");
  while (rejections.step()) {
    Query insert(to, "INSERT OR IGNORE INTO rejections(build_key, reason, environment, time) VALUES (?, ?, ?, ?)");
    insert.bind(rejections.text(0)).bind(rejections.text(1)).bind(rejections.text(2)).bind(rejections.integer(3));
    insert.run();
    report->others += to.changes();
  }
  Query quarantine(from, "SELECT build_key, environment, config, reason, time FROM quarantine");
  while (quarantine.step()) {
    Query insert(to,
                 "INSERT OR IGNORE INTO quarantine(build_key, environment, config, reason, time) "
                 "VALUES (?, ?, ?, ?, ?)");
    insert.bind(quarantine.text(0)).bind(quarantine.text(1)).bind(quarantine.text(2)).bind(quarantine.text(3));
    insert.bind(quarantine.integer(4)).run();
    report->others += to.changes();
  }
  Query misses(from, "SELECT plan_key, problem, count, last FROM misses");
  while (misses.step()) {
    // The larger count, not the sum: merging twice is merging once.
    Query insert(to,
                 "INSERT INTO misses(plan_key, problem, count, last) VALUES (?, ?, ?, ?) "
                 "ON CONFLICT(plan_key) DO UPDATE SET count = max(count, excluded.count), "
                 "last = max(last, excluded.last) WHERE excluded.count > count OR excluded.last > last");
    insert.bind(misses.text(0)).bind(misses.text(1)).bind(misses.integer(2)).bind(misses.integer(3)).run();
    report->others += to.changes();
  }
}

}  // namespace attune::cache
