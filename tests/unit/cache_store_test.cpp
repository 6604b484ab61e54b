// Kernels, rejections, quarantine, misses, merging and upkeep on a disk that works.
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "tests/cache_support.h"

using namespace attune;
using namespace attune::test;
using cache::Store;

TEST_CASE("a kernel comes back as it was put, also from another Store") {
  TemporaryFolder folder;
  const std::string cubin = blob_of("a", 100'000) + std::string(3, '\0');
  Store store = Store::open(options_for(folder / "cache"));
  CHECK_FALSE(store.find_kernel(key_of("a")));
  CHECK(store.put_kernel(key_of("a"), cubin, "{\"threads\":384}"));
  for (Store reader : {store, Store::open(options_for(folder / "cache"))}) {
    const auto kernel = reader.find_kernel(key_of("a"));
    REQUIRE(kernel);
    CHECK(kernel->cubin == cubin);
    CHECK(kernel->metadata == "{\"threads\":384}");
    CHECK(kernel->sha256 == sha256_hex(cubin));
  }
  CHECK(store.stats().hits == 1);
  CHECK(store.stats().misses == 1);
  CHECK(store.stats().faults == 0);
  CHECK(store.stats().on_disk);
}

TEST_CASE("the first to publish a key wins") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  store.put_kernel(key_of("a"), "first", "");
  store.put_kernel(key_of("a"), "second", "");
  CHECK(store.find_kernel(key_of("a"))->cubin == "first");
}

TEST_CASE("folder and files are the user's alone") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder / "deep/er/cache"));
  store.put_kernel(key_of("a"), "cubin", "");
  struct stat info{};
  REQUIRE(stat((folder / "deep/er/cache").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "deep/er/cache")) {
    REQUIRE(stat(entry.path().c_str(), &info) == 0);
    CHECK_MESSAGE((info.st_mode & 0777) == 0600, entry.path().string());
    ++files;
  }
  CHECK(files >= 2);
}

TEST_CASE("malformed arguments are errors of the caller") {
  Store store = Store::open(options_for({}));
  const std::string upper(64, 'A');
  for (const std::string& key :
       {std::string(), std::string("abc"), upper, std::string(64, 'g'), std::string(65, 'a')}) {
    CHECK_THROWS_AS(store.find_kernel(key), Error);
    CHECK_THROWS_AS(store.put_kernel(key, "cubin", ""), Error);
    CHECK_THROWS_AS(store.winner(key), Error);
  }
  CHECK_THROWS_AS(store.put_kernel(key_of("a"), "", ""), Error);
}

TEST_CASE("texts are values, never SQL") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  const std::string text = "'); DROP TABLE kernels; -- \" \n \x01 {} %s";
  CHECK(store.put_kernel(key_of("a"), "cubin", text));
  CHECK(store.note_miss(key_of("p"), text));
  CHECK(store.quarantine({key_of("a"), text, text, text, 0}));
  CHECK(store.find_kernel(key_of("a"))->metadata == text);
  CHECK(store.list_misses().at(0).problem == text);
  CHECK(store.quarantined(key_of("a"), text) == text);
}

TEST_CASE("rejections are remembered for a while, and forgotten when a kernel comes") {
  TemporaryFolder folder;
  FakeSystem system;
  cache::Options options = options_for(folder.path());
  options.system = &system;
  options.rejection_lifetime = std::chrono::hours(1);
  Store store = Store::open(options);
  CHECK(store.reject({key_of("a"), "132 bytes spilled", "nvrtc=13.0", 0}));
  const auto found = store.find_rejection(key_of("a"));
  REQUIRE(found);
  CHECK(found->reason == "132 bytes spilled");
  CHECK(found->environment == "nvrtc=13.0");
  CHECK(found->time == system.time);
  system.time += 3'600'001;
  CHECK_FALSE(store.find_rejection(key_of("a")));
  CHECK(store.reject({key_of("a"), "again", "", 0}));
  CHECK(store.list_rejections().size() == 1);
  store.put_kernel(key_of("a"), "cubin", "");
  CHECK_FALSE(store.find_rejection(key_of("a")));
}

TEST_CASE("quarantine holds for one environment") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  CHECK(store.quarantine({key_of("a"), "driver=1", "m=128", "hung", 0}));
  CHECK(store.quarantined(key_of("a"), "driver=1") == "hung");
  CHECK_FALSE(store.quarantined(key_of("a"), "driver=2"));
  CHECK(store.list_quarantine().at(0).config == "m=128");
  CHECK(store.lift_quarantine(key_of("a")));
  CHECK_FALSE(store.lift_quarantine(key_of("a")));
  CHECK_FALSE(store.quarantined(key_of("a"), "driver=1"));
}

TEST_CASE("misses are counted, the most frequent first") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  store.note_miss(key_of("rare"), "rare");
  for (int i = 0; i < 3; ++i) store.note_miss(key_of("often"), "often");
  const auto misses = store.list_misses();
  REQUIRE(misses.size() == 2);
  CHECK(misses[0].problem == "often");
  CHECK(misses[0].count == 3);
  CHECK(store.forget_miss(key_of("often")));
  CHECK(store.list_misses().size() == 1);
}

TEST_CASE("the least recently used kernels make room, and use is noted once an hour") {
  TemporaryFolder folder;
  FakeSystem system;
  cache::Options options = options_for(folder.path());
  options.system = &system;
  options.size_cap_bytes = 3000;
  Store store = Store::open(options);
  for (const char* name : {"a", "b", "c"}) {
    store.put_kernel(key_of(name), blob_of(name, 1000), "");
    system.time += 1000;
  }
  CHECK(store.stats().evicted == 0);
  system.time += 2 * 3'600'000;
  CHECK(store.find_kernel(key_of("a")));  // now b is the oldest
  store.put_kernel(key_of("d"), blob_of("d", 1000), "");
  CHECK(store.stats().evicted == 1);
  CHECK(store.find_kernel(key_of("a")));
  CHECK_FALSE(store.find_kernel(key_of("b")));
  CHECK(store.list_kernels().size() == 3);

  CHECK(store.prune({.keep_bytes = 1000, .unused_since = {}}) == 2);
  CHECK(store.list_kernels().size() == 1);
  CHECK(store.prune({.keep_bytes = {}, .unused_since = system.time + 1}) == 1);
  CHECK(store.verify().problems.empty());
}

TEST_CASE("pruning gives the space back") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  for (int i = 0; i < 20; ++i) store.put_kernel(key_of(std::to_string(i)), blob_of("x", 100'000), "");
  store.prune({.keep_bytes = 0, .unused_since = {}});
  CHECK(std::filesystem::file_size(store.file()) < 200'000);
}

TEST_CASE("clear keeps the trials unless told otherwise") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  store.put_kernel(key_of("a"), "cubin", "");
  store.append_trial(trial_of("p", "c", 1));
  store.clear(false);
  CHECK_FALSE(store.find_kernel(key_of("a")));
  CHECK(store.trials(key_of("p")).size() == 1);
  store.clear(true);
  CHECK(store.trials(key_of("p")).empty());
}

TEST_CASE("merging is a union, and twice is once") {
  TemporaryFolder folder;
  Store ours = Store::open(options_for(folder / "ours"));
  Store theirs = Store::open(options_for(folder / "theirs"));
  ours.put_kernel(key_of("a"), "ours", "");
  ours.append_trial(trial_of("p", "slow", 2));
  ours.note_miss(key_of("m"), "m");
  theirs.put_kernel(key_of("a"), "theirs", "");
  theirs.put_kernel(key_of("b"), "b", "meta");
  theirs.append_trial(trial_of("p", "fast", 1));
  theirs.finish_session(key_of("p"), "session");
  theirs.quarantine({key_of("q"), "driver=1", "q", "hung", 0});
  theirs.reject({key_of("r"), "spills", "", 0});
  for (int i = 0; i < 5; ++i) theirs.note_miss(key_of("m"), "m");

  const cache::MergeReport first = ours.merge(theirs.file());
  CHECK(first.kernels == 1);
  CHECK(first.trials == 1);
  CHECK(first.others == 4);
  CHECK(first.refused == 0);
  const cache::MergeReport second = ours.merge(theirs.file());
  CHECK(second.kernels + second.trials + second.others + second.refused == 0);

  CHECK(ours.find_kernel(key_of("a"))->cubin == "ours");
  CHECK(ours.find_kernel(key_of("b"))->metadata == "meta");
  CHECK(ours.trials(key_of("p")).size() == 2);
  CHECK(ours.winner(key_of("p"))->config == "fast");
  CHECK(ours.winner(key_of("p"))->session_finished);
  CHECK(ours.list_misses().at(0).count == 5);
  CHECK(ours.quarantined(key_of("q"), "driver=1"));
  CHECK(ours.find_rejection(key_of("r")));
  CHECK(ours.verify().problems.empty());

  theirs.merge(ours.file());
  CHECK(theirs.trials(key_of("p")).size() == 2);
  CHECK(theirs.trials(key_of("p"))[0].uid == ours.trials(key_of("p"))[0].uid);
  CHECK(ours.merge(ours.file()).trials == 0);
}

TEST_CASE("merging refuses what is no cache, and says so") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder / "cache"));
  CHECK_THROWS_AS(store.merge(folder / "absent"), Error);
  write_bytes(folder / "garbage", blob_of("g", 5000));
  CHECK_THROWS_AS(store.merge(folder / "garbage"), Error);
  CHECK(store.stats().quarantined == 0);
  CHECK(store.stats().on_disk);
}

TEST_CASE("merging leaves out rows whose digest does not match") {
  TemporaryFolder folder;
  std::string file;
  {
    Store theirs = Store::open(options_for(folder / "theirs"));
    theirs.put_kernel(key_of("good"), "good", "");
    theirs.put_kernel(key_of("bad"), "bad", "");
    theirs.append_trial(trial_of("p", "honest", 2));
    theirs.append_trial(trial_of("p", "forged", 1));
    file = theirs.file();
  }
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &raw) == SQLITE_OK);
  const std::string forge = "UPDATE kernels SET cubin = x'00' WHERE build_key = '" + key_of("bad") +
                            "'; UPDATE trials SET median = 0.1 WHERE config = 'forged'";
  REQUIRE(sqlite3_exec(raw, forge.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(raw);
  Store ours = Store::open(options_for(folder / "ours"));
  const cache::MergeReport report = ours.merge(file);
  CHECK(report.kernels == 1);
  CHECK(report.trials == 1);
  CHECK(report.refused == 2);
  CHECK_FALSE(ours.find_kernel(key_of("bad")));
  CHECK(ours.winner(key_of("p"))->config == "honest");
}

TEST_CASE("without a folder everything works in memory, with one warning") {
  Warnings warnings;
  cache::Options options = options_for({});
  options.warn = warnings.callback();
  Store store = Store::open(options);
  CHECK_FALSE(store.put_kernel(key_of("a"), "cubin", "meta"));
  CHECK(store.find_kernel(key_of("a"))->cubin == "cubin");
  CHECK_FALSE(store.append_trial(trial_of("p", "c", 1)));
  CHECK(store.winner(key_of("p"))->config == "c");
  CHECK(store.trials(key_of("p")).size() == 1);
  CHECK(store.try_lease(key_of("k"), "me", std::chrono::seconds(1)));
  CHECK_FALSE(store.stats().on_disk);
  CHECK(store.stats().memory_only == 2);
  CHECK(store.file().empty());
  CHECK_THROWS_AS(store.verify(), Error);
  CHECK(warnings.messages.size() == 1);
}

TEST_CASE("read-only mode writes nothing and keeps what is new in memory") {
  TemporaryFolder folder;
  Store::open(options_for(folder / "cache")).put_kernel(key_of("a"), "cubin", "");
  const std::string before = read_bytes(folder / "cache/cache-v1.sqlite");
  Warnings warnings;
  cache::Options options = options_for(folder / "cache");
  options.read_only = true;
  options.warn = warnings.callback();
  {
    Store store = Store::open(options);
    CHECK(store.find_kernel(key_of("a")));
    CHECK_FALSE(store.put_kernel(key_of("b"), "new", ""));
    CHECK(store.find_kernel(key_of("b"))->cubin == "new");
    CHECK_FALSE(store.append_trial(trial_of("p", "c", 1)));
    CHECK(store.winner(key_of("p")));
  }
  CHECK(read_bytes(folder / "cache/cache-v1.sqlite") == before);
  CHECK(warnings.messages.empty());

  options.directory = folder / "absent";
  Store store = Store::open(options);
  CHECK_FALSE(store.find_kernel(key_of("a")));
  CHECK_FALSE(std::filesystem::exists(folder / "absent"));

  options.directory = folder / "empty";
  std::filesystem::create_directory(options.directory);
  std::filesystem::permissions(options.directory, std::filesystem::perms(0700));
  CHECK_FALSE(Store::open(options).find_kernel(key_of("a")));
  CHECK(std::filesystem::is_empty(options.directory));
}

TEST_CASE("where the cache lies") {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    own ? setenv("ATTUNE_CACHE_DIR", own, 1) : unsetenv("ATTUNE_CACHE_DIR");
    xdg ? setenv("XDG_CACHE_HOME", xdg, 1) : unsetenv("XDG_CACHE_HOME");
    home ? setenv("HOME", home, 1) : unsetenv("HOME");
    return cache::default_directory();
  };
  const pid_t child = start_process([&] {  // not to disturb the environment of the other tests
    Expectations expect;
    expect(with("/own", "/xdg", "/home/u") == "/own", "own");
    expect(with(nullptr, "/xdg", "/home/u") == "/xdg/attune", "xdg");
    expect(with("", "relative", "/home/u") == "/home/u/.cache/attune", "a relative XDG_CACHE_HOME is ignored");
    expect(with(nullptr, nullptr, nullptr).empty(), "nowhere");
    return expect.result();
  });
  CHECK(wait_for(child) == 0);
}
