// attune emulate: kernels of others from the command line.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "cli/app.h"
#include "cli/emulator/kernel_arguments.h"
#include "tests/emu/kernel_text.h"
#include "tests/emu/refusal.h"
#include "tests/nvrtc.h"
#include "tests/unit/temporary_folder.h"

namespace attune::emulator::tests {
namespace {

using attune::tests::TemporaryFolder;

struct Finished {
  int status;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

Finished run_command(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = cli::run(arguments, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A folder with kernels, and the command on one of them.
struct Fixture {
  TemporaryFolder folder;

  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = folder.string() + "/" + name;
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  Finished emulate(const std::string& file, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"emulate", file});
    return run_command(arguments);
  }
};

template <typename T>
T value_of(const std::string& text) {
  const cli::KernelArgument argument = cli::parse_kernel_argument(0, text);
  T value{};
  REQUIRE(argument.value.size() == sizeof value);
  std::memcpy(&value, argument.value.data(), sizeof value);
  return value;
}

std::string refused_argument(const std::string& text) {
  return refusal(ErrorCode::invalid_argument, [&] { cli::parse_kernel_argument(3, text); });
}

/// Sends one SIGINT as soon as the command has a handler for it.
std::jthread interrupt_when_handled() {
  struct sigaction before{};
  sigaction(SIGINT, nullptr, &before);
  return std::jthread([before](const std::stop_token& stop) {
    for (struct sigaction now{}; !stop.stop_requested();) {
      sigaction(SIGINT, nullptr, &now);
      if (now.sa_handler != before.sa_handler) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // some way into the launch
        kill(getpid(), SIGINT);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

TEST_CASE("emulate: arguments as texts") {
  CHECK(value_of<std::uint32_t>("u32:0x10") == 16);
  CHECK(value_of<std::int64_t>("i64:-5") == -5);
  CHECK(value_of<std::int8_t>("i8:-128") == -128);
  CHECK(value_of<std::uint64_t>("u64:18446744073709551615") == ~std::uint64_t{0});
  CHECK(value_of<float>("f32:-1.5") == -1.5f);
  CHECK(value_of<double>("f64:1e300") == 1e300);
  CHECK(value_of<std::uint16_t>("f16:1") == 0x3c00);
  CHECK(value_of<std::uint16_t>("bf16:-1") == 0xbf80);

  cli::KernelArgument buffer = cli::parse_kernel_argument(0, "buf:2k");
  CHECK(buffer.buffer_bytes == 2048);
  CHECK(!buffer.contents);
  CHECK(cli::parse_kernel_argument(0, "buf:8=zero").contents == cli::Bytes(8));
  const auto random = [](std::size_t index, const char* text) {
    return cli::parse_kernel_argument(index, text).contents.value();
  };
  CHECK(random(0, "buf:64=random:f32") == random(0, "buf:64=random:f32"));
  CHECK(random(0, "buf:64=random:f32") != random(1, "buf:64=random:f32"));
  CHECK(random(0, "buf:64=random:f32:9") == random(1, "buf:64=random:f32:9"));

  CHECK(contains(refused_argument("u32:-1"), "arg 3: '-1' is not an integer in range (allowed: 0 to 4294967295"));
  CHECK(contains(refused_argument("i8:128"), "-128 to 127"));
  CHECK(contains(refused_argument("i32:many"), "'many'"));
  CHECK(contains(refused_argument("f32:1e99"), "'1e99'"));
  CHECK(contains(refused_argument("f16:70000"), "-65504 to 65504"));
  CHECK(contains(refused_argument("f32"), "'f32' is no argument (allowed: buf:BYTES"));
  CHECK(contains(refused_argument("int:4"), "'int:4'"));
  CHECK(contains(refused_argument("buf:"), "BYTES"));
  CHECK(contains(refused_argument("buf:0"), "u64:0"));
  CHECK(contains(refused_argument("buf:64G"), "BYTES"));
  CHECK(contains(refused_argument("buf:4=ones"), "contents 'ones'"));
  CHECK(contains(refused_argument("buf:4=random:int"), "type 'int'"));
  CHECK(contains(refused_argument("buf:6=random:f32"), "6 bytes"));
  CHECK(contains(refused_argument("buf:4=random:f32:x"), "seed: 'x'"));
  CHECK(contains(refused_argument("buf:@/dev/null"), "/dev/null is empty"));
  CHECK(contains(refusal(ErrorCode::not_found, [] { cli::parse_kernel_argument(3, "buf:@/nonexistent"); }),
                 "arg 3: /nonexistent"));
}

TEST_CASE_FIXTURE(Fixture, "emulate: a kernel's result, its instructions and what it did wrong") {
  const std::string file = write("scale.ptx", scale_text());
  const std::vector<float> input{1, 2, 3, 4, 5, 6, 7, 8};
  const std::string data = write("in.bin", {reinterpret_cast<const char*>(input.data()), input.size() * sizeof(float)});
  const std::string saved = folder.string() + "/out.bin";
  Finished finished =
      emulate(file, {"--kernel", "scale", "--grid", "2", "--block", "4,1,1", "--arg", "buf:@" + data, "--arg", "f32:3",
                     "--seeds", "3", "--first-seed", "5", "--save", "0:" + saved, "--json"});
  REQUIRE_MESSAGE(finished.status == 0, finished.err);
  const nlohmann::json document = finished.json();
  CHECK(document["kernel"] == "scale");
  CHECK(document["ok"] == true);
  REQUIRE(document["launches"].size() == 3);
  CHECK(document["launches"][2]["seed"] == 7);
  CHECK(document["launches"][0]["instructions"] == 8 * 12);
  CHECK(document["instructions"] == 3 * 8 * 12);
  CHECK(document["instructions_per_second"] > 0);
  std::ifstream in(saved, std::ios::binary);
  std::vector<float> output(8);
  REQUIRE(in.read(reinterpret_cast<char*>(output.data()), 32));
  // Each launch began with the file's numbers.
  for (std::size_t i = 0; i < 8; ++i) CHECK(output[i] == 3 * input[i]);

  // The only kernel need not be named. One more block than the buffer has room for.
  finished = emulate(file, {"--grid", "3", "--block", "4", "--arg", "buf:@" + data, "--arg", "f32:3"});
  CHECK(finished.status == 1);
  CHECK(contains(finished.out, "out_of_bounds"));
  CHECK(contains(finished.out, "PTX line 18"));
  CHECK(contains(finished.out, "thread (0,0,0) of block (2,0,0)"));
  CHECK(contains(finished.out, "PTX instructions in 1 launch:"));
  CHECK(contains(finished.err, "--seeds 1 --first-seed 0"));

  finished = emulate(file, {"--grid", "1", "--block", "4", "--arg", "buf:16", "--arg", "f32:3", "--json"});
  CHECK(finished.status == 1);
  CHECK(finished.json()["launches"][0]["findings"][0]["kind"] == "uninitialised_read");
}

TEST_CASE_FIXTURE(Fixture, "emulate: what is asked for and cannot be") {
  const std::string file = write("scale.ptx", scale_text());
  const auto refused = [&](const std::string& path, const std::vector<std::string>& arguments, int status,
                           const std::string& message) {
    const Finished finished = emulate(path, arguments);
    CHECK(finished.status == status);
    CHECK(finished.out == "");
    CHECK_MESSAGE(contains(finished.err, message), finished.err);
  };
  const auto with = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--arg", "buf:16=zero", "--arg", "f32:2"});
    return arguments;
  };
  refused(file, {"--grid", "1", "--block", "4", "--arg", "buf:16"}, 2,
          "arg: given 1 times, but scale has 2 parameters (bytes: 8, 4)");
  refused(file, {"--grid", "1", "--block", "4", "--arg", "buf:16", "--arg", "f64:1"}, 2,
          "arg 1: 'f64:1' has 8 bytes, but parameter 1 of scale has 4");
  refused(file, with({"--grid", "1", "--block", "4", "--kernel", "scal"}), 1, "has no 'scal' (it has: scale)");
  refused(file, with({"--grid", "1,2,3,4", "--block", "4"}), 2, "grid: '1,2,3,4' has 4 dimensions");
  refused(file, with({"--grid", "0", "--block", "4"}), 2, "grid: 0");
  refused(file, with({"--grid", "1,70000", "--block", "4"}), 2, "grid: (1,70000,1) is not allowed");
  refused(file, with({"--grid", "1", "--block", "2000"}), 2, "block: (2000,1,1)");
  refused(file, with({"--grid", "3", "--block", "4", "--cluster", "2"}), 2, "grid: (3,1,1) is not a multiple");
  refused(file, with({"--grid", "1", "--block", "4", "--shared", "1M"}), 2, "dynamic_shared_bytes: 1048576");
  refused(file, with({"--grid", "1", "--block", "4", "--seeds", "0"}), 2, "seeds: 0");
  refused(file, with({"--grid", "1", "--block", "4", "--save", "1:x"}), 2, "save: argument 1 is no buffer");
  refused(file, with({"--grid", "1", "--block", "4", "--save", "x"}), 2, "save: 'x'");
  refused(file, with({"--grid", "1", "--block", "4", "--compile-option", "-DN=1"}), 2, "compile_option");
  refused("kernel.cubin", with({"--grid", "1", "--block", "4"}), 2, "(allowed: *.ptx, *.cu)");
  refused("/nonexistent.ptx", with({"--grid", "1", "--block", "4"}), 1, "/nonexistent.ptx");
  refused(write("bad.ptx", "Lorem ipsum"), with({"--grid", "1", "--block", "4"}), 2, "ptx:1:1");
  refused(write("none.ptx", module_text("")), with({"--grid", "1", "--block", "4"}), 1, "none.ptx has none");
  refused(write("two.ptx", scale_text() + ".visible .entry other() { ret; }\n"), with({"--grid", "1", "--block", "4"}),
          2, "several (allowed: scale, other)");
}

TEST_CASE("emulate: tensor maps as texts") {
  const cli::TensorMapText dense = cli::parse_tensor_map("type=bf16,dims=64x10x3,box=64x8x1,swizzle=128", 0);
  CHECK(dense.bytes == 64 * 10 * 3 * 2);
  CHECK(dense.description.rank == 3);
  CHECK(dense.description.strides[0] == 128);
  CHECK(dense.description.strides[1] == 1280);
  CHECK(dense.description.box[1] == 8);
  CHECK(dense.description.swizzle == Swizzle::bytes128);
  CHECK(!dense.contents);
  const cli::TensorMapText gapped =
      cli::parse_tensor_map("type=f32,dims=16x4,box=16x4,strides=256,fill=nan,contents=random:5", 0);
  CHECK(gapped.bytes == 3 * 256 + 64);
  CHECK(gapped.description.fill == OutOfBoundsFill::nan);
  CHECK(gapped.contents == cli::parse_kernel_argument(0, "buf:832=random:f32:5").contents);
  CHECK(cli::parse_tensor_map("type=u8,dims=16,box=16,buffer=2", 0).buffer == 2);

  const auto refused = [](const std::string& text) { return refused_argument("map:" + text); };
  CHECK(contains(refused("64x64"), "arg 3: map: '64x64' is not key=value"));
  CHECK(contains(refused("type=bf16,dims=64"), "box: missing"));
  CHECK(contains(refused("type=int,dims=64,box=64"), "type: 'int' is unknown (allowed: u8, u16"));
  CHECK(contains(refused("type=u8,dims=64,box=64,size=3"), "map: 'size' is unknown (allowed: type, dims"));
  CHECK(contains(refused("type=u8,dims=64y2,box=64"), "dims: '64y2'"));
  CHECK(contains(refused("type=u8,dims=64x,box=64"), "dims: ''"));
  CHECK(contains(refused("type=u8,dims=1x1x1x1x1x1,box=1"), "dims: 6 dimensions"));
  CHECK(contains(refused("type=u8,dims=64x2,box=64"), "box: 1 dimensions, but dims has 2"));
  CHECK(contains(refused("type=u8,dims=64,box=64,strides=64"), "strides: 1 are given"));
  CHECK(contains(refused("type=u8,dims=4294967296x4294967296,box=1x1"), "dims: the tensor has more than"));
  CHECK(contains(refused("type=u8,dims=64,box=64,swizzle=16"), "swizzle: '16' is unknown (allowed: none, 32"));
  CHECK(contains(refused("type=u8,dims=64,box=64,contents=random"), "contents: there are no random ones of u8"));
  CHECK(contains(refused("type=u8,dims=64,box=64,contents=zero,buffer=0"), "contents: excludes buffer"));
}

TEST_CASE_FIXTURE(Fixture, "emulate: a kernel that takes a tensor map") {
  if (!attune::tests::nvrtc()) return;
  const std::string file = ATTUNE_TEST_DATA "/../emu/kernels/multicast.cu", in = folder.string() + "/in.bin",
                    out = folder.string() + "/out.bin";
  const std::string sizes = "type=f32,dims=16x64,box=16x16,";
  const auto run = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> all{"--grid", "4", "--cluster", "2", "--block", "64", "--seeds", "2"};
    for (const std::string& argument : arguments) all.insert(all.end(), {"--arg", argument});
    all.insert(all.end(), {"--save", "0:" + in, "--save", "1:" + out});
    return emulate(file, all);
  };
  const Finished finished = run({"map:" + sizes + "contents=random", "buf:8k"});
  REQUIRE_MESSAGE(finished.status == 0, finished.out << finished.err);
  std::vector<float> tensor(16 * 64), copies(4 * 16 * 32);
  REQUIRE(std::ifstream(in, std::ios::binary).read(reinterpret_cast<char*>(tensor.data()), 4096));
  REQUIRE(std::ifstream(out, std::ios::binary).read(reinterpret_cast<char*>(copies.data()), 8192));
  for (std::size_t block = 0; block < 4; ++block) {
    for (std::size_t i = 0; i < 512; ++i)
      REQUIRE(copies[block * 512 + i] == tensor[block / 2 * 512 + i] + static_cast<float>(block % 2));
  }
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const Finished bad = run(arguments);
    CHECK(bad.status == 2);
    CHECK_MESSAGE(contains(bad.err, message), bad.err);
  };
  refused({"map:" + sizes + "buffer=1", "buf:8k"}, "arg 0: buffer: 1 is no buffer before it");
  refused({"map:type=f32,dims=15x64,box=16x16", "buf:8k"}, "arg 0: ");  // rows of 60 bytes
}

TEST_CASE_FIXTURE(Fixture, "emulate: variables begin anew with each seed") {
  const std::string file = write("count.ptx", count_text()), saved = folder.string() + "/out.bin";
  const Finished finished =
      emulate(file, {"--grid", "1", "--block", "1", "--arg", "buf:4", "--seeds", "3", "--save", "0:" + saved});
  REQUIRE_MESSAGE(finished.status == 0, finished.err);
  std::ifstream in(saved, std::ios::binary);
  std::uint32_t out = 0;
  REQUIRE(in.read(reinterpret_cast<char*>(&out), sizeof out));
  CHECK(out == 6);
}

TEST_CASE_FIXTURE(Fixture, "emulate: CUDA source, names as in the source, what a kernel prints") {
  if (!attune::tests::nvrtc()) return;
  const std::string file = write("sum.cu",
                                 "#include <cuda_fp16.h>\n"
                                 "template <int N> __global__ void sum(const __half* x, float* out) {\n"
                                 "  __shared__ float parts[N];\n"
                                 "  parts[threadIdx.x] = __half2float(x[threadIdx.x]);\n"
                                 "#ifdef FENCED\n"
                                 "  __syncthreads();\n"
                                 "#endif\n"
                                 "  if (threadIdx.x == 0) {\n"
                                 "    float total = 0;\n"
                                 "    for (int i = 0; i < N; ++i) total += parts[i];\n"
                                 "    printf(\"of %d\", N);\n"
                                 "    *out = total;\n"
                                 "  }\n"
                                 "}\n"
                                 "template __global__ void sum<64>(const __half*, float*);\n"
                                 "__global__ void other() {}\n");
  const std::vector<std::string> launch{"--kernel",           "sum<64>", "--grid", "1", "--block", "64", "--arg",
                                        "buf:128=random:f16", "--arg",   "buf:4"};
  std::vector<std::string> arguments = launch;
  arguments.insert(arguments.end(), {"--compile-option=-DFENCED"});
  Finished finished = emulate(file, arguments);
  CHECK_MESSAGE(finished.status == 0, finished.err);
  CHECK(contains(finished.out, "printed by the kernel (seed 0):\nof 64\n"));

  finished = emulate(file, launch);
  CHECK(finished.status == 1);
  CHECK(contains(finished.out, "race: "));
  CHECK(contains(finished.out, "sum.cu:10"));
  CHECK(contains(finished.out, "sum.cu:4"));
  // One paragraph for the 63 loads of the loop, which the compiler unrolls.
  CHECK(contains(finished.out, "more instructions of the same source lines"));
  CHECK(finished.out.find("race: ") == finished.out.rfind("race: "));

  arguments = launch;
  arguments[1] = "product";
  finished = emulate(file, arguments);
  CHECK(finished.status == 1);
  CHECK_MESSAGE(contains(finished.err, "has no 'product' (it has: sum<64> (_Z3sum"), finished.err);

  finished = emulate(write("broken.cu", "__global__ void f() { undeclared(); }"), {"--grid", "1", "--block", "1"});
  CHECK(finished.status == 1);
  CHECK_MESSAGE(contains(finished.err, "broken.cu:1"), finished.err);
}

TEST_CASE_FIXTURE(Fixture, "emulate: an interrupt ends a launch that never would") {
  const std::string file = write("spin.ptx", spin_text());
  const std::jthread interrupter = interrupt_when_handled();
  const auto begin = std::chrono::steady_clock::now();
  const Finished finished = emulate(file, {"--grid", "1", "--block", "32"});
  CHECK(finished.status == 130);
  CHECK(contains(finished.err, "interrupted"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("launch: a request to stop") {
  const auto program = Program::load(spin_text());
  const auto machine = Machine::create();
  std::stop_source source;
  LaunchOptions options;
  options.block = {32, 1, 1};
  options.stop = source.get_token();
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    source.request_stop();
  });
  for (const std::uint64_t seed : {0, 1}) {
    options.seed = seed;
    refusal(ErrorCode::interrupted, [&] { machine->launch(*program, "spin", options, nullptr); });
  }
}

}  // namespace
}  // namespace attune::emulator::tests
