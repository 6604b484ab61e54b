#include "runtime/speculation.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace attune::runtime {
namespace {

// A stream whose launches are done as soon as they are queued, or some launches later.
struct Stream {
  LaunchReport report;
  Speculation speculation{&report, 100};
  std::uint32_t fails = 0;  // a launch that speculates
  std::uint32_t so_far = 0;

  bool launch() {
    const Speculation::Choice choice = speculation.next();
    report = {.failures = so_far, .started = choice.launch};
    if (choice.speculate) so_far += fails;
    return choice.speculate;
  }
  // How many of so many launches speculated.
  int speculated(int launches) {
    int count = 0;
    for (int i = 0; i < launches; ++i) count += launch() ? 1 : 0;
    return count;
  }
};

}  // namespace

TEST_CASE("speculation: while it seldom fails every launch speculates") {
  Stream stream;
  CHECK(stream.speculated(1000) == 1000);
  stream.fails = 100;
  CHECK(stream.speculated(1000) == 1000);
}

TEST_CASE("speculation: when it fails too often launches are exact, but for one that looks again, ever more seldom") {
  Stream stream;
  stream.speculated(16);
  stream.fails = 500;
  // The launch that fails, and the one behind it, which cannot know yet.
  CHECK(stream.speculated(2) == 2);
  CHECK(stream.speculated(60) == 0);
  CHECK(stream.speculated(10) == 1);
  CHECK(stream.speculated(120) == 0);
  std::vector<int> stays;
  for (int stay = 0; stays.size() < 8; ++stay) {
    if (!stream.launch()) continue;
    stays.push_back(stay);
    stay = 0;
  }
  CHECK(stays.back() >= static_cast<int>(Speculation::kLongStay));
  CHECK(stays.back() <= static_cast<int>(Speculation::kLongStay) + 3);
  CHECK(stays[1] > stays[0]);
}

TEST_CASE("speculation: a little too often is found out within two windows, on average over them") {
  Stream stream;
  stream.speculated(16);
  stream.fails = 130;
  CHECK(stream.speculated(2 * static_cast<int>(Speculation::kWindow)) < 2 * static_cast<int>(Speculation::kWindow));
  Stream uneven;
  for (int i = 0; i < 400; ++i) {
    uneven.fails = i % 2 == 0 ? 180 : 0;
    CHECK(uneven.launch());
  }
}

TEST_CASE("speculation: what a launch tells of itself is not held against those before it") {
  LaunchReport report;
  Speculation speculation(&report, 100);
  // Each fails 95 times, and tells of 0 to 95 of these failures itself.
  for (std::uint32_t i = 0; i < 300; ++i) {
    const Speculation::Choice choice = speculation.next();
    REQUIRE(choice.speculate);
    report = {.failures = 95 * i + i * 37 % 96, .started = choice.launch};
  }
}

TEST_CASE("speculation: it comes back when the scores do, and forgets how long it was away") {
  Stream stream;
  stream.fails = 1000;
  stream.speculated(500);
  stream.fails = 0;
  CHECK(stream.speculated(1000) > 400);
  CHECK(stream.speculated(100) == 100);
  stream.fails = 2000;
  CHECK(stream.speculated(64) <= 3);
  CHECK(stream.speculated(8) == 1);
}

TEST_CASE("speculation: failures of several launches that come in at once are shared out among them") {
  LaunchReport report;
  Speculation speculation(&report, 100);
  for (int i = 0; i < 50; ++i) CHECK(speculation.next().speculate);
  report.started = 50;
  report.failures = 49 * 60;
  CHECK(speculation.next().speculate);
  for (int i = 0; i < 50; ++i) speculation.next();
  report.started = 101;
  report.failures += 51 * 160;
  CHECK(!speculation.next().speculate);
}

TEST_CASE("speculation: a trial counts once a later launch has begun, however many were queued behind it") {
  LaunchReport report;
  Speculation speculation(&report, 100);
  std::uint32_t number = speculation.next().launch;
  report = {.failures = 1000, .started = number};
  std::uint32_t trial = 0;
  while (trial == 0) {
    const Speculation::Choice choice = speculation.next();
    if (choice.speculate) trial = choice.launch;
  }
  for (int i = 0; i < 200; ++i) CHECK(!speculation.next().speculate);
  report.started = trial;  // it runs: nothing is known yet
  CHECK(!speculation.next().speculate);
  report.started = trial + 1;
  CHECK(speculation.next().speculate);
}

TEST_CASE("speculation: reports that come in another order than they were read in are no failures") {
  LaunchReport report;
  Speculation speculation(&report, 100);
  for (std::uint32_t i = 1; i <= 100; ++i) {
    CHECK(speculation.next().speculate);
    // Every second one has read before the one that it tells behind.
    report = {.failures = i % 2 == 0 ? 40 * (i - 2) : 40 * i, .started = i};
  }
}

TEST_CASE("speculation: failures of launches that were under way when a trial was chosen are not the trial's") {
  LaunchReport report;
  Speculation speculation(&report, 100);
  speculation.next();
  report = {.failures = 1000, .started = 1};
  // 200 launches are queued before the next report.
  std::uint32_t trial = 0;
  for (int i = 0; i < 200; ++i)
    if (const Speculation::Choice choice = speculation.next(); choice.trial) trial = choice.launch;
  REQUIRE(trial != 0);
  report = {.failures = 50000, .started = trial - 1};
  CHECK(!speculation.next().speculate);
  report = {.failures = 50010, .started = trial + 1};
  CHECK(speculation.next().speculate);
}

TEST_CASE("speculation: a graph that is replayed and reports an old number changes nothing") {
  Stream stream;
  stream.speculated(100);
  stream.report.started = 3;
  stream.report.failures += 100000;
  CHECK(stream.speculation.next().speculate);
}

TEST_CASE("speculation: threads get a number each") {
  LaunchReport report;
  Speculation speculation(&report, 1e9);
  std::vector<std::vector<std::uint32_t>> numbers(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : numbers)
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) mine.push_back(speculation.next().launch);
      });
  }
  std::vector<bool> seen(4001);
  for (const auto& mine : numbers)
    for (const std::uint32_t number : mine) {
      REQUIRE(number <= 4000);
      CHECK(!seen[number]);
      seen[number] = true;
    }
}

}  // namespace attune::runtime
