// The device code of helpers.cuh, ready to launch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/device.h"

namespace attune::tuner {

/// Text of helpers.cuh, and the options to compile it with for an architecture ("sm_90a").
std::string_view helpers_source();
std::vector<std::string> helpers_options(const std::string& arch);

/// What an output buffer is filled with before a launch: NaN in both 16-bit types and, as two halves, in float32.
inline constexpr std::uint16_t kPoison = 0x7fc1;
inline constexpr std::uint32_t kPoisonWord = 0x7fc17fc1;

/// Error of one row against the reference; 1e300 stands for "not a number", "not written" and "must be exact".
struct RowError {
  double squares = 0;        ///< sum over the row of (o - exact)^2
  double exact_squares = 0;  ///< sum of exact^2
  double largest = 0;        ///< max |o - exact|
  double lse = 0;            ///< |lse - exact|
};

/// What attune_compare_rows takes; strides in elements.
struct CompareParams {
  const void* o = nullptr;
  const float* lse = nullptr;
  const double* o_exact = nullptr;
  const float* lse_exact = nullptr;
  RowError* result = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  std::int32_t heads = 0, seqlen_q = 0, rows = 0, head_dim_v = 0, row_first = 0, row_step = 1, fp16 = 0, unused = 0;
};
static_assert(sizeof(CompareParams) == 96 && sizeof(RowError) == 32);

/// Sums of squares over one row of a gradient; an error of 1e300 and more stands for "not a number", "not written" and
/// "must be exactly 0".
struct GradientRow {
  double error = 0, exact = 0, usual = 0;
};

/// What attune_compare_gradient takes; strides in elements.
struct CompareGradientParams {
  const void* got = nullptr;
  const double* exact = nullptr;
  const double* kernels = nullptr;
  GradientRow* result = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
  std::int32_t heads = 0, rows = 0, columns = 0, row_first = 0, row_step = 1, alone = 0, fp16 = 0, unused = 0;
};
static_assert(sizeof(CompareGradientParams) == 88 && sizeof(GradientRow) == 24);

/// Values for the first element of every row, instead of a random one.
struct Leading {
  std::int32_t row_length = 1;
  float value = 0;
  bool replace = false;
};

/// What is poisoned as one: an element of O, or a float32 of LSE, whose lower half alone may look like poison by
/// chance.
enum class PoisonUnit { half, word };

/// Everything is queued on `stream`; nothing waits unless it says so.
class Helpers {
 public:
  /// Throws as Device::load and Module::function do.
  Helpers(std::shared_ptr<runtime::Device> device, std::string_view cubin);

  void fill_normal(void* out, std::uint64_t count, std::uint64_t seed, float amplitude, DType dtype, Leading leading,
                   runtime::Stream stream);
  /// Adds to *result, in device memory, how many 16-bit halves of `words` are poison.
  void count_poison(const void* words, std::uint64_t word_count, PoisonUnit unit, std::uint64_t* result,
                    runtime::Stream stream);
  /// `pairs`: batch * heads.
  void compare_rows(const CompareParams& params, std::uint64_t pairs, runtime::Stream stream);
  void compare_gradient(const CompareGradientParams& params, std::uint64_t pairs, runtime::Stream stream);
  void spin(double seconds, runtime::Stream stream);
  /// Writes the SM clock in GHz to device memory.
  void clock_probe(double* ghz, runtime::Stream stream);

 private:
  template <typename Params>
  void compare(runtime::Function function, const Params& params, std::uint64_t pairs, runtime::Stream stream);
  void launch(runtime::Function function, std::uint64_t blocks, unsigned threads, void** arguments,
              runtime::Stream stream);

  std::shared_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Module> module_;
  runtime::Function fill_, count_, compare_, compare_gradient_, spin_, probe_;
};

}  // namespace attune::tuner
