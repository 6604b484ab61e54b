#include "cache/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace attune::cache {
namespace {

// `blob` columns stand last: SQLite then reads the others without walking through the blob's pages.
constexpr const char* kTables = R"sql(
CREATE TABLE kernels(
  build_key TEXT PRIMARY KEY,
  sha256    TEXT NOT NULL,     -- of cubin
  digest    TEXT NOT NULL,     -- of (build_key, sha256, metadata)
  size      INTEGER NOT NULL,
  created   INTEGER NOT NULL,
  used      INTEGER NOT NULL,
  metadata  TEXT NOT NULL,
  cubin     BLOB NOT NULL
);
CREATE INDEX kernels_by_use ON kernels(used, build_key, size);

CREATE TABLE rejections(
  build_key   TEXT PRIMARY KEY,
  reason      TEXT NOT NULL,
  environment TEXT NOT NULL,
  time        INTEGER NOT NULL
);

CREATE TABLE trials(
  id          INTEGER PRIMARY KEY,
  uid         TEXT NOT NULL UNIQUE,  -- random, the same in every cache
  digest      TEXT NOT NULL,         -- of the other columns
  plan_key    TEXT NOT NULL,
  problem     TEXT NOT NULL,
  config      TEXT NOT NULL,
  build_key   TEXT NOT NULL,
  device      TEXT NOT NULL,
  environment TEXT NOT NULL,
  regime      TEXT NOT NULL,
  session     TEXT NOT NULL,
  median      REAL NOT NULL,
  low         REAL NOT NULL,
  high        REAL NOT NULL,
  errors      TEXT NOT NULL,
  status      TEXT NOT NULL,
  reason      TEXT NOT NULL,
  time        INTEGER NOT NULL,
  samples     BLOB NOT NULL          -- doubles, little endian
);
-- Between them they cover all that `standings` reads; the status is there because the condition is checked again.
CREATE INDEX trials_ok ON trials(plan_key, regime, session, config, time, median, low, high, uid, build_key, status)
  WHERE status = 'ok';
CREATE INDEX trials_not_ok ON trials(plan_key, config, session, time, status) WHERE status <> 'ok';

CREATE TABLE finished(
  plan_key TEXT NOT NULL,
  session  TEXT NOT NULL,
  time     INTEGER NOT NULL,
  PRIMARY KEY(plan_key, session)
) WITHOUT ROWID;

CREATE TABLE quarantine(
  build_key   TEXT NOT NULL,
  environment TEXT NOT NULL,
  config      TEXT NOT NULL,
  reason      TEXT NOT NULL,
  time        INTEGER NOT NULL,
  PRIMARY KEY(build_key, environment)
) WITHOUT ROWID;

CREATE TABLE misses(
  plan_key TEXT PRIMARY KEY,
  problem  TEXT NOT NULL,
  count    INTEGER NOT NULL,
  last     INTEGER NOT NULL
);

CREATE TABLE leases(
  key     TEXT PRIMARY KEY,
  token   TEXT NOT NULL,
  owner   TEXT NOT NULL,
  boot    TEXT NOT NULL,
  pid     INTEGER NOT NULL,
  start   INTEGER NOT NULL,
  expires INTEGER NOT NULL
);
)sql";

// Rule 1 of KEY.md, "From trials to a winner". {0} chooses the plans.
constexpr const char* kStanding = R"sql(
SELECT plan_key, regime, session, config, build_key, median, low, high, uid, time
FROM trials AS t
WHERE {0} AND status = 'ok' AND low <= median AND median <= high
  AND NOT EXISTS (
    SELECT 1 FROM trials AS bad
    WHERE bad.plan_key = t.plan_key AND bad.config = t.config AND bad.status <> 'ok'
      AND (bad.session = t.session OR bad.time >= t.time))
)sql";

// Rules 2 to 5. For people and scripts; trials.cpp has them in C++, because preparing and running this takes longer
// than all the rest of finding a kernel, and a test compares the two. {0} is kStanding.
constexpr const char* kStandings = R"sql(
CREATE VIEW standings AS
WITH ok AS MATERIALIZED ({0}),
standing AS MATERIALIZED (
  SELECT * FROM ok WHERE NOT EXISTS (
    SELECT 1 FROM ok AS later
    WHERE later.plan_key = ok.plan_key AND later.regime = ok.regime AND later.session = ok.session
      AND later.config = ok.config AND (later.time, later.uid) > (ok.time, ok.uid))
),
sessions AS (
  SELECT plan_key, regime, session, max(time) AS last,
         EXISTS (SELECT 1 FROM finished AS f
                 WHERE f.plan_key = standing.plan_key AND f.session = standing.session) AS finished
  FROM standing GROUP BY plan_key, regime, session
),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY plan_key, regime ORDER BY finished DESC, last DESC, session DESC) AS nth
  FROM sessions
),
fastest AS (
  SELECT plan_key, regime, session, finished, last, min(median) AS median
  FROM ranked JOIN standing USING (plan_key, regime, session) WHERE nth = 1 GROUP BY plan_key, regime
),
bound AS (
  SELECT fastest.*, max(high) AS high
  FROM fastest JOIN standing USING (plan_key, regime, session, median) GROUP BY plan_key, regime
)
SELECT plan_key, regime, session, finished, last, config, build_key, s.median AS median, low, s.high AS high, uid,
       low <= bound.high AS tied
FROM bound JOIN standing AS s USING (plan_key, regime, session)
)sql";

constexpr const char* kWinners = R"sql(
CREATE VIEW winners AS
SELECT plan_key, regime, session, finished, config, build_key, median, low, high, uid
FROM (SELECT *, row_number() OVER (PARTITION BY plan_key, regime ORDER BY tied DESC, median, config) AS nth
      FROM standings)
WHERE nth = 1
)sql";

constexpr const char* kViews[][2] = {{"standings", kStandings}, {"winners", kWinners}};

// SQLite keeps a view's text from CREATE to the last word.
std::string view_text(const char* view) {
  const std::string text = fmt::format(fmt::runtime(view), fmt::format(kStanding, "1"));
  const std::size_t begin = text.find_first_not_of('\n');
  return text.substr(begin, text.find_last_not_of('\n') + 1 - begin);
}

std::int64_t number(Database& database, std::string_view sql) {
  Query query(database, sql);
  return query.step() ? query.integer(0) : 0;
}

SchemaState state_in_transaction(Database& database) {
  const std::int64_t version = number(database, "PRAGMA user_version");
  const std::int64_t application = number(database, "PRAGMA application_id");
  if (application == kApplicationId && version == kSchemaVersion) return SchemaState::ours;
  if (application == kApplicationId && version > kSchemaVersion) return SchemaState::newer;
  if (application == 0 && version == 0 && number(database, "SELECT count(*) FROM sqlite_schema") == 0) {
    return SchemaState::empty;
  }
  return SchemaState::foreign;
}

}  // namespace

SchemaState schema_state(Database& database) {
  // One snapshot: another process may be making the tables right now.
  const ReadTransaction transaction(database);
  return state_in_transaction(database);
}

void create_schema(Database& database) {
  Transaction transaction(database);
  if (state_in_transaction(database) != SchemaState::empty) return;
  database.execute(kTables);
  for (const auto& [name, view] : kViews) database.execute(view_text(view));
  database.execute(fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId, kSchemaVersion));
  transaction.commit();
}

void renew_views(Database& database) {
  const auto outdated = [&] {
    return std::any_of(std::begin(kViews), std::end(kViews), [&](const auto& view) {
      Query query(database, "SELECT 1 FROM sqlite_schema WHERE type = 'view' AND name = ? AND sql = ?");
      return !query.bind(view[0]).bind(view_text(view[1])).step();
    });
  };
  if (!outdated()) return;
  Transaction transaction(database);
  if (state_in_transaction(database) != SchemaState::ours || !outdated()) return;
  for (const auto& [name, view] : kViews) database.execute(fmt::format("DROP VIEW IF EXISTS {}", name));
  for (const auto& [name, view] : kViews) database.execute(view_text(view));
  transaction.commit();
}

const std::string& standing_trials_of_plan() {
  static const std::string sql = fmt::format(kStanding, "t.plan_key = ?1");
  return sql;
}

}  // namespace attune::cache
