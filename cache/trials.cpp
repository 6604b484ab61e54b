// Trials, and the winners that follow from them.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "cache/rows.h"
#include "cache/schema.h"
#include "cache/store_impl.h"

namespace attune::cache {
namespace {

// One session's standings in one regime. Once it is chosen to speak, the winner comes first. cache/KEY.md has the
// rules, and the views in schema.cpp say the same in SQL.
struct Session {
  std::string regime;
  std::string name;
  bool finished = false;
  std::int64_t last = 0;
  std::vector<Standing> standings;
};

std::vector<Session> select_sessions(Database& database, const std::string& plan_key) {
  std::set<std::string> finished;
  {
    Query query(database, "SELECT session FROM finished WHERE plan_key = ?");
    query.bind(plan_key);
    while (query.step()) finished.insert(query.text(0));
  }
  struct Last {
    std::int64_t time = 0;
    Standing standing;
  };
  std::map<std::pair<std::string, std::string>, std::map<std::string, Last>> rows;
  Query query(database, standing_trials_of_plan());
  query.bind(plan_key);
  while (query.step()) {
    Last& last = rows[{query.text(1), query.text(2)}][query.text(3)];
    const std::int64_t time = query.integer(9);
    std::string uid = query.text(8);
    if (std::tie(time, uid) < std::tie(last.time, last.standing.uid)) continue;
    last = {time, {query.text(3), query.text(4), query.real(5), query.real(6), query.real(7), false, std::move(uid)}};
  }
  std::vector<Session> sessions;
  for (auto& [names, configs] : rows) {
    Session session{names.first, names.second, finished.count(names.second) > 0, 0, {}};
    for (auto& [config, last] : configs) {
      session.last = std::max(session.last, last.time);
      session.standings.push_back(std::move(last.standing));
    }
    sessions.push_back(std::move(session));
  }
  return sessions;
}

// Finds the tie set and puts it first; in it and behind it the faster comes first, of equals the first by text.
void rank_standings(std::vector<Standing>& standings) {
  const auto best = std::min_element(standings.begin(), standings.end(), [](const Standing& a, const Standing& b) {
    return a.median != b.median ? a.median < b.median : a.high > b.high;
  });
  const double bound = best->high;
  for (Standing& standing : standings) standing.tied = standing.low <= bound;
  std::sort(standings.begin(), standings.end(), [](const Standing& a, const Standing& b) {
    if (a.tied != b.tied) return a.tied;
    return a.median != b.median ? a.median < b.median : a.config < b.config;
  });
}

// The session of this regime. With the regime left open: finished before unfinished, then the latest; of the regimes of
// one session "sustained", which sorts after "burst".
std::optional<Session> select_session(Database& database, const std::string& plan_key, const std::string& regime) {
  std::vector<Session> sessions = select_sessions(database, plan_key);
  if (!regime.empty()) std::erase_if(sessions, [&](const Session& session) { return session.regime != regime; });
  if (sessions.empty()) return std::nullopt;
  std::map<std::string, std::int64_t> last;
  for (const Session& session : sessions) last[session.name] = std::max(last[session.name], session.last);
  const auto rank = [&](const Session& session) {
    return std::make_tuple(session.finished, last[session.name], session.name, session.regime);
  };
  Session& chosen = *std::max_element(sessions.begin(), sessions.end(),
                                      [&](const Session& a, const Session& b) { return rank(a) < rank(b); });
  rank_standings(chosen.standings);
  return std::move(chosen);
}

Winner make_winner(const Trial& trial, const Session& session) {
  Winner winner;
  winner.plan_key = trial.plan_key;
  winner.problem = trial.problem;
  winner.config = trial.config;
  winner.build_key = trial.build_key;
  winner.device = trial.device;
  winner.environment = trial.environment;
  winner.regime = trial.regime;
  winner.session = trial.session;
  winner.errors = trial.errors;
  winner.median = trial.median;
  winner.low = trial.low;
  winner.high = trial.high;
  winner.time = trial.time;
  winner.session_finished = session.finished;
  std::copy_if(session.standings.begin(), session.standings.end(), std::back_inserter(winner.tie_set),
               [](const Standing& standing) { return standing.tied; });
  return winner;
}

struct Speaking {
  Session session;
  Trial winner;
};

// The trials of a tie set are checked when something is to be built on them. A damaged one counts for nothing, and the
// next best follows.
std::optional<Speaking> lookup(StoreImpl& impl, const std::string& plan_key, const std::string& regime) {
  for (;;) {
    std::optional<Speaking> found;
    std::vector<std::string> damaged;
    impl.read_plan(plan_key, [&](Database& database) {
      if (found) return;
      damaged.clear();
      std::optional<Session> session = select_session(database, plan_key, regime);
      if (!session) return;
      std::vector<Trial> trials;
      for (const Standing& standing : session->standings) {
        if (!standing.tied) break;
        std::optional<Trial> trial = select_trial(database, standing.uid);
        trial ? trials.push_back(std::move(*trial)) : damaged.push_back(standing.uid);
      }
      if (damaged.empty()) found = Speaking{std::move(*session), std::move(trials.front())};
    });
    if (found || damaged.empty()) return found;
    impl.stats().corrupt += static_cast<std::int64_t>(damaged.size());
    const bool deleted = impl.write_to_disk([&](Database& disk) {
      for (const std::string& uid : damaged) Query(disk, "DELETE FROM trials WHERE uid = ?").bind(uid).run();
    });
    if (!deleted) return std::nullopt;
  }
}

}  // namespace

bool Store::append_trial(const Trial& trial, std::string* uid) {
  check_key("plan_key", trial.plan_key);
  if (!trial.build_key.empty()) check_key("build_key", trial.build_key);
  Trial row = trial;
  const bool finite = std::isfinite(row.low) && std::isfinite(row.median) && std::isfinite(row.high);
  if (row.status == TrialStatus::ok) {
    if (!finite || row.low > row.median || row.median > row.high) {
      fail(ErrorCode::invalid_argument, "trial: median {} in [{}, {}] (allowed: finite, low <= median <= high)",
           row.median, row.low, row.high);
    }
  } else if (!finite) {
    row.median = row.low = row.high = 0;  // nothing was measured
  }
  row.uid = random_id();
  StoreImpl::Use use(*impl_);
  row.time = impl_->next_time();
  if (uid != nullptr) *uid = row.uid;
  return impl_->write([&](Database& database) { insert_trial(database, row); });
}

std::vector<Trial> Store::trials(const std::string& plan_key) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  std::vector<Trial> rows;
  impl_->read_plan(plan_key, [&](Database& database) {
    std::vector<Trial> here = select_trials(database, plan_key);
    if (!here.empty()) rows = std::move(here);
  });
  return rows;
}

bool Store::finish_session(const std::string& plan_key, const std::string& session) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  const std::int64_t now = impl_->now();
  return impl_->write([&](Database& database) {
    Query insert(database, "INSERT OR IGNORE INTO finished(plan_key, session, time) VALUES (?, ?, ?)");
    insert.bind(plan_key).bind(session).bind(now).run();
  });
}

std::optional<std::string> Store::unfinished_session(const std::string& plan_key) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  std::optional<std::string> session;
  impl_->read_plan(plan_key, [&](Database& database) {
    Query query(database,
                "SELECT session, EXISTS (SELECT 1 FROM finished AS f WHERE f.plan_key = t.plan_key AND "
                "f.session = t.session) FROM trials AS t WHERE plan_key = ? ORDER BY time DESC, uid DESC LIMIT 1");
    query.bind(plan_key);
    if (query.step() && query.integer(1) == 0) session = query.text(0);
  });
  return session;
}

std::optional<Winner> Store::winner(const std::string& plan_key, const std::string& regime) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  const std::optional<Speaking> found = lookup(*impl_, plan_key, regime);
  ++(found ? impl_->stats().hits : impl_->stats().misses);
  if (!found) return std::nullopt;
  return make_winner(found->winner, found->session);
}

std::vector<Standing> Store::alternates(const std::string& plan_key, const std::string& regime, std::size_t limit) {
  check_key("plan_key", plan_key);
  StoreImpl::Use use(*impl_);
  std::optional<Speaking> found = lookup(*impl_, plan_key, regime);
  if (!found) return {};
  std::vector<Standing> standings = std::move(found->session.standings);
  if (standings.size() > limit) standings.resize(limit);
  return standings;
}

std::vector<PlanRow> Store::list_plans() {
  StoreImpl::Use use(*impl_);
  std::map<std::string, PlanRow> plans;
  impl_->read([&](Database& database) {
    Query query(database,
                "SELECT plan_key, problem, device, count(*), sum(status = 'ok'), max(time) FROM trials "
                "GROUP BY plan_key");
    std::vector<PlanRow> here;
    while (query.step()) {
      here.push_back(
          {query.text(0), query.text(1), query.text(2), query.integer(3), query.integer(4), query.integer(5)});
    }
    for (const PlanRow& row : here) {
      PlanRow& plan = plans.try_emplace(row.plan_key, PlanRow{row.plan_key, row.problem, row.device}).first->second;
      plan.trials += row.trials;
      plan.ok += row.ok;
      plan.last = std::max(plan.last, row.last);
    }
  });
  std::vector<PlanRow> rows;
  for (auto& [key, row] : plans) rows.push_back(std::move(row));
  return rows;
}

}  // namespace attune::cache
