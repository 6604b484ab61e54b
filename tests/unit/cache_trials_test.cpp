// From trials to winners: the rules of cache/KEY.md.
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "tests/cache_support.h"

using namespace attune;
using namespace attune::test;
using cache::Store;
using cache::Trial;
using cache::TrialStatus;

namespace {

struct Fixture {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  const std::string plan = key_of("p");

  void add(const std::string& config, double median, double spread = 0, const std::string& session = "s1",
           const std::string& regime = "burst", TrialStatus status = TrialStatus::ok) {
    Trial trial = trial_of("p", config, median, spread);
    trial.session = session;
    trial.regime = regime;
    trial.status = status;
    REQUIRE(store.append_trial(trial));
  }
  std::string best(const std::string& regime = {}) {
    const auto winner = store.winner(plan, regime);
    return winner ? winner->config : "none";
  }
};

std::vector<std::vector<std::string>> rows_of(const std::string& file, const std::string& sql) {
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open_v2(file.c_str(), &raw, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK);
  std::vector<std::vector<std::string>> rows;
  sqlite3_stmt* statement = nullptr;
  REQUIRE_MESSAGE(sqlite3_prepare_v2(raw, sql.c_str(), -1, &statement, nullptr) == SQLITE_OK, sqlite3_errmsg(raw));
  while (sqlite3_step(statement) == SQLITE_ROW) {
    std::vector<std::string> row;
    for (int i = 0; i < sqlite3_column_count(statement); ++i) {
      const unsigned char* text = sqlite3_column_text(statement, i);
      row.emplace_back(text == nullptr ? "" : reinterpret_cast<const char*>(text));
    }
    rows.push_back(row);
  }
  sqlite3_finalize(statement);
  sqlite3_close(raw);
  return rows;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a trial comes back as it was appended") {
  Trial trial = trial_of("p", "c", 1.25, 0.5);
  trial.samples = {1.25, 0.1, std::numeric_limits<double>::denorm_min(), -0.0};
  trial.errors = "{\"max\":0.001}";
  trial.reason = "because";
  std::string uid;
  REQUIRE(store.append_trial(trial, &uid));
  const auto trials = store.trials(plan);
  REQUIRE(trials.size() == 1);
  const Trial& found = trials[0];
  CHECK(found.uid == uid);
  CHECK(found.problem == trial.problem);
  CHECK(found.config == trial.config);
  CHECK(found.build_key == trial.build_key);
  CHECK(found.device == trial.device);
  CHECK(found.environment == trial.environment);
  CHECK(found.regime == trial.regime);
  CHECK(found.session == trial.session);
  CHECK(found.samples == trial.samples);
  CHECK(std::signbit(found.samples[3]));
  CHECK(found.median == 1.25);
  CHECK(found.low == 0.75);
  CHECK(found.high == 1.75);
  CHECK(found.errors == trial.errors);
  CHECK(found.reason == "because");
  CHECK(found.status == TrialStatus::ok);
  CHECK(found.time > 0);
}

TEST_CASE_FIXTURE(Fixture, "a measurement that is none is refused, a failure without one is not") {
  Trial trial = trial_of("p", "c", std::nan(""));
  CHECK_THROWS_AS(store.append_trial(trial), Error);
  trial = trial_of("p", "c", 1);
  trial.low = 2;
  CHECK_THROWS_AS(store.append_trial(trial), Error);
  trial = trial_of("p", "c", std::nan(""));
  trial.status = TrialStatus::crashed;
  trial.build_key.clear();
  CHECK(store.append_trial(trial));
  CHECK(store.trials(plan).size() == 1);
  CHECK(store.trials(plan)[0].status == TrialStatus::crashed);
}

TEST_CASE_FIXTURE(Fixture, "the fastest wins, and no plan has no winner") {
  CHECK_FALSE(store.winner(plan));
  add("a", 3);
  add("b", 1);
  add("c", 2);
  const auto winner = store.winner(plan);
  REQUIRE(winner);
  CHECK(winner->config == "b");
  CHECK(winner->build_key == key_of("b"));
  CHECK(winner->problem == "p");
  CHECK(winner->environment == "driver=1");
  CHECK(winner->tie_set.size() == 1);
  CHECK_FALSE(store.winner(key_of("another plan")));
}

TEST_CASE_FIXTURE(Fixture,
                  "of a tie set the fastest wins, of equals the first by text, whatever the order of arrival") {
  add("a", 1.08, 0.05);  // its low is below the high of c
  add("d", 1.00, 0.05);
  add("b", 1.11, 0.05);  // not: its low is 1.06
  add("c", 1.00, 0.05);
  const auto winner = store.winner(plan);
  REQUIRE(winner);
  CHECK(winner->config == "c");
  REQUIRE(winner->tie_set.size() == 3);
  CHECK(winner->tie_set[0].config == "c");
  CHECK(winner->tie_set[1].config == "d");
  CHECK(winner->tie_set[2].config == "a");

  const auto alternates = store.alternates(plan);
  REQUIRE(alternates.size() == 4);
  CHECK(alternates[0].config == "c");
  CHECK(alternates[2].config == "a");
  CHECK(alternates[3].config == "b");
  CHECK(alternates[2].tied);
  CHECK_FALSE(alternates[3].tied);
  CHECK(store.alternates(plan, {}, 1).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "alternates beyond the tie set come by median") {
  for (int i = 12; i > 0; --i) add("c" + std::to_string(i), i);
  const auto alternates = store.alternates(plan, {}, 20);
  REQUIRE(alternates.size() == 12);
  for (int i = 0; i < 12; ++i) CHECK(alternates[i].median == i + 1);
}

TEST_CASE_FIXTURE(Fixture, "the last measurement of a config speaks for it") {
  add("lucky", 1);
  add("steady", 2);
  add("lucky", 3);
  CHECK(best() == "steady");
  CHECK(store.alternates(plan).size() == 2);
}

TEST_CASE_FIXTURE(Fixture, "a config that failed in a session does not win it, in whatever order") {
  for (const TrialStatus status :
       {TrialStatus::wrong, TrialStatus::crashed, TrialStatus::timeout, TrialStatus::rejected}) {
    const std::string config = std::string("bad ") + cache::to_string(status);
    add(config, 1, 0, "s1", "burst", status);
    add(config, 1);
  }
  CHECK(best() == "none");
  add("good", 5);
  CHECK(best() == "good");
}

TEST_CASE_FIXTURE(Fixture, "a config found wrong later loses what it won before, until a later session clears it") {
  add("a", 1);
  add("b", 2);
  store.finish_session(plan, "s1");
  CHECK(best() == "a");
  add("a", 1, 0, "s2", "burst", TrialStatus::wrong);
  CHECK(best() == "b");
  add("a", 1, 0, "s3");
  store.finish_session(plan, "s3");
  CHECK(best() == "a");
}

TEST_CASE_FIXTURE(Fixture, "the latest finished session speaks; an unfinished one only if there is no other") {
  add("first", 1, 0, "s1");
  add("second", 2, 0, "s2");
  CHECK(best() == "second");
  CHECK_FALSE(store.winner(plan)->session_finished);
  store.finish_session(plan, "s1");
  CHECK(best() == "first");
  CHECK(store.winner(plan)->session_finished);
  store.finish_session(plan, "s2");
  CHECK(best() == "second");
}

TEST_CASE_FIXTURE(Fixture, "a session without a single good trial changes nothing") {
  add("first", 1, 0, "s1");
  add("second", 2, 0, "s2", "burst", TrialStatus::wrong);
  store.finish_session(plan, "s2");
  CHECK(best() == "first");
}

TEST_CASE_FIXTURE(Fixture, "regimes are never compared, and sustained is preferred") {
  add("cool", 1, 0, "s1", "burst");
  add("warm", 2, 0, "s1", "sustained");
  add("cool", 3, 0, "s1", "sustained");
  add("warm", 4, 0, "s1", "burst");  // the last row is burst's, in the same session
  CHECK(best("burst") == "cool");
  CHECK(best("sustained") == "warm");
  CHECK(best() == "warm");
  CHECK(best("another") == "none");
  add("new", 9, 0, "s2", "burst");
  CHECK(best() == "new");
  CHECK(best("sustained") == "warm");
}

TEST_CASE_FIXTURE(Fixture, "an interrupted session can be found again") {
  CHECK_FALSE(store.unfinished_session(plan));
  add("a", 1, 0, "s1");
  CHECK(store.unfinished_session(plan) == "s1");
  store.finish_session(plan, "s1");
  CHECK_FALSE(store.unfinished_session(plan));
}

TEST_CASE_FIXTURE(Fixture, "plans are listed with their problems") {
  add("a", 1);
  add("b", 1, 0, "s1", "burst", TrialStatus::wrong);
  REQUIRE(store.append_trial(trial_of("q", "c", 1)));
  auto plans = store.list_plans();
  REQUIRE(plans.size() == 2);
  std::sort(plans.begin(), plans.end(), [](auto& x, auto& y) { return x.problem < y.problem; });
  CHECK(plans[0].problem == "p");
  CHECK(plans[0].plan_key == plan);
  CHECK(plans[0].trials == 2);
  CHECK(plans[0].ok == 1);
  CHECK(plans[1].problem == "q");
}

TEST_CASE("the view and the API agree, whatever the trials") {
  std::minstd_rand random(7);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    TemporaryFolder folder;
    Store memory = Store::open(options_for({}));  // no need to synchronise each trial
    const int configs = 1 + random() % 12;
    const int sessions = 1 + random() % 4;
    const int failures = random() % 3;
    for (int i = 0, count = 1 + random() % 60; i < count; ++i) {
      Trial trial = trial_of("p", "c" + std::to_string(random() % configs), 1 + random() % 8 * 0.1);
      trial.low = trial.median - random() % 3 * 0.05;
      trial.high = trial.median + random() % 3 * 0.05;
      trial.session = "s" + std::to_string(random() % sessions);
      trial.regime = random() % 2 ? "burst" : "sustained";
      if (static_cast<int>(random() % 20) < failures) trial.status = TrialStatus::wrong;
      memory.append_trial(trial);
    }
    for (int i = 0; i < sessions; ++i) {
      if (random() % 2) memory.finish_session(key_of("p"), "s" + std::to_string(i));
    }
    Store store = Store::open(options_for(folder.path()));
    for (Trial trial : memory.trials(key_of("p"))) store.append_trial(trial);
    for (int i = 0; i < sessions; ++i) {
      if (random() % 2) store.finish_session(key_of("p"), "s" + std::to_string(i));
    }
    for (const std::string regime : {"burst", "sustained"}) {
      const auto winner = store.winner(key_of("p"), regime);
      const auto rows =
          rows_of(store.file(), "SELECT config, session, finished, uid FROM winners WHERE regime = '" + regime + "'");
      REQUIRE(rows.size() == (winner ? 1 : 0));
      if (!winner) continue;
      CHECK(winner->config == rows[0][0]);
      CHECK(winner->session == rows[0][1]);
      CHECK(winner->session_finished == (rows[0][2] == "1"));
      CHECK(winner->tie_set[0].uid == rows[0][3]);
      std::vector<std::vector<std::string>> ranking;
      for (const auto& standing : store.alternates(key_of("p"), regime, 1000)) {
        ranking.push_back({standing.config, standing.uid, standing.tied ? "1" : "0"});
      }
      CHECK(ranking == rows_of(store.file(), "SELECT config, uid, tied FROM standings WHERE regime = '" + regime +
                                                 "' ORDER BY tied DESC, median, config"));
    }
  }
}

TEST_CASE("a file's views are those of the version that opens it") {
  TemporaryFolder folder;
  const std::string file = Store::open(options_for(folder.path())).file();
  const std::string all = "SELECT name, sql FROM sqlite_schema WHERE type = 'view' ORDER BY name";
  const auto made = rows_of(file, all);
  REQUIRE(made.size() == 2);
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw, "DROP VIEW winners; CREATE VIEW winners AS SELECT 1 AS config", nullptr, nullptr,
                       nullptr) == SQLITE_OK);
  sqlite3_close(raw);
  REQUIRE(rows_of(file, all) != made);
  Store::open(options_for(folder.path())).winner(key_of("p"));
  CHECK(rows_of(file, all) == made);
  const auto version = rows_of(file, "PRAGMA schema_version");
  Store::open(options_for(folder.path())).winner(key_of("p"));
  CHECK(rows_of(file, "PRAGMA schema_version") == version);  // nothing was written where nothing had to be

  // Another's write transaction is not waited for: only the views are out of date then.
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw, "DROP VIEW winners; CREATE VIEW winners AS SELECT 1 AS config; BEGIN IMMEDIATE", nullptr,
                       nullptr, nullptr) == SQLITE_OK);
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(Store::open(options_for(folder.path())).winner(key_of("p")));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  sqlite3_close(raw);
  CHECK(rows_of(file, all) != made);
}

TEST_CASE_FIXTURE(Fixture, "a damaged trial counts for nothing") {
  add("fast", 1);
  add("slow", 2);
  const std::string file = store.file();
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  REQUIRE(sqlite3_exec(raw, "UPDATE trials SET median = 0.5, low = 0.5 WHERE config = 'slow'", nullptr, nullptr,
                       nullptr) == SQLITE_OK);
  sqlite3_close(raw);
  CHECK(store.verify().problems.size() == 1);
  CHECK(best() == "fast");
  CHECK(store.stats().corrupt == 1);
  CHECK(store.verify().problems.empty());
}

TEST_CASE_FIXTURE(Fixture, "a winner is found without reading the table of trials") {
  add("a", 1);
  for (const auto& row : rows_of(store.file(), "EXPLAIN QUERY PLAN SELECT * FROM standings")) {
    for (const char* name : {" t ", " bad "}) {
      if (row[3].find(name) == std::string::npos) continue;
      CHECK_MESSAGE(row[3].find("COVERING INDEX trials_") != std::string::npos, row[3]);
    }
  }
}
