// Ctrl-C in the middle of the work.
#include <chrono>
#include <thread>

#include <attune/error.h>

#include "tests/fault/cli_process.h"
#include "tests/nvrtc.h"

using namespace attune::tests;

namespace {

// The signals are handled before the cache is opened.
void wait_for_cache(const TemporaryFolder& folder) {
  for (int i = 0; i < 600 && !std::filesystem::exists(folder.path() / "cache-v1.sqlite"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // into the compiles
}

}  // namespace

TEST_CASE("SIGINT and SIGTERM leave a usable cache and end with 130") {
  if (!nvrtc()) return;
  for (const int number : {SIGINT, SIGTERM}) {
    CAPTURE(number);
    const TemporaryFolder folder;
    Cli tune(
        {"tune", "--no-gpu", "--max-candidates", "200", "--budget", "10m", "--cache-dir", folder.string(), "--json"},
        {"CUDA_VISIBLE_DEVICES=-1"});
    wait_for_cache(folder);
    tune.signal(number);
    const Finished finished = tune.wait();
    CHECK(finished.status == 130);
    CHECK(finished.err.find("interrupted") != std::string::npos);
    CHECK(finished.json()["exit_code"] == 130);
    CHECK(run_cli({"cache", "verify", "--cache-dir", folder.string()}).status == 0);
  }
}

TEST_CASE("a second signal ends the command at once") {
  if (!nvrtc()) return;
  const TemporaryFolder folder;
  Cli tune({"tune", "--no-gpu", "--max-candidates", "200", "--budget", "10m", "--cache-dir", folder.string()},
           {"CUDA_VISIBLE_DEVICES=-1"});
  wait_for_cache(folder);
  tune.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  tune.signal(SIGINT);
  CHECK(tune.wait().status == 130);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK(run_cli({"cache", "verify", "--cache-dir", folder.string()}).status == 0);
}
