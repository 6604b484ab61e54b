// Packs that are as they should be: written, read, compared, merged.
#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "tests/pack_support.h"

using namespace attune;
using namespace attune::test;

namespace {

ErrorCode code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("a manifest survives its text, and its text is always the same") {
  Manifest manifest = sample_pack().manifest;
  manifest.entries[0].problem = "quotes \" \\ and \xc3\xa9 and \n";
  manifest.created = "2025-01-01";
  manifest.entries[1].launch.before = {{"prepare", 256, 0}};
  manifest.entries[1].launch.after = {{"finish", 256, 1024}, {"last", 32, 0}};
  manifest.entries[1].launch.dq_rows = 128;
  const std::string text = to_json(manifest);
  CHECK(parse_manifest(text) == manifest);
  CHECK(to_json(parse_manifest(text)) == text);
  CHECK(to_json(Manifest{}) ==
        "{\n  \"created\": \"\",\n  \"entries\": [],\n  \"producer\": \"\",\n  \"quarantine\": [],\n  \"schema\": "
        "5\n}\n");
}

TEST_CASE("a pack comes back as it was written") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  write_pack(folder / "my.pack", sample.manifest, sample.cubins);
  const Pack pack = read_pack(folder / "my.pack", kUnsigned);
  CHECK(pack.manifest() == sample.manifest);
  CHECK(pack.directory() == folder / "my.pack");
  for (const PackEntry& entry : pack.entries()) CHECK(pack.cubin(entry) == sample.cubins.at(entry.cubin_sha256));
  const auto found = pack.find("seqlen=4096", "sm_90a");
  REQUIRE(found.size() == 2);
  CHECK(found[0]->config == "m=128");
  CHECK(pack.find("seqlen=4096", "sm_80").empty());
  CHECK(pack.find("seqlen=409", "sm_90a").empty());
  CHECK(verify_pack(folder / "my.pack").empty());

  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder / "my.pack")) {
    struct stat info{};
    REQUIRE(stat(file.path().c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    ++files;
  }
  CHECK(files == 3);
}

TEST_CASE("equal manifests make equal folders") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  write_pack(folder / "a", sample.manifest, sample.cubins);
  write_pack(folder / "b/", sample.manifest, sample.cubins);  // a slash at the end is no other name
  CHECK(read_bytes(folder / "a/manifest.json") == read_bytes(folder / "b/manifest.json"));
  CHECK(read_bytes(folder / "a/manifest.json") == to_json(sample.manifest));
}

TEST_CASE("an unsigned pack takes a flag, and the error says which") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  write_pack(folder / "p", sample.manifest, sample.cubins);
  try {
    read_pack(folder / "p");
    FAIL("it was read");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::pack);
    CHECK(std::string(error.what()).find("allow_unsigned") != std::string::npos);
  }
}

TEST_CASE("a pack is replaced in one step; an open one stays what it was") {
  TemporaryFolder folder;
  SamplePack sample = sample_pack();
  write_pack(folder / "p", sample.manifest, sample.cubins);
  const Pack before = read_pack(folder / "p", kUnsigned);
  Manifest smaller = sample.manifest;
  smaller.entries.resize(2);
  smaller.entries.erase(smaller.entries.begin());
  write_pack(folder / "p", smaller, sample.cubins);
  CHECK(read_pack(folder / "p", kUnsigned).entries().size() == 1);
  CHECK(verify_pack(folder / "p").empty());  // no file of the old one is left
  CHECK(before.entries().size() == 3);
  int names = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++names;
  CHECK(names == 1);  // and no temporary folder
}

TEST_CASE("nothing but a pack is overwritten") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  const auto write = [&](const std::string& name) {
    return code_of([&] { write_pack(folder / name, sample.manifest, sample.cubins); });
  };
  std::filesystem::create_directories(folder / "photos");
  write_bytes(folder / "photos/a.jpg", "a");
  CHECK(write("photos") == ErrorCode::pack);
  CHECK(read_bytes(folder / "photos/a.jpg") == "a");

  std::filesystem::create_directories(folder / "cubins");
  write_bytes(folder / "cubins/" + key_of("c") + ".cubin", "a");
  CHECK(write("cubins") == ErrorCode::pack);

  write_bytes(folder / "file", "a");
  CHECK(write("file") == ErrorCode::pack);
  CHECK(read_bytes(folder / "file") == "a");

  write_pack(folder / "good", sample.manifest, sample.cubins);
  write_bytes(folder / "good/notes.txt", "mine");
  CHECK(write("good") == ErrorCode::pack);
  CHECK(read_bytes(folder / "good/notes.txt") == "mine");

  std::filesystem::create_directory_symlink(folder / "photos", folder / "link");
  CHECK(write("link") == ErrorCode::pack);
  CHECK(write("absent/p") == ErrorCode::io);
  CHECK(write("good/..") == ErrorCode::pack);
  CHECK(code_of([&] { write_pack("", sample.manifest, sample.cubins); }) == ErrorCode::pack);
  CHECK(code_of([&] { write_pack("/", sample.manifest, sample.cubins); }) == ErrorCode::pack);

  std::filesystem::create_directory(folder / "empty");
  write_pack(folder / "empty", sample.manifest, sample.cubins);
  CHECK(verify_pack(folder / "empty").empty());
}

TEST_CASE("cubins that are missing or differ from the manifest are not written") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  auto cubins = sample.cubins;
  cubins.begin()->second[0] ^= 1;
  CHECK(code_of([&] { write_pack(folder / "p", sample.manifest, cubins); }) == ErrorCode::pack);
  cubins = sample.cubins;
  cubins.erase(cubins.begin());
  CHECK(code_of([&] { write_pack(folder / "p", sample.manifest, cubins); }) == ErrorCode::pack);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("what two packs differ in") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  write_pack(folder / "old", sample.manifest, sample.cubins);
  Manifest changed = sample.manifest;
  changed.entries[0].median = "400 us";
  changed.entries[1].config = "m=256";
  write_pack(folder / "new", changed, sample.cubins);
  const Pack older = read_pack(folder / "old", kUnsigned);
  const Pack newer = read_pack(folder / "new", kUnsigned);
  CHECK(diff_packs(older, older).empty());
  CHECK(diff_packs(older, newer) == std::vector<std::string>{
                                        "~ seqlen=4096 sm_90a m=128 (median 412.5 us -> 400 us)",
                                        "- seqlen=4096 sm_90a m=192",
                                        "+ seqlen=4096 sm_90a m=256",
                                    });
}

TEST_CASE("merging keeps the preferred entries and adds the others") {
  TemporaryFolder folder;
  const SamplePack sample = sample_pack();
  write_pack(folder / "a", sample.manifest, sample.cubins);
  const std::string three = blob_of("three", 77);
  Manifest other;
  other.entries = {entry_of("seqlen=4096", "m=128", three), entry_of("seqlen=1", "m=64", three)};
  other.quarantine = {sample.manifest.quarantine[0], {key_of("worse"), "driver=1", "crashed"}};
  write_pack(folder / "b", other, {{sha256_hex(three), three}});
  const Pack a = read_pack(folder / "a", kUnsigned);
  merge_packs(a, read_pack(folder / "b", kUnsigned), folder / "both");
  const Pack both = read_pack(folder / "both", kUnsigned);
  CHECK(verify_pack(folder / "both").empty());
  REQUIRE(both.entries().size() == 4);
  CHECK(both.entries()[0] == sample.manifest.entries[0]);
  CHECK(both.cubin(both.entries()[3]) == three);
  CHECK(both.manifest().quarantine.size() == 2);
}
