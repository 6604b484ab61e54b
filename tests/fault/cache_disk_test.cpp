// Faults of the disk and of the file: each is a miss, never an exception.
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "tests/cache_support.h"

using namespace attune;
using namespace attune::test;
using cache::Store;

namespace {

constexpr const char* kFile = "/cache-v1.sqlite";

// A cache with ten kernels and ten trials, closed again.
void fill(const std::string& folder) {
  Store store = Store::open(options_for(folder));
  for (int i = 0; i < 10; ++i) {
    const std::string name = std::to_string(i);
    store.put_kernel(key_of(name), blob_of(name, 20'000), "meta");
    store.append_trial(trial_of("p", name, i + 1));
  }
}

std::vector<std::string> files_like(const std::string& folder, const std::string& part) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(part) != std::string::npos) names.push_back(name);
  }
  return names;
}

// Whatever the state, a Store must go on: every call returns, and what is put is found again.
void use_everything(Store& store) {
  const std::string key = key_of("new");
  CHECK_NOTHROW(store.find_kernel(key_of("3")));
  CHECK_NOTHROW(store.put_kernel(key, "new cubin", "new meta"));
  const auto kernel = store.find_kernel(key);
  REQUIRE(kernel);
  CHECK(kernel->cubin == "new cubin");
  CHECK_NOTHROW(store.append_trial(trial_of("new plan", "c", 1)));
  CHECK(store.winner(key_of("new plan")));
  CHECK_NOTHROW(store.winner(key_of("p")));
  CHECK_NOTHROW(store.alternates(key_of("p")));
  CHECK_NOTHROW(store.reject({key_of("r"), "why", "", 0}));
  CHECK(store.find_rejection(key_of("r")));
  CHECK_NOTHROW(store.quarantine({key_of("q"), "e", "c", "why", 0}));
  CHECK(store.quarantined(key_of("q"), "e"));
  CHECK_NOTHROW(store.note_miss(key_of("m"), "m"));
  CHECK_NOTHROW(store.list_kernels());
  CHECK_NOTHROW(store.list_plans());
  CHECK(store.try_lease(key_of("l"), "me", std::chrono::seconds(1)));
}

}  // namespace

TEST_CASE("a flipped bit in a kernel is a miss: deleted, counted, healed") {
  TemporaryFolder folder;
  fill(folder.path());
  for (const std::string& where : {blob_of("4", 20'000).substr(9000, 64), sha256_hex(blob_of("5", 20'000))}) {
    std::string bytes = read_bytes(folder.path() + kFile);
    const std::size_t at = bytes.find(where);
    REQUIRE(at != std::string::npos);
    bytes[at + 20] ^= 1;
    write_bytes(folder.path() + kFile, bytes);
  }
  Store store = Store::open(options_for(folder.path()));
  CHECK(store.verify().problems.size() == 2);
  for (const char* name : {"4", "5"}) {
    CHECK_FALSE(store.find_kernel(key_of(name)));
    CHECK(store.put_kernel(key_of(name), blob_of(name, 20'000), "meta"));
    CHECK(store.find_kernel(key_of(name)));
  }
  CHECK(store.stats().corrupt == 2);
  CHECK(store.find_kernel(key_of("3")));
  CHECK(store.verify().problems.empty());
}

TEST_CASE("changed metadata is a miss too") {
  TemporaryFolder folder;
  fill(folder.path());
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open((folder.path() + kFile).c_str(), &raw) == SQLITE_OK);
  sqlite3_exec(raw, "UPDATE kernels SET metadata = 'evil'", nullptr, nullptr, nullptr);
  sqlite3_close(raw);
  Store store = Store::open(options_for(folder.path()));
  CHECK_FALSE(store.find_kernel(key_of("1")));
  CHECK(store.stats().corrupt == 1);
}

TEST_CASE("a truncated or garbage database is set aside and a fresh one made") {
  TemporaryFolder folder;
  fill(folder / "good");
  const std::string good = read_bytes(folder / "good/cache-v1.sqlite");
  std::vector<std::string> damaged;
  for (const std::size_t size : {1, 15, 16, 50, 99, 100, 511, 512, 4095, 4096, 5000, 8192, 20'000}) {
    damaged.push_back(good.substr(0, size));
  }
  damaged.push_back(good.substr(0, good.size() / 2));
  damaged.push_back(good.substr(0, good.size() - 4096));
  damaged.push_back(blob_of("garbage", 50'000));
  damaged.push_back(std::string(10'000, '\0'));
  damaged.push_back(good.substr(0, 16) + blob_of("garbage", 50'000));
  damaged.push_back(good.substr(0, 100) + blob_of("garbage", 50'000));
  int set_aside = 0;
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    CAPTURE(i);
    const std::string here = folder / std::to_string(i);
    std::filesystem::create_directory(here);
    std::filesystem::permissions(here, std::filesystem::perms(0700));
    write_bytes(here + kFile, damaged[i]);
    Warnings warnings;
    cache::Options options = options_for(here);
    options.warn = warnings.callback();
    {
      Store store = Store::open(options);
      use_everything(store);
      for (int k = 0; k < 10; ++k) CHECK_NOTHROW(store.find_kernel(key_of(std::to_string(k))));
      CHECK_NOTHROW(store.trials(key_of("p")));
      CHECK(store.stats().on_disk);
      if (store.stats().quarantined > 0) {
        ++set_aside;
        CHECK(store.stats().quarantined == 1);
        CHECK(warnings.messages.size() == 1);
        const auto aside = files_like(here, ".damaged-");
        REQUIRE(!aside.empty());
      }
    }
    Store again = Store::open(options_for(here));
    CHECK(again.find_kernel(key_of("new")));
    CHECK(again.stats().faults == 0);
  }
  // The last few bytes of a file may be free pages; all else must have been noticed.
  CHECK(set_aside >= static_cast<int>(damaged.size()) - 2);
}

TEST_CASE("a database that is damaged while it is open") {
  TemporaryFolder folder;
  fill(folder.path());
  Warnings warnings;
  cache::Options options = options_for(folder.path());
  options.warn = warnings.callback();
  Store store = Store::open(options);
  REQUIRE(store.find_kernel(key_of("1")));
  // From another process: here, closing the file would drop SQLite's locks.
  wait_for(start_process([&] {
    std::fstream file(folder.path() + kFile, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << blob_of("garbage", 150'000);
    return 0;
  }));
  use_everything(store);
  for (int k = 0; k < 10; ++k) CHECK_NOTHROW(store.find_kernel(key_of(std::to_string(k))));
  CHECK(store.stats().on_disk);
  CHECK(store.find_kernel(key_of("new")));
}

TEST_CASE("processes that find the same damage make one fresh database") {
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    TemporaryFolder folder;
    write_bytes(folder.path() + kFile, blob_of("garbage", 50'000));
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      children.push_back(start_process([&, i] {
        Store store = Store::open(options_for(folder.path()));
        return store.put_kernel(key_of(std::to_string(i)), "cubin", "") ? 0 : 1;
      }));
    }
    for (const pid_t child : children) CHECK(wait_for(child) == 0);
    Store store = Store::open(options_for(folder.path()));
    CHECK(store.list_kernels().size() == 8);
    CHECK(files_like(folder.path(), ".damaged-").size() == 1);
  }
}

TEST_CASE("damage that another process has repaired meanwhile is not set aside again") {
  TemporaryFolder folder;
  fill(folder / "good");
  const std::string here = folder / "here";
  std::filesystem::create_directory(here);
  std::filesystem::permissions(here, std::filesystem::perms(0700));
  write_bytes(here + kFile, blob_of("garbage", 50'000));
  const int lock = open((here + "/cache.lock").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(flock(lock, LOCK_EX) == 0);  // as the process that repairs holds it
  std::thread late([&] {
    Store store = Store::open(options_for(here));
    CHECK(store.find_kernel(key_of("1")));
    CHECK(store.stats().quarantined == 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  std::filesystem::rename(folder / "good/cache-v1.sqlite", here + kFile);
  close(lock);
  late.join();
  CHECK(files_like(here, ".damaged-").empty());
}

TEST_CASE("many processes make the cache at the same time") {
  for (int round = 0; round < 6; ++round) {
    TemporaryFolder folder;
    std::vector<pid_t> children;
    for (int i = 0; i < 16; ++i) {
      children.push_back(start_process([&, i] {
        Store store = Store::open(options_for(folder.path()));
        if (!store.put_kernel(key_of(std::to_string(i)), "cubin", "")) return 1;
        return store.stats().faults == 0 ? 0 : 2;
      }));
    }
    for (const pid_t child : children) CHECK(wait_for(child) == 0);
    CHECK(Store::open(options_for(folder.path())).list_kernels().size() == 16);
    CHECK(files_like(folder.path(), ".damaged-").empty());
  }
}

TEST_CASE("a disk that damages one database after another is given up") {
  TemporaryFolder folder;
  Store store = Store::open(options_for(folder.path()));
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    store.put_kernel(key_of(std::to_string(round)), "cubin", "");
    wait_for(start_process([&] {
      write_bytes(folder.path() + kFile, blob_of("garbage", 90'000));
      std::filesystem::remove(folder.path() + kFile + "-wal");
      return 0;
    }));
    use_everything(store);
  }
  CHECK(store.stats().quarantined == 3);
  CHECK_FALSE(store.stats().on_disk);
}

TEST_CASE("damage in the other file of a merge is no reason to set this one aside") {
  TemporaryFolder folder;
  fill(folder / "other");
  std::string bytes = read_bytes(folder / "other/cache-v1.sqlite");
  // Behind the pages of the schema, so that it is met while rows are copied and not when the file is opened.
  REQUIRE(bytes.size() > 250'000);
  bytes.replace(120'000, 130'000, blob_of("garbage", 130'000));
  write_bytes(folder / "other/cache-v1.sqlite", bytes);
  fill(folder / "ours");
  Store store = Store::open(options_for(folder / "ours"));
  CHECK_THROWS_AS(store.merge(folder / "other/cache-v1.sqlite"), Error);
  CHECK(store.stats().faults == 0);
  CHECK(store.stats().quarantined == 0);
  CHECK(store.find_kernel(key_of("1")));
  CHECK(store.verify().problems.empty());
}

TEST_CASE("a database of a later version is left untouched") {
  TemporaryFolder folder;
  fill(folder.path());
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open((folder.path() + kFile).c_str(), &raw) == SQLITE_OK);
  sqlite3_exec(raw, "PRAGMA user_version=2; DROP VIEW winners; PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr,
               nullptr);
  sqlite3_close(raw);
  write_bytes(folder / "cache-v2.sqlite", "whatever version 2 looks like");
  const std::string before = read_bytes(folder.path() + kFile);
  Warnings warnings;
  cache::Options options = options_for(folder.path());
  options.warn = warnings.callback();
  {
    Store store = Store::open(options);
    CHECK_FALSE(store.find_kernel(key_of("1")));
    use_everything(store);
    CHECK(store.file() == folder / "cache-v1-2.sqlite");
    CHECK(store.stats().quarantined == 0);
  }
  CHECK(warnings.messages.size() == 1);
  CHECK(read_bytes(folder.path() + kFile) == before);
  CHECK(read_bytes(folder / "cache-v2.sqlite") == "whatever version 2 looks like");
}

TEST_CASE("somebody else's SQLite database is not taken for a cache") {
  TemporaryFolder folder;
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open((folder.path() + kFile).c_str(), &raw) == SQLITE_OK);
  sqlite3_exec(raw, "CREATE TABLE kernels(x); INSERT INTO kernels VALUES (1)", nullptr, nullptr, nullptr);
  sqlite3_close(raw);
  chmod((folder.path() + kFile).c_str(), 0600);
  Store store = Store::open(options_for(folder.path()));
  use_everything(store);
  CHECK(store.stats().quarantined == 1);
  CHECK(files_like(folder.path(), ".damaged-").size() == 1);
}

TEST_CASE("tables that are missing although the version matches") {
  TemporaryFolder folder;
  fill(folder.path());
  sqlite3* raw = nullptr;
  REQUIRE(sqlite3_open((folder.path() + kFile).c_str(), &raw) == SQLITE_OK);
  sqlite3_exec(raw, "DROP TABLE trials", nullptr, nullptr, nullptr);
  sqlite3_close(raw);
  Store store = Store::open(options_for(folder.path()));
  CHECK_NOTHROW(store.append_trial(trial_of("p", "c", 1)));
  use_everything(store);
  CHECK(store.stats().quarantined == 1);
}

TEST_CASE("a file that vanishes while it is in use") {
  TemporaryFolder folder;
  const std::string here = folder / "cache";
  Store store = Store::open(options_for(here));
  CHECK(store.put_kernel(key_of("a"), "cubin", ""));
  std::filesystem::remove_all(here);
  CHECK_FALSE(store.find_kernel(key_of("a")));
  CHECK(store.put_kernel(key_of("b"), "cubin", ""));
  CHECK(Store::open(options_for(here)).find_kernel(key_of("b")));
  CHECK(store.stats().faults == 0);
}

TEST_CASE("a folder or file that others may change is not used") {
  TemporaryFolder folder;
  const auto check_refused = [&](const char* what) {
    CAPTURE(what);
    Warnings warnings;
    cache::Options options = options_for(folder / "cache");
    options.warn = warnings.callback();
    Store store = Store::open(options);
    CHECK_FALSE(store.find_kernel(key_of("1")));
    use_everything(store);
    CHECK_FALSE(store.stats().on_disk);
    CHECK(warnings.messages.size() == 1);
  };
  fill(folder / "cache");
  for (const mode_t mode : {0770, 0707, 0777}) {
    chmod((folder / "cache").c_str(), mode);
    check_refused("folder writable by others");
  }
  chmod((folder / "cache").c_str(), 0755);
  CHECK(Store::open(options_for(folder / "cache")).find_kernel(key_of("1")));
  chmod((folder / "cache/cache-v1.sqlite").c_str(), 0620);
  check_refused("file writable by the group");
  chmod((folder / "cache/cache-v1.sqlite").c_str(), 0600);
  if (geteuid() != 0) {
    MESSAGE("SKIPPED: folders of other users are NOT tested: it takes root to make one");
    return;
  }
  REQUIRE(chown((folder / "cache").c_str(), 4321, 4321) == 0);
  check_refused("folder of another user");
  REQUIRE(chown((folder / "cache").c_str(), 0, 0) == 0);
  REQUIRE(chown((folder / "cache/cache-v1.sqlite").c_str(), 4321, 4321) == 0);
  check_refused("file of another user");
}

TEST_CASE("a path that cannot be a cache") {
  TemporaryFolder folder;
  write_bytes(folder / "file", "not a folder");
  std::filesystem::create_directories(folder / "odd/cache-v1.sqlite");
  for (const std::string& path :
       {folder / "file", folder / "file/below", std::string("/proc/attune"), folder / "odd"}) {
    CAPTURE(path);
    Warnings warnings;
    cache::Options options = options_for(path);
    options.warn = warnings.callback();
    Store store = Store::open(options);
    use_everything(store);
    CHECK_FALSE(store.stats().on_disk);
    CHECK(warnings.messages.size() == 1);
  }
  CHECK(read_bytes(folder / "file") == "not a folder");
}

TEST_CASE("a full disk: kernels are still returned, one warning, no later corruption") {
  if (!can_mount("a full disk")) return;
  TemporaryFolder folder;
  const pid_t child = start_process([&] {
    Expectations expect;
    if (!mount_small_disk(folder.path(), "size=2m,mode=0700")) return 99;
    FakeSystem system;
    Warnings warnings;
    cache::Options options = options_for(folder.path());
    options.system = &system;
    options.warn = warnings.callback();
    write_bytes(folder / "ballast", std::string(1'600'000, 'x'));
    std::vector<std::string> stored;
    std::vector<std::string> kept;
    {
      Store store = Store::open(options);
      expect(store.stats().on_disk, "the empty disk is used");
      for (int i = 0; i < 40; ++i) {
        const std::string name = std::to_string(i);
        (store.put_kernel(key_of(name), blob_of(name, 12'000), "m") ? stored : kept).push_back(name);
        const auto kernel = store.find_kernel(key_of(name));
        expect(kernel && kernel->cubin == blob_of(name, 12'000), "a kernel is returned although the disk is full");
      }
      expect(stored.size() >= 2 && kept.size() >= 10, "some are on disk, the rest in memory");
      expect(warnings.messages.size() == 1, "one warning");
      expect(!store.append_trial(trial_of("p", "c", 1)), "a trial goes to memory");
      expect(store.winner(key_of("p")).has_value(), "a winner in memory");
      expect(store.verify().problems.empty(), "integrity on the full disk");

      std::filesystem::remove(folder / "ballast");
      system.time += 60'000;
      expect(store.append_trial(trial_of("p", "d", 2)), "the disk has room again");
      expect(store.winner(key_of("p"))->config == "c", "what was in memory counts");
      expect(store.verify().problems.empty(), "integrity afterwards");
    }
    Store again = Store::open(options);
    for (const std::string& name : stored) expect(again.find_kernel(key_of(name)).has_value(), "stored is stored");
    for (const std::string& name : kept) expect(again.find_kernel(key_of(name)).has_value(), "all written down");
    expect(again.trials(key_of("p")).size() == 2, "trials too");
    return expect.result();
  });
  CHECK(wait_for(child) == 0);
}

TEST_CASE("a disk that was full before the cache was made") {
  if (!can_mount("a cache on a disk that is full from the start")) return;
  TemporaryFolder folder;
  const pid_t child = start_process([&] {
    Expectations expect;
    if (!mount_small_disk(folder.path(), "size=256k,mode=0700")) return 99;
    FakeSystem system;
    Warnings warnings;
    cache::Options options = options_for(folder.path());
    options.system = &system;
    options.warn = warnings.callback();
    write_bytes(folder / "ballast", std::string(400'000, 'x'));
    Store store = Store::open(options);
    expect(!store.put_kernel(key_of("a"), "cubin", ""), "in memory");
    expect(store.find_kernel(key_of("a")).has_value(), "found in memory");
    expect(warnings.messages.size() == 1, "one warning");
    std::filesystem::remove(folder / "ballast");
    system.time += 60'000;
    expect(store.put_kernel(key_of("b"), "cubin", ""), "on disk");
    expect(Store::open(options).find_kernel(key_of("a")).has_value(), "the first one was written down");
    return expect.result();
  });
  CHECK(wait_for(child) == 0);
}

TEST_CASE("a read-only file system: reads work, new kernels stay in memory") {
  if (!can_mount("a read-only file system")) return;
  for (const bool killed : {false, true}) {
    CAPTURE(killed);
    TemporaryFolder folder;
    const pid_t child = start_process([&] {
      Expectations expect;
      if (!mount_small_disk(folder.path(), "size=8m,mode=0700")) return 99;
      if (killed) {  // leaves a WAL behind
        wait_for(start_process([&] {
          Store store = Store::open(options_for(folder.path()));
          store.put_kernel(key_of("1"), blob_of("1", 20'000), "meta");
          store.append_trial(trial_of("p", "old", 2));
          return raise(SIGKILL);
        }));
      } else {
        fill(folder.path());
      }
      if (mount("none", folder.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 98;
      Warnings warnings;
      FakeSystem system;
      cache::Options options = options_for(folder.path());
      options.warn = warnings.callback();
      options.system = &system;
      Store store = Store::open(options);
      expect(store.stats().on_disk, "the disk is read");
      expect(store.find_kernel(key_of("1")).has_value(), "a kernel is found");
      expect(!store.put_kernel(key_of("new"), "new", ""), "a new one goes to memory");
      expect(store.find_kernel(key_of("new")).has_value(), "and is found there");
      expect(!store.append_trial(trial_of("p", "fresh", 0.5)), "a trial goes to memory");
      expect(store.winner(key_of("p"))->config == "fresh", "and beats those on disk");
      expect(store.trials(key_of("p")).size() == (killed ? 2 : 11), "trials of both are seen");
      expect(warnings.messages.size() == 1, "one warning");
      if (mount("none", folder.path().c_str(), nullptr, MS_REMOUNT, nullptr) != 0) return 97;
      system.time += 60'000;
      expect(store.put_kernel(key_of("later"), "later", ""), "written again when the disk can be");
      expect(Store::open(options_for(folder.path())).find_kernel(key_of("new")).has_value(), "memory written down");
      return expect.result();
    });
    CHECK(wait_for(child) == 0);
  }
}

TEST_CASE("on a network file system there is no WAL, and one warning") {
  TemporaryFolder folder;
  FakeSystem system;
  system.network = true;
  Warnings warnings;
  cache::Options options = options_for(folder.path());
  options.system = &system;
  options.warn = warnings.callback();
  {
    Store store = Store::open(options);
    use_everything(store);
    CHECK(store.stats().on_disk);
    CHECK(files_like(folder.path(), "-wal").empty());
    CHECK(files_like(folder.path(), "-shm").empty());
  }
  CHECK(warnings.messages.size() == 1);
  CHECK(read_bytes(folder.path() + kFile)[18] == 1);  // the rollback journal's file format

  TemporaryFolder local;
  options.directory = local.path();
  system.network = false;
  Store::open(options).put_kernel(key_of("a"), "cubin", "");
  CHECK(read_bytes(local.path() + kFile)[18] == 2);  // on a local disk it is WAL's
  system.network = true;                             // and then it is moved
  CHECK(Store::open(options).find_kernel(key_of("a")));
  CHECK(read_bytes(local.path() + kFile)[18] == 1);
}
