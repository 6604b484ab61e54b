// What went wrong before: quarantined builds, and plans that were missed.
#include <algorithm>
#include <map>

#include "cache/rows.h"
#include "cache/store_impl.h"

namespace attune::cache {

bool Store::quarantine(const Quarantine& entry) {
  check_key("build_key", entry.build_key);
  StoreImpl::Use use(*impl_);
  const std::int64_t now = impl_->now();
  return impl_->write([&](Database& database) {
    Query insert(database,
                 "INSERT OR REPLACE INTO quarantine(build_key, environment, config, reason, time) "
                 "VALUES (?, ?, ?, ?, ?)");
    insert.bind(entry.build_key).bind(entry.environment).bind(entry.config).bind(entry.reason).bind(now).run();
  });
}

std::optional<std::string> Store::quarantined(const std::string& build_key, const std::string& environment) {
  check_key("build_key", build_key);
  StoreImpl::Use use(*impl_);
  std::optional<std::string> reason;
  impl_->read([&](Database& database) {
    Query query(database, "SELECT reason FROM quarantine WHERE build_key = ? AND environment = ?");
    query.bind(build_key).bind(environment);
    if (query.step()) reason = query.text(0);
  });
  return reason;
}

bool Store::lift_quarantine(const std::string& build_key) {
  check_key("build_key", build_key);
  StoreImpl::Use use(*impl_);
  bool lifted = false;
  const auto lift = [&](Database& database) {
    Query(database, "DELETE FROM quarantine WHERE build_key = ?").bind(build_key).run();
    lifted = lifted || database.changes() > 0;
  };
  impl_->write_to_disk(lift);
  impl_->write_to_memory(lift);
  return lifted;
}

std::vector<Quarantine> Store::list_quarantine() {
  StoreImpl::Use use(*impl_);
  std::vector<Quarantine> rows;
  impl_->read([&](Database& database) {
    std::vector<Quarantine> here;
    Query query(database,
                "SELECT build_key, environment, config, reason, time FROM quarantine ORDER BY time DESC, build_key");
    while (query.step()) {
      here.push_back({query.text(0), query.text(1), query.text(2), query.text(3), query.integer(4)});
    }
    rows.insert(rows.end(), here.begin(), here.end());
  });
  return rows;
}

bool Store::note_miss(const std::string& plan_key, const std::string& problem) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  const std::int64_t now = impl_->now();
  return impl_->write([&](Database& database) {
    Query insert(database,
                 "INSERT INTO misses(plan_key, problem, count, last) VALUES (?, ?, 1, ?) "
                 "ON CONFLICT(plan_key) DO UPDATE SET count = count + 1, last = excluded.last");
    insert.bind(plan_key).bind(problem).bind(now).run();
  });
}

std::vector<Miss> Store::list_misses() {
  StoreImpl::Use use(*impl_);
  std::map<std::string, Miss> misses;
  impl_->read([&](Database& database) {
    std::vector<Miss> here;
    Query query(database, "SELECT plan_key, problem, count, last FROM misses");
    while (query.step()) here.push_back({query.text(0), query.text(1), query.integer(2), query.integer(3)});
    for (const Miss& row : here) {
      Miss& miss = misses.try_emplace(row.plan_key, Miss{row.plan_key, row.problem}).first->second;
      miss.count += row.count;
      miss.last = std::max(miss.last, row.last);
    }
  });
  std::vector<Miss> rows;
  for (auto& [key, row] : misses) rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(), [](const Miss& a, const Miss& b) { return a.count > b.count; });
  return rows;
}

bool Store::forget_miss(const std::string& plan_key) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  bool forgotten = false;
  const auto forget = [&](Database& database) {
    Query(database, "DELETE FROM misses WHERE plan_key = ?").bind(plan_key).run();
    forgotten = forgotten || database.changes() > 0;
  };
  impl_->write_to_disk(forget);
  impl_->write_to_memory(forget);
  return forgotten;
}

}  // namespace attune::cache
