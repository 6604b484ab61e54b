// Packs that are damaged or hostile: a typed error, and nothing outside the folder is touched.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/pack_support.h"

using namespace attune;
using namespace attune::test;
using nlohmann::json;

namespace {

struct PackFixture {
  TemporaryFolder folder;
  SamplePack sample = sample_pack();
  std::string path = folder / "p";
  std::string manifest_file = path + "/manifest.json";
  std::string text;
  std::string cubin_file;

  PackFixture() {
    write_pack(path, sample.manifest, sample.cubins);
    text = read_bytes(manifest_file);
    cubin_file = path + "/" + sample.manifest.entries[0].cubin_sha256 + ".cubin";
  }

  // Reading must fail with Error(pack); the message is returned.
  std::string message_of_reading() {
    try {
      const Pack pack = read_pack(path, kUnsigned);
      for (const PackEntry& entry : pack.entries()) pack.cubin(entry);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::pack);
      CHECK(!verify_pack(path).empty());
      return error.what();
    }
    FAIL_CHECK("a bad pack was read");
    return {};
  }

  void check_refused_manifest(const std::string& manifest, const std::string& part) {
    CAPTURE(part);
    write_bytes(manifest_file, manifest);
    const std::string message = message_of_reading();
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }

  // The manifest with one value replaced.
  std::string with(const std::string& pointer, const json& value) {
    json document = json::parse(text);
    document[json::json_pointer(pointer)] = value;
    return document.dump() + "\n";
  }
  std::string without(const std::string& pointer, const std::string& key) {
    json document = json::parse(text);
    document[json::json_pointer(pointer)].erase(key);
    return document.dump() + "\n";
  }
};

}  // namespace

TEST_CASE_FIXTURE(PackFixture, "a manifest that is cut off at any byte") {
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    try {
      parse_manifest(text.substr(0, size));
      FAIL_CHECK("it was parsed");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::pack) CHECK(error.code() == ErrorCode::pack);
    }
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 1}) {
    check_refused_manifest(text.substr(0, size), "manifest");
  }
}

TEST_CASE_FIXTURE(PackFixture, "a manifest with any byte changed is read to something valid or refused") {
  unsigned seed = 1;
  for (int i = 0; i < 6'000; ++i) {
    std::string damaged = text;
    for (int k = 0; k <= i % 3; ++k) {
      seed = seed * 1103515245 + 12345;
      const std::size_t at = (seed >> 4) % damaged.size();
      seed = seed * 1103515245 + 12345;
      damaged[at] = static_cast<char>(seed >> 16);
    }
    try {
      const Manifest manifest = parse_manifest(damaged);
      CHECK(parse_manifest(to_json(manifest)) == manifest);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::pack) CHECK(error.code() == ErrorCode::pack);
    }
  }
}

TEST_CASE_FIXTURE(PackFixture, "a cubin that is cut off at any byte, longer, or changed") {
  const std::string good = read_bytes(cubin_file);
  const Pack pack = read_pack(path, kUnsigned);
  for (std::size_t size = 0; size < good.size(); ++size) {
    std::filesystem::resize_file(cubin_file, 0);
    write_bytes(cubin_file, good.substr(0, size));
    CHECK_THROWS_AS(pack.cubin(pack.entries()[0]), Error);
  }
  write_bytes(cubin_file, good + "x");
  CHECK(message_of_reading().find("bytes") != std::string::npos);
  for (const std::size_t at : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    std::string flipped = good;
    flipped[at] ^= 1;
    write_bytes(cubin_file, flipped);
    CHECK(message_of_reading().find("digest") != std::string::npos);
  }
  write_bytes(cubin_file, good);
  CHECK(pack.cubin(pack.entries()[0]) == good);
}

TEST_CASE_FIXTURE(PackFixture, "names that lead out of the folder") {
  write_bytes(folder / "secret.cubin", sample.cubins.begin()->second);
  const std::string digest = sample.manifest.entries[0].cubin_sha256;
  for (const std::string& name :
       {std::string("../secret"), std::string("/etc/passwd"), folder / "secret", "../" + digest.substr(3),
        std::string(64, '/'), std::string("."), std::string(), digest + "0", digest.substr(1), std::string(64, 'A'),
        std::string(64, 'g'), digest.substr(0, 63) + std::string(1, '\0'), digest + std::string("\0.x", 3),
        std::string(1'000'000, 'a')}) {
    check_refused_manifest(with("/entries/0/cubin_sha256", name), "cubin_sha256");
    PackEntry entry = sample.manifest.entries[0];
    entry.cubin_sha256 = name;
    write_bytes(manifest_file, text);
    const Pack pack = read_pack(path, kUnsigned);
    std::string message;
    try {
      pack.cubin(entry);  // not even from the caller
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK_MESSAGE(message.find("cubin_sha256") != std::string::npos, message);
    Manifest manifest = sample.manifest;
    manifest.entries[0].cubin_sha256 = name;
    CHECK_THROWS_AS(write_pack(folder / "out", manifest, {{name, "x"}}), Error);
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
  }
}

TEST_CASE_FIXTURE(PackFixture, "links, pipes, folders in place of files") {
  const std::string good = read_bytes(cubin_file);
  write_bytes(folder / "elsewhere", good);
  const auto replace = [&](const std::string& file, const std::function<void()>& make) {
    const std::string before = read_bytes(file);
    std::filesystem::remove(file);
    make();
    const std::string message = message_of_reading();
    std::filesystem::remove_all(file);
    write_bytes(file, before);
    std::filesystem::permissions(file, std::filesystem::perms(0600));
    return message;
  };
  const auto contains = [](const std::string& message, const char* part) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  write_bytes(folder / "manifest", text);
  contains(replace(cubin_file, [&] { std::filesystem::create_symlink(folder / "elsewhere", cubin_file); }), "link");
  contains(replace(manifest_file, [&] { std::filesystem::create_symlink(folder / "manifest", manifest_file); }),
           "link");
  contains(replace(cubin_file, [&] { REQUIRE(mkfifo(cubin_file.c_str(), 0600) == 0); }), "regular");
  contains(replace(manifest_file, [&] { REQUIRE(mkfifo(manifest_file.c_str(), 0600) == 0); }), "regular");
  contains(replace(cubin_file, [&] { std::filesystem::create_directory(cubin_file); }), "regular");
  contains(replace(cubin_file, [] {}), "missing");
  contains(replace(manifest_file, [] {}), "missing");
  contains(replace(cubin_file, [&] { std::filesystem::create_symlink("/dev/zero", cubin_file); }), "link");
  CHECK(read_pack(path, kUnsigned).cubin(sample.manifest.entries[0]) == good);
}

TEST_CASE_FIXTURE(PackFixture, "what is no folder, or not there") {
  for (const std::string& name : {folder / "absent", manifest_file, std::string("/dev/null"), std::string()}) {
    CAPTURE(name);
    CHECK_THROWS_AS(read_pack(name, kUnsigned), Error);
    CHECK(verify_pack(name).size() == 1);
  }
}

TEST_CASE_FIXTURE(PackFixture, "manifests that are made to hurt the parser") {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += open;
    check_refused_manifest(deep + "\n", "deep");
  }
  check_refused_manifest("{\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}\n", "deep");
  std::string many = "{\"x\":[0";
  for (int i = 0; i < kMaxManifestValues + 1; ++i) many += ",0";
  check_refused_manifest(many + "]}\n", "too many values");
  check_refused_manifest("", "cut off");
  check_refused_manifest("\n", "manifest");
  check_refused_manifest("null\n", "not an object");
  check_refused_manifest("[]\n", "not an object");
  check_refused_manifest("{}\n", "schema");
  check_refused_manifest(text + text, "manifest");
  check_refused_manifest(std::string(5000, '\0') + "\n", "manifest");
  check_refused_manifest("{\"producer\":\"\xff\xfe\"}\n", "manifest");
  check_refused_manifest("\"" + std::string(200'000, '\\') + "\n", "manifest");
}

TEST_CASE_FIXTURE(PackFixture, "a manifest too large to read is refused before it is read") {
  std::filesystem::resize_file(manifest_file, kMaxManifestBytes + 1);  // sparse
  CHECK(message_of_reading().find("bytes") != std::string::npos);
  std::filesystem::resize_file(manifest_file, std::uintmax_t{1} << 40);
  CHECK(message_of_reading().find("bytes") != std::string::npos);
  write_bytes(manifest_file, text);
  std::filesystem::resize_file(cubin_file, std::uintmax_t{1} << 40);
  CHECK(message_of_reading().find("bytes") != std::string::npos);
}

TEST_CASE_FIXTURE(PackFixture, "numbers out of range") {
  for (const json& value : {json(-1), json(0), json(1ull << 62), json(~0ull), json(1e30), json(1.5), json("3000"),
                            json(nullptr), json(true), json::array()}) {
    check_refused_manifest(with("/entries/0/cubin_bytes", value), "cubin_bytes");
  }
  // Not what json::dump would print, but what an attacker may.
  std::string huge = with("/entries/0/cubin_bytes", "@");
  huge.replace(huge.find("\"@\""), 3, "184467440737095516170000");
  check_refused_manifest(huge, "cubin_bytes");
  for (const char* field :
       {"threads", "shared_bytes", "block_m", "block_n", "q_box_rows", "kv_box_rows", "o_box_rows", "dq_rows"}) {
    for (const json& value : {json(-1), json(1ll << 31), json(~0ull), json(2.0), json("1")}) {
      check_refused_manifest(with(std::string("/entries/0/launch/") + field, value), field);
    }
  }
  check_refused_manifest(with("/entries/0/launch/counter", 1), "counter");
  for (const char* field : {"threads", "shared_bytes"}) {
    json side{{"entry", "prepare"}, {"threads", 256}, {"shared_bytes", 0}};
    side[field] = -1;
    check_refused_manifest(with("/entries/0/launch/before", json::array({side})), field);
    side.erase(field);
    check_refused_manifest(with("/entries/0/launch/after", json::array({side})), field);
  }
  check_refused_manifest(with("/entries/0/registers", -1), "registers");
  check_refused_manifest(with("/entries/0/cubin_bytes", 17), "");
}

TEST_CASE_FIXTURE(PackFixture, "fields missing or of another type") {
  const json document = json::parse(text);
  for (const auto& [key, value] : document.items()) {
    check_refused_manifest(without("", key), key);
    if (key != "schema") check_refused_manifest(with("/" + key, 5), key);
  }
  const json entry = document["entries"][0];
  for (const auto& [key, value] : entry.items()) {
    check_refused_manifest(without("/entries/0", key), key);
    check_refused_manifest(with("/entries/0/" + key, json::array({1})), key);
  }
  for (const auto& [key, value] : entry["launch"].items())
    check_refused_manifest(without("/entries/0/launch", key), key);
  check_refused_manifest(with("/entries/0/launch/before", 5), "before");
  check_refused_manifest(with("/entries/0/launch/after", json::array({"finish"})), "after");
  for (const char* key : {"build_key", "environment", "reason"}) {
    check_refused_manifest(without("/quarantine/0", key), key);
  }
  check_refused_manifest(with("/entries/1", 5), "entry 1");
}

TEST_CASE_FIXTURE(PackFixture, "duplicates, NULs and odd names") {
  json document = json::parse(text);
  document["entries"].push_back(document["entries"][0]);
  check_refused_manifest(document.dump() + "\n", "same problem");
  std::string twice = text;
  const std::string schema = "\"schema\": " + std::to_string(kPackSchema);
  twice.replace(twice.find(schema), schema.size(), schema + ", " + schema);
  check_refused_manifest(twice, "twice");
  check_refused_manifest(with("/entries/2/cubin_bytes", 5), "another size");
  for (const char* field : {"problem", "config", "spec", "errors", "environment", "median", "tflops"}) {
    check_refused_manifest(with(std::string("/entries/0/") + field, std::string("a\0b", 3)), "NUL");
  }
  for (const std::string& name : {std::string(), std::string("a b"), std::string("1a"), std::string("a\0b", 3),
                                  std::string("a;b"), std::string(2000, 'a')}) {
    check_refused_manifest(with("/entries/0/launch/entry", name), "identifier");
    const json side{{"entry", name}, {"threads", 256}, {"shared_bytes", 0}};
    check_refused_manifest(with("/entries/0/launch/after", json::array({side})), "identifier");
    check_refused_manifest(with("/entries/0/arch", name), "identifier");
  }
  check_refused_manifest(with("/entries/0/build_key", "short"), "build_key");
  check_refused_manifest(with("/quarantine/0/build_key", "short"), "build_key");
}

TEST_CASE_FIXTURE(PackFixture, "messages carry no control characters of the file's") {
  write_bytes(manifest_file, with("/entries/0/build_key", "\x1b[2J\n" + std::string(5000, 'x')));
  const std::string message = message_of_reading();
  CHECK(message.find('\x1b') == std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 1000);
}

TEST_CASE_FIXTURE(PackFixture, "later versions") {
  check_refused_manifest(with("/schema", kPackSchema + 1), "later version");
  check_refused_manifest(with("/schema", kPackSchema - 1), "earlier version");
  check_refused_manifest(with("/schema", 0), "schema");
  check_refused_manifest(with("/schema", "1"), "schema");
  write_bytes(manifest_file, with("/entries/0/a_new_field", json::object({{"x", 1}})));
  CHECK(read_pack(path, kUnsigned).manifest() == sample.manifest);
}

TEST_CASE_FIXTURE(PackFixture, "files that others may change are refused unless they are asked for") {
  for (const std::string& name : {path, manifest_file, cubin_file}) {
    CAPTURE(name);
    struct stat info{};
    REQUIRE(stat(name.c_str(), &info) == 0);
    chmod(name.c_str(), info.st_mode | 0020);
    CHECK(message_of_reading().find("writable") != std::string::npos);
    CHECK(read_pack(path, {.allow_unsigned = true, .allow_foreign_files = true}).cubin(sample.manifest.entries[0]) ==
          sample.cubins.at(sample.manifest.entries[0].cubin_sha256));
    chmod(name.c_str(), info.st_mode);
    if (geteuid() != 0) {
      MESSAGE("SKIPPED: files of other users are NOT tested: it takes root to make one");
      continue;
    }
    REQUIRE(chown(name.c_str(), 4321, 4321) == 0);
    CHECK(message_of_reading().find("belongs to user 4321") != std::string::npos);
    REQUIRE(chown(name.c_str(), 0, 0) == 0);
  }
  CHECK(verify_pack(path).empty());
}

TEST_CASE_FIXTURE(PackFixture, "verify lists everything, not only the first") {
  write_bytes(path + "/stray\n.txt", "x");
  std::filesystem::remove(cubin_file);
  const std::string other = path + "/" + sample.manifest.entries[1].cubin_sha256 + ".cubin";
  write_bytes(other, "changed");
  chmod(manifest_file.c_str(), 0666);
  const auto problems = verify_pack(path);
  const auto mentions = [&](const char* part) {
    return std::any_of(problems.begin(), problems.end(),
                       [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  CHECK(problems.size() == 4);
  CHECK(mentions("missing"));
  CHECK(mentions("bytes"));
  CHECK(mentions("writable"));
  CHECK(mentions("'stray\\x0a.txt'"));
}

TEST_CASE("a pack that does not fit on the disk leaves nothing behind, and the old one whole") {
  if (!can_mount("writing a pack to a full disk")) return;
  TemporaryFolder folder;
  const pid_t child = start_process([&] {
    Expectations expect;
    if (!mount_small_disk(folder.path(), "size=256k,mode=0700")) return 99;
    const SamplePack sample = sample_pack();
    write_pack(folder / "p", sample.manifest, sample.cubins);
    SamplePack large = sample_pack();
    const std::string cubin = blob_of("large", 400'000);
    large.manifest.entries.push_back(entry_of("large", "m=1", cubin));
    large.cubins.emplace(sha256_hex(cubin), cubin);
    for (const char* name : {"p", "q"}) {
      try {
        write_pack(folder / name, large.manifest, large.cubins);
        expect(false, "it cannot fit");
      } catch (const Error& error) {
        expect(error.code() == ErrorCode::io, "an error of the disk");
      }
    }
    expect(verify_pack(folder / "p").empty(), "the old pack is whole");
    expect(read_pack(folder / "p", kUnsigned).manifest() == sample.manifest, "and the same");
    int names = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++names;
    expect(names == 1, "nothing else is left");
    return expect.result();
  });
  CHECK(wait_for(child) == 0);
}
