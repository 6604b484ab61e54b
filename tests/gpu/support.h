// What the GPU tests share: one device, tensors with poisoned gaps, comparison with the reference kernel, and a report.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <attune/attune.h>

#include "runtime/builder.h"
#include "runtime/driver.h"
#include "runtime/driver_device.h"
#include "runtime/reference.h"
#include "runtime/tensor_map.h"

namespace attune::gpu {

inline std::shared_ptr<runtime::Device> device() {
  static const std::shared_ptr<runtime::Device> opened = runtime::open_device();
  return opened;
}

inline runtime::Builder& builder() {
  static runtime::Builder* const instance = new runtime::Builder(cache::Store::memory_only());
  return *instance;
}

/// Calls run(i) for every i < count on as many threads as there are cores. Kernels compile so, before they are used one
/// by one; an Error is left to whoever asks for the kernel again.
inline void in_parallel(std::size_t count, const std::function<void(std::size_t)>& run) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < count; at = next++) {
        try {
          run(at);
        } catch (const Error&) {
        }
      }
    });
  }
}

inline RuntimeOptions quiet_options() {
  return {.use_cache = false, .on_warning = [](const std::string&) {}};
}

inline Runtime& shared_runtime() {
  static Runtime* const instance = new Runtime(quiet_options(), device());
  return *instance;
}

/// Appends one JSON object as a line to the file that ATTUNE_GPU_REPORT names, and prints it.
inline void report(const nlohmann::json& line) {
  MESSAGE(line.dump());
  if (const char* file = std::getenv("ATTUNE_GPU_REPORT")) std::ofstream(file, std::ios::app) << line.dump() << '\n';
}

// -- element types ------------------------------------------------------------------------------------------------

/// A NaN in bf16 and in fp16.
inline constexpr std::uint16_t kPoison = 0x7fc1;

inline std::uint16_t to_bits(DType dtype, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if (dtype == DType::bf16) return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  // Halves by way of their value: test data are finite and below 65504.
  const float magnitude = std::fabs(value);
  const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  if (magnitude < 6.103515625e-05f) return static_cast<std::uint16_t>(sign | std::lrint(magnitude * 16777216.0f));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);   // in [0.5, 1)
  const long mantissa = std::lrint(fraction * 2048) - 1024;  // 1024 carries into the exponent, as it should
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + mantissa));
}

inline float to_float(DType dtype, std::uint16_t bits) {
  if (dtype == DType::bf16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 31)
    magnitude = mantissa != 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  else
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// -- tensors ------------------------------------------------------------------------------------------------------

struct Difference {
  double max_abs = 0;   ///< of O
  double relative = 0;  ///< of O, by norms
  double lse = 0;       ///< largest of LSE, relative to max(1, |LSE|)
  std::int64_t rows = 0;
};

/// How far a right kernel may be from exact results. Inputs are rounded alike for both; what differs is the rounding of
/// P and O, and float32 sums.
struct Tolerance {
  double max_abs, relative, lse;
};
inline Tolerance tolerance(DType dtype) {
  return dtype == DType::bf16 ? Tolerance{4e-2, 6e-3, 1e-4} : Tolerance{5e-3, 8e-4, 1e-4};
}

/// Q, K, V, O and LSE of one problem on the device. Elements that no tensor owns (gaps of the strides, a guard band
/// at the end) hold NaN: who reads them is found out, and who writes them too.
class Attention {
 public:
  struct Options {
    float q_scale = 1;
    unsigned seed = 1;
    Strides q = {}, k = {}, v = {}, o = {};
  };

  explicit Attention(const Problem& problem) : Attention(problem, Options()) {}
  Attention(const Problem& problem, const Options& options) : problem_(problem) {
    const Strides given[] = {options.q, options.k, options.v, options.o};
    for (int i = 0; i < runtime::kForwardOperands; ++i) {
      const auto operand = static_cast<runtime::Operand>(i);
      strides_[i] = runtime::resolve_strides(problem, operand, given[i]);
      const runtime::TensorShape s = runtime::shape_of(problem, operand);
      const std::int64_t elements = s.batch == 0 || s.rows == 0
                                        ? 0
                                        : (s.batch - 1) * strides_[i].batch + (s.heads - 1) * strides_[i].head +
                                              (s.rows - 1) * strides_[i].row + s.head_dim;
      host_[i].assign(static_cast<std::size_t>(elements + kGuard), kPoison);
      const float scale = operand == runtime::Operand::q ? options.q_scale : 1;
      if (operand != runtime::Operand::o) fill(operand, scale, options.seed * 4 + static_cast<unsigned>(i));
      memory_[i] = runtime::DeviceBuffer(*device(), host_[i].size() * 2);
      device()->copy_to_device(memory_[i].data(), host_[i].data(), host_[i].size() * 2);
    }
    lse_ = runtime::DeviceBuffer(*device(), static_cast<std::size_t>(lse_count() + kGuard) * 4);
    args_ = {.q = memory_[0].data(),
             .k = memory_[1].data(),
             .v = memory_[2].data(),
             .o = memory_[3].data(),
             .lse = static_cast<float*>(lse_.data()),
             .q_strides = options.q,
             .k_strides = options.k,
             .v_strides = options.v,
             .o_strides = options.o};
    poison();
  }

  const ForwardArgs& args() const { return args_; }
  const Problem& problem() const { return problem_; }

  /// Overwrites O and LSE with NaN.
  void poison() {
    device()->synchronize();
    device()->copy_to_device(memory_[3].data(), host_[3].data(), host_[3].size() * 2);
    device()->fill32(lse_.data(), 0x7fc1dead, lse_.size() / 4, nullptr);
    device()->synchronize();
  }

  /// Compares O and LSE of the sampled rows with the reference kernel, and checks that nothing else was written.
  Difference compare(const runtime::RowSample& sample = {}, float scale = 0) const {
    const std::int64_t rows = runtime::Reference::rows_in(problem_, sample);
    const std::int64_t dv = problem_.head_dim_v, pairs = problem_.batch * problem_.heads;
    const Exact& exact = exact_for(sample, scale);
    std::vector<float> lse(lse_.size() / 4);
    std::vector<std::uint16_t> o(host_[3].size());
    device()->synchronize();
    device()->copy_to_host(lse.data(), lse_.data(), lse_.size());
    device()->copy_to_host(o.data(), memory_[3].data(), o.size() * 2);

    Difference d;
    double error = 0, norm = 0;
    const std::int64_t step = std::max<std::int64_t>(1, sample.step);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t base = pair / problem_.heads * strides_[3].batch + pair % problem_.heads * strides_[3].head;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t row = sample.first + r * step;
        const bool masked = std::isinf(exact.lse[pair * problem_.seqlen_q + row]);
        for (std::int64_t c = 0; c < dv; ++c) {
          const double want = exact.o[(pair * rows + r) * dv + c];
          const double got = to_float(problem_.dtype, o[base + row * strides_[3].row + c]);
          // A NaN (the poison too) compares false with everything, so it must be caught here.
          double off = std::fabs(got - want);
          if (!(off < 1e30) || (masked && got != 0)) off = 1e30;
          d.max_abs = std::max(d.max_abs, off);
          error += off * off;
          norm += want * want;
        }
        if (args_.lse != nullptr) {
          const float want = exact.lse[pair * problem_.seqlen_q + row], got = lse[pair * problem_.seqlen_q + row];
          double off = masked ? (got == want ? 0 : 1e30) : std::fabs(got - want) / std::max(1.0f, std::fabs(want));
          if (!(off < 1e30)) off = 1e30;
          d.lse = std::max(d.lse, off);
        }
        ++d.rows;
      }
    }
    d.relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    if (rows == problem_.seqlen_q) check_untouched(o, lse);
    return d;
  }

  /// Bits of O as they are on the device now.
  std::vector<std::uint16_t> output() const {
    std::vector<std::uint16_t> o(host_[3].size());
    device()->synchronize();
    device()->copy_to_host(o.data(), memory_[3].data(), o.size() * 2);
    return o;
  }

 private:
  static constexpr std::int64_t kGuard = 256;

  std::int64_t lse_count() const { return problem_.batch * problem_.heads * problem_.seqlen_q; }

  template <typename Visit>
  void for_each_row(runtime::Operand operand, const Visit& visit) const {
    const runtime::TensorShape s = runtime::shape_of(problem_, operand);
    const Strides& strides = strides_[static_cast<int>(operand)];
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t r = 0; r < s.rows; ++r)
          visit(b * strides.batch + h * strides.head + r * strides.row, s.head_dim);
  }

  void fill(runtime::Operand operand, float scale, unsigned seed) {
    // A long period, prime so that rows differ: drawing every element of a long problem would take longer than the
    // test.
    constexpr std::size_t kPeriod = 1048573;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> values(std::min(kPeriod, host_[static_cast<int>(operand)].size()));
    for (std::uint16_t& value : values) value = to_bits(problem_.dtype, scale * normal(random));
    std::size_t next = 0;
    for_each_row(operand, [&](std::int64_t at, std::int64_t count) {
      for (std::int64_t c = 0; c < count; ++c, next = next + 1 == values.size() ? 0 : next + 1) {
        host_[static_cast<int>(operand)][at + c] = values[next];
      }
    });
  }

  void check_untouched(std::vector<std::uint16_t> o, const std::vector<float>& lse) const {
    for_each_row(runtime::Operand::o,
                 [&](std::int64_t at, std::int64_t count) { std::fill_n(&o[at], count, kPoison); });
    CHECK_MESSAGE(std::ranges::count(o, kPoison) == static_cast<std::int64_t>(o.size()), "written outside of O");
    const std::int64_t owned = args_.lse != nullptr ? lse_count() : 0;
    CHECK_MESSAGE(std::all_of(lse.begin() + owned, lse.end(), [](float x) { return std::isnan(x); }),
                  "written outside of LSE");
  }

  struct Exact {
    runtime::RowSample sample;
    float scale = 0;
    std::vector<double> o;
    std::vector<float> lse;
  };

  // Many kernels are compared with the same results, so the last ones are kept.
  const Exact& exact_for(const runtime::RowSample& sample, float scale) const {
    if (exact_ && exact_->sample.first == sample.first && exact_->sample.step == sample.step &&
        exact_->sample.count == sample.count && exact_->scale == scale) {
      return *exact_;
    }
    const std::int64_t pairs = problem_.batch * problem_.heads;
    const std::int64_t values = pairs * runtime::Reference::rows_in(problem_, sample) * problem_.head_dim_v;
    Exact& exact = exact_.emplace();
    exact.sample = sample;
    exact.scale = scale;
    exact.o.resize(static_cast<std::size_t>(values));
    exact.lse.resize(lse_.size() / 4);
    runtime::DeviceBuffer o(*device(), exact.o.size() * 8), lse(*device(), lse_.size());
    ForwardArgs args = args_;
    args.scale = scale;
    args.stream = nullptr;
    device()->synchronize();
    reference().launch(problem_, args, sample,
                       {.lse = static_cast<float*>(lse.data()), .o_exact = static_cast<double*>(o.data())});
    device()->synchronize();
    device()->copy_to_host(exact.o.data(), o.data(), exact.o.size() * 8);
    device()->copy_to_host(exact.lse.data(), lse.data(), lse_.size());
    return exact;
  }

  // One kernel for each dtype, head dims and mask.
  const runtime::Reference& reference() const {
    static std::map<std::string, std::unique_ptr<runtime::Reference>>* const loaded =
        new std::map<std::string, std::unique_ptr<runtime::Reference>>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    std::unique_ptr<runtime::Reference>& entry =
        (*loaded)[std::string(to_string(problem_.dtype)) + "/" + std::to_string(problem_.head_dim) + "/" +
                  std::to_string(problem_.head_dim_v) + (problem_.causal ? "/causal" : "")];
    if (!entry) entry = std::make_unique<runtime::Reference>(device(), builder(), problem_);
    return *entry;
  }

  const Problem problem_;
  Strides strides_[runtime::kForwardOperands];
  std::vector<std::uint16_t> host_[runtime::kForwardOperands];
  runtime::DeviceBuffer memory_[runtime::kForwardOperands];
  runtime::DeviceBuffer lse_;
  ForwardArgs args_;
  mutable std::optional<Exact> exact_;
};

/// Launches, compares and checks; names the case where it fails.
inline Difference check_right(const Plan& plan, Attention& attention, const runtime::RowSample& sample = {}) {
  attention.poison();
  plan.launch(attention.args());
  const Difference d = attention.compare(sample);
  const Tolerance limit = tolerance(attention.problem().dtype);
  CAPTURE(plan.info().problem);
  CAPTURE(plan.info().config);
  CHECK(d.max_abs < limit.max_abs);
  CHECK(d.relative < limit.relative);
  CHECK(d.lse < limit.lse);
  return d;
}

}  // namespace attune::gpu
