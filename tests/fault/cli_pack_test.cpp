// Packs that are damaged, as the command sees them.
#include <map>

#include "base/sha256.h"
#include "runtime/pack.h"
#include "tests/fault/cli_process.h"

using namespace attune;
using namespace attune::tests;

namespace {

const std::string kCubin = "not a cubin, but bytes with a digest";

// A pack with one entry, whose cubin's bytes mean nothing.
void make_pack(const std::string& directory, const std::string& heads = "4") {
  PackEntry entry;
  entry.problem = "op=forward,dtype=bf16,head_dim=64,head_dim_v=64,heads=" + heads + ",heads_kv=" + heads +
                  ",causal=0,batch=1,seqlen_q=128,seqlen_k=128,layout=bshd";
  entry.config = "consumers=2,block_n=64";
  entry.spec = "arch=sm_90a,dtype=bf16,head_dim=64,head_dim_v=64,causal=0,edge=none,tail=0,consumers=2,block_n=64";
  entry.arch = "sm_90a";
  entry.launch.entry = "attune_forward";
  entry.launch.threads = 384;
  entry.launch.block_m = 128;
  entry.launch.block_n = 64;
  entry.launch.q_box_rows = entry.launch.kv_box_rows = entry.launch.o_box_rows = 64;
  entry.build_key = std::string(64, 'a');
  entry.cubin_sha256 = sha256_hex(kCubin);
  entry.cubin_bytes = kCubin.size();
  entry.registers = 168;
  Manifest manifest;
  manifest.producer = "attune test";
  manifest.entries.push_back(entry);
  write_pack(directory, manifest, {{entry.cubin_sha256, kCubin}});
}

std::string file_of(const std::string& pack) { return pack + "/" + sha256_hex(kCubin) + ".cubin"; }

}  // namespace

TEST_CASE("a sound pack: verify, ls, diff, merge") {
  const TemporaryFolder folder;
  const std::string one = folder.string() + "/one", two = folder.string() + "/two", both = folder.string() + "/both";
  make_pack(one);
  make_pack(two, "8");
  CHECK(run_cli({"pack", "verify", one}).status == 0);
  const Finished listed = run_cli({"pack", "ls", one, "--json"});
  CHECK(listed.status == 0);
  CHECK(listed.json()["entries"].size() == 1);
  CHECK(run_cli({"pack", "diff", one, one}).status == 0);
  CHECK(run_cli({"pack", "diff", one, two}).status == 1);
  CHECK(run_cli({"pack", "merge", one, two, "-o", both}).status == 0);
  CHECK(run_cli({"pack", "ls", both, "--json"}).json()["entries"].size() == 2);
}

TEST_CASE("a pack that is cut short at any place is refused with 4") {
  const TemporaryFolder folder;
  const std::string pack = folder.string() + "/pack";
  make_pack(pack);
  const std::string manifest = slurp(pack + "/manifest.json");
  for (const double share : {0.0, 0.1, 0.5, 0.99}) {
    CAPTURE(share);
    const auto size = static_cast<std::uintmax_t>(share * static_cast<double>(manifest.size()));
    make_pack(pack);
    std::filesystem::resize_file(pack + "/manifest.json", size);
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"pack", "verify", pack},
                                                      {"pack", "ls", pack},
                                                      {"inspect", pack},
                                                      {"verify", "--pack", pack},
                                                      {"bench", "--pack", pack, "--allow-unsigned"},
                                                      {"bench", "--op", "backward", "--pack", pack}}) {
      CAPTURE(arguments[0]);
      const Finished finished = run_cli(arguments, {"CUDA_VISIBLE_DEVICES=-1"});
      CHECK(finished.status == 4);
      CHECK(finished.err.find(pack) != std::string::npos);
    }
    std::filesystem::remove_all(pack);
  }
  make_pack(pack);
  std::filesystem::resize_file(file_of(pack), kCubin.size() - 1);
  CHECK(run_cli({"pack", "verify", pack}).status == 4);
  CHECK(run_cli({"inspect", pack}).status == 4);
}

TEST_CASE("a cubin that was changed, and one that is gone") {
  const TemporaryFolder folder;
  const std::string pack = folder.string() + "/pack";
  make_pack(pack);
  std::fstream(file_of(pack), std::ios::in | std::ios::out | std::ios::binary).put('N');
  const Finished changed = run_cli({"pack", "verify", pack, "--json"});
  CHECK(changed.status == 4);
  CHECK(changed.json()["problems"].size() == 1);
  CHECK(changed.json()["error"]["code"] == "pack");
  std::filesystem::remove(file_of(pack));
  CHECK(run_cli({"pack", "verify", pack}).status == 4);
}

TEST_CASE("an unsigned pack is not launched from unless that is asked for") {
  const TemporaryFolder folder;
  const std::string pack = folder.string() + "/pack";
  make_pack(pack);
  const Finished finished = run_cli({"bench", "--pack", pack}, {"CUDA_VISIBLE_DEVICES=-1"});
  CHECK(finished.status == 4);
  CHECK(finished.err.find("unsigned") != std::string::npos);
}

TEST_CASE("what is no pack is not replaced by one") {
  const TemporaryFolder folder;
  const std::string one = folder.string() + "/one", mine = folder.string() + "/mine";
  make_pack(one);
  std::filesystem::create_directory(mine);
  std::ofstream(mine + "/thesis.txt") << "years of work";
  CHECK(run_cli({"pack", "merge", one, one, "-o", mine}).status == 4);
  CHECK(slurp(mine + "/thesis.txt") == "years of work");
}
