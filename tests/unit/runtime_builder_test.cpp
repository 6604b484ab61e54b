#include <doctest/doctest.h>

#include <thread>

#include <attune/error.h>

#include "cache/store.h"
#include "runtime/builder.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/temporary_folder.h"

namespace attune::runtime {
namespace {

struct Fixture {
  tests::TemporaryFolder folder;
  std::shared_ptr<tests::FakeCompiler> compiler = std::make_shared<tests::FakeCompiler>();

  cache::Store store(const std::string& directory) const {
    cache::Options options;
    options.directory = directory;
    return cache::Store::open(options);
  }
  cache::Store store() const { return store(folder.string()); }
  Builder builder(cache::Store s) const {
    return Builder(std::move(s), [this] { return std::shared_ptr<const Compiler>(compiler); });
  }
  static codegen::KernelSpec spec(int head_dim = 64) {
    Problem problem{.head_dim = head_dim, .head_dim_v = head_dim};
    return codegen::specialise(Arch{}, problem, {.family = codegen::Family::reference});
  }
};

TEST_CASE_FIXTURE(Fixture, "builder: compiled once, then from the cache, in another process too") {
  Builder first = builder(store());
  const Build built = first.build(spec());
  CHECK(!built.from_cache);
  CHECK(built.log == "log");
  CHECK(built.info.registers == 100);
  CHECK(built.info.shape.entry == "attune_reference_forward");
  CHECK(built.info.spec == codegen::to_string(spec()));
  CHECK(built.key == first.key(spec()));

  Builder second = builder(store());
  const Build again = second.build(spec());
  CHECK(again.from_cache);
  CHECK(again.cubin == built.cubin);
  CHECK(again.info == built.info);
  CHECK(compiler->compiles == 1);
  REQUIRE(second.find(built.key).has_value());
  CHECK(second.find(built.key)->cubin == built.cubin);
  CHECK(!second.find(std::string(64, '0')).has_value());
}

TEST_CASE_FIXTURE(Fixture, "builder: other specs and other compilers have other keys") {
  Builder b = builder(store());
  const std::string key = b.key(spec());
  CHECK(b.key(spec(128)) != key);
  compiler->fake_version = "13.0.1";
  CHECK(b.key(spec()) != key);
}

TEST_CASE_FIXTURE(Fixture, "builder: a compiler for another device has keys of its own") {
  struct OtherCompiler : tests::FakeCompiler {
    std::vector<std::string> effective_options(std::vector<std::string> options) const override {
      options.emplace_back("--for-another-device");
      return options;
    }
    CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                          bool want_ptx) const override {
      CHECK(options.back() == "--for-another-device");
      return FakeCompiler::compile(source, options, want_ptx);
    }
  };
  const std::string key = builder(store()).key(spec());
  compiler = std::make_shared<OtherCompiler>();
  Builder other = builder(store());
  CHECK(other.key(spec()) != key);
  CHECK(other.build(spec()).key == other.key(spec()));
}

TEST_CASE_FIXTURE(Fixture, "builder: threads that want one kernel at once compile it once") {
  compiler->takes = std::chrono::milliseconds(50);
  Builder b = builder(store());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { b.build(spec()); });
  }
  CHECK(compiler->compiles == 1);
}

TEST_CASE_FIXTURE(Fixture, "builder: a rejected build is returned with its reason and not compiled again") {
  compiler->spill_bytes = 8;
  const Build built = builder(store()).build(spec());
  CHECK(built.info.rejected.find("8 bytes of stores") != std::string::npos);
  CHECK(!built.cubin.empty());
  const Build again = builder(store()).build(spec());
  CHECK(again.info.rejected == built.info.rejected);
  CHECK(compiler->compiles == 1);
  CHECK_THROWS_AS(require_accepted(again), Error);
}

TEST_CASE_FIXTURE(Fixture, "builder: a failed compile is remembered by this builder, not by the cache") {
  compiler->fails = 1;
  Builder b = builder(store());
  for (int i = 0; i < 3; ++i) {
    try {
      b.build(spec());
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::compile_failed);
      CHECK(std::string(error.what()).starts_with("file.cuh:1: refused"));
    }
  }
  CHECK(compiler->compiles == 1);
  CHECK(!builder(store()).build(spec()).from_cache);
}

TEST_CASE_FIXTURE(Fixture, "builder: metadata that make no sense are a miss") {
  Builder b = builder(store());
  const std::string key = b.key(spec());
  store().put_kernel(key, "cubin", "{\"format\":99}");
  CHECK(!b.find(key).has_value());
  const Build built = b.build(spec());
  CHECK(compiler->compiles == 1);
  CHECK(built.cubin != "cubin");
}

TEST_CASE_FIXTURE(Fixture, "builder: works without a folder") {
  Builder b = builder(store(""));
  CHECK(!b.build(spec()).from_cache);
  CHECK(b.build(spec()).from_cache);
  CHECK(compiler->compiles == 1);
}

}  // namespace
}  // namespace attune::runtime
