#include "tuner/measure/helpers.h"

#include <algorithm>

#include "base/error.h"

namespace attune::tuner {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kCompareThreads = 64;  // as in helpers.cuh

std::uint64_t blocks_for(std::uint64_t elements) {
  return std::min<std::uint64_t>((elements + kThreads - 1) / kThreads, 2048);
}

}  // namespace

std::vector<std::string> helpers_options(const std::string& arch) {
  return {"--gpu-architecture=" + arch, "--std=c++17"};
}

Helpers::Helpers(std::shared_ptr<runtime::Device> device, std::string_view cubin)
    : device_(std::move(device)), module_(device_->load(cubin)) {
  fill_ = module_->function("attune_fill_normal", 0);
  count_ = module_->function("attune_count_halves", 0);
  compare_ = module_->function("attune_compare_rows", 0);
  compare_gradient_ = module_->function("attune_compare_gradient", 0);
  spin_ = module_->function("attune_spin", 0);
  probe_ = module_->function("attune_clock_probe", 0);
}

void Helpers::launch(runtime::Function function, std::uint64_t blocks, unsigned threads, void** arguments,
                     runtime::Stream stream) {
  runtime::LaunchConfig config;
  config.grid.x = static_cast<unsigned>(blocks);
  config.block.x = threads;
  config.stream = stream;
  device_->launch(function, config, arguments);
}

void Helpers::fill_normal(void* out, std::uint64_t count, std::uint64_t seed, float amplitude, DType dtype,
                          Leading leading, runtime::Stream stream) {
  if (count == 0) return;
  std::int32_t fp16 = dtype == DType::fp16, replace = leading.replace;
  void* arguments[] = {&out, &count, &seed, &amplitude, &fp16, &leading.row_length, &leading.value, &replace};
  launch(fill_, blocks_for(count), kThreads, arguments, stream);
}

void Helpers::count_poison(const void* words, std::uint64_t word_count, PoisonUnit unit, std::uint64_t* result,
                           runtime::Stream stream) {
  if (word_count == 0) return;
  std::uint32_t half = kPoison;
  std::int32_t whole = unit == PoisonUnit::word;
  void* arguments[] = {&words, &word_count, &half, &whole, &result};
  launch(count_, blocks_for(word_count), kThreads, arguments, stream);
}

template <typename Params>
void Helpers::compare(runtime::Function function, const Params& params, std::uint64_t pairs, runtime::Stream stream) {
  const std::uint64_t blocks = pairs * static_cast<std::uint64_t>(params.rows);
  if (blocks == 0) return;
  if (blocks > INT32_MAX) fail(ErrorCode::unsupported, "compare: {} rows at once (allowed: below 2^31)", blocks);
  Params copy = params;
  void* arguments[] = {&copy};
  launch(function, blocks, kCompareThreads, arguments, stream);
}

void Helpers::compare_rows(const CompareParams& params, std::uint64_t pairs, runtime::Stream stream) {
  compare(compare_, params, pairs, stream);
}

void Helpers::compare_gradient(const CompareGradientParams& params, std::uint64_t pairs, runtime::Stream stream) {
  compare(compare_gradient_, params, pairs, stream);
}

void Helpers::spin(double seconds, runtime::Stream stream) {
  auto nanoseconds = static_cast<std::uint64_t>(std::max(seconds, 0.0) * 1e9);
  void* arguments[] = {&nanoseconds};
  launch(spin_, 1, 1, arguments, stream);
}

void Helpers::clock_probe(double* ghz, runtime::Stream stream) {
  void* arguments[] = {&ghz};
  launch(probe_, 1, 1, arguments, stream);
}

}  // namespace attune::tuner
