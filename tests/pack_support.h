// A small pack for the tests.
#pragma once

#include <map>
#include <string>

#include "runtime/pack.h"
#include "tests/cache_support.h"

namespace attune::test {

struct SamplePack {
  Manifest manifest;
  std::map<std::string, std::string> cubins;
};

inline PackEntry entry_of(const std::string& problem, const std::string& config, const std::string& cubin) {
  PackEntry entry;
  entry.problem = problem;
  entry.config = config;
  entry.spec = "arch=sm_90a," + config;
  entry.arch = "sm_90a";
  entry.launch = {"attune_forward", 384, 200'000, 128, 128, 64, 128, 64, true};
  entry.build_key = key_of("build " + config);
  entry.cubin_sha256 = sha256_hex(cubin);
  entry.cubin_bytes = cubin.size();
  entry.registers = 168;
  entry.errors = "{\"max\":0.001}";
  entry.median = "412.5 us";
  entry.tflops = "666";
  entry.environment = "driver=580,nvrtc=13.0";
  return entry;
}

inline SamplePack sample_pack() {
  SamplePack sample;
  sample.manifest.producer = "attune 0.1.0";
  const std::string one = blob_of("one", 3000) + std::string("\0\n", 2);
  const std::string two = blob_of("two", 100);
  sample.manifest.entries = {entry_of("seqlen=4096", "m=128", one), entry_of("seqlen=4096", "m=192", two),
                             entry_of("seqlen=8192", "m=128", one)};
  sample.manifest.quarantine = {{key_of("bad"), "driver=580", "hung"}};
  sample.cubins = {{sha256_hex(one), one}, {sha256_hex(two), two}};
  return sample;
}

inline constexpr PackReadOptions kUnsigned{.allow_unsigned = true, .allow_foreign_files = false};

}  // namespace attune::test
