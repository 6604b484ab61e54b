// A device without a GPU that computes: it runs the measuring process's helper kernels, the reference and attention
// kernels on the host, by the names of their entries, and can be given a bug.
#pragma once

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fake_device.h"
#include "tuner/measure/helpers.h"

namespace attune::tests {

enum class Bug {
  none,
  sees_one_key_too_many,  ///< the causal mask is off by one
  drops_last_key,
  skips_last_row,
  not_a_number,
  writes_behind_o,
  leaves_counter,
  overflows_when_shifted,  ///< right only for scores of ordinary size
  illegal_address,         ///< the context is lost
  ecc,
};

class ComputingDevice : public FakeDevice {
 public:
  Bug bug = Bug::none;
  double seconds = 1e-3;  ///< what an attention launch takes on the device's clock
  double clock = 0;
  int attention_launches = 0;

  std::unique_ptr<runtime::Module> load(std::string_view) override {
    struct NamedModule : runtime::Module {
      std::vector<std::unique_ptr<std::string>> names;
      runtime::Function function(const std::string& entry, int) override {
        names.push_back(std::make_unique<std::string>(entry));
        return {names.back().get()};
      }
    };
    check();
    ++loads;
    return std::make_unique<NamedModule>();
  }

  void launch(runtime::Function function, const runtime::LaunchConfig& config, void** arguments) override {
    check();
    const std::string& entry = *static_cast<const std::string*>(function.handle);
    if (entry == "attune_fill_normal") {
      fill_normal(arguments);
    } else if (entry == "attune_count_halves") {
      count_halves(arguments);
    } else if (entry == "attune_compare_rows") {
      compare_rows(*static_cast<tuner::CompareParams*>(arguments[0]), config.grid.x);
    } else if (entry == "attune_reference_forward") {
      reference(*static_cast<codegen::ReferenceParams*>(arguments[0]), config.grid);
    } else if (entry == "attune_forward") {
      forward(arguments);
    } else if (entry == "attune_spin") {
      clock += static_cast<double>(*static_cast<std::uint64_t*>(arguments[0])) * 1e-9;
    } else if (entry == "attune_clock_probe") {
      **static_cast<double**>(arguments[0]) = 1.75;
    } else {
      fail(ErrorCode::not_found, "no such kernel: {}", entry);
    }
  }

  std::unique_ptr<runtime::Event> create_event() override {
    struct ClockEvent : runtime::Event {
      explicit ClockEvent(const double& clock) : clock_(clock) {}
      void record(runtime::Stream) override { at = clock_; }
      void synchronize() override {}
      bool done() override { return true; }
      double milliseconds_since(const Event& start) const override {
        return (at - dynamic_cast<const ClockEvent&>(start).at) * 1e3;
      }
      const double& clock_;
      double at = 0;
    };
    return std::make_unique<ClockEvent>(clock);
  }
  void synchronize(runtime::Stream) override { check(); }
  void synchronize() override { check(); }

 protected:
  void check() const {
    if (lost_) fail(ErrorCode::driver, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS");
    if (broken_) fail(ErrorCode::driver, "cuStreamSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE");
  }

  static float widened(std::uint16_t bits) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  static std::uint16_t rounded(float value) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    if (std::isnan(value)) return 0x7fc0;
    return static_cast<std::uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  static std::uint64_t mixed(std::uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  static void fill_normal(void** a) {
    auto* const out = *static_cast<std::uint16_t**>(a[0]);
    const std::uint64_t count = *static_cast<std::uint64_t*>(a[1]), seed = *static_cast<std::uint64_t*>(a[2]);
    const float amplitude = *static_cast<float*>(a[3]), leading = *static_cast<float*>(a[6]);
    const int fp16 = *static_cast<std::int32_t*>(a[4]), row_length = *static_cast<std::int32_t*>(a[5]);
    const bool replace = *static_cast<std::int32_t*>(a[7]) != 0;
    if (fp16 != 0) fail(ErrorCode::unsupported, "bf16 only here");
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t random = mixed(mixed(seed) ^ i);
      const float x = static_cast<float>((random >> 40) + 1) / 16777217.f;
      const float y = static_cast<float>(random & 0xffffff) / 16777216.f;
      const float normal = std::sqrt(-2.f * std::log(x)) * std::cos(6.28318531f * y);
      const bool first = replace && i % static_cast<std::uint64_t>(row_length) == 0;
      out[i] = rounded(first ? leading : amplitude * normal);
    }
  }

  static void count_halves(void** a) {
    const auto* const words = *static_cast<const std::uint32_t**>(a[0]);
    const std::uint64_t count = *static_cast<std::uint64_t*>(a[1]);
    const std::uint32_t half = *static_cast<std::uint32_t*>(a[2]);
    const bool whole = *static_cast<std::int32_t*>(a[3]) != 0;
    auto* const result = *static_cast<std::uint64_t**>(a[4]);
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool low = (words[i] & 0xffff) == half, high = (words[i] >> 16) == half;
      *result += whole ? 2 * (low && high) : low + high;
    }
  }

  static void compare_rows(const tuner::CompareParams& p, unsigned blocks) {
    for (unsigned block = 0; block < blocks; ++block) {
      const std::int64_t index = block % static_cast<unsigned>(p.rows), pair = block / static_cast<unsigned>(p.rows);
      const std::int64_t row = p.row_first + index * p.row_step;
      const auto* const o = static_cast<const std::uint16_t*>(p.o) + pair / p.heads * p.o_batch +
                            pair % p.heads * p.o_head + row * p.o_row;
      const double* const exact = p.o_exact + std::int64_t{block} * p.head_dim_v;
      const float lse = p.lse[pair * p.seqlen_q + row], lse_exact = p.lse_exact[pair * p.seqlen_q + row];
      const bool masked = lse_exact == -std::numeric_limits<float>::infinity();
      const auto difference = [](double value, double wanted) {
        const double d = std::abs(value - wanted);
        return d <= 1e300 ? d : 1e300;
      };
      tuner::RowError error;
      for (int d = 0; d < p.head_dim_v; ++d) {
        const double value = widened(o[d]);
        const double e = masked ? (value == 0 ? 0 : 1e300) : difference(value, exact[d]);
        error.squares += e < 1e150 ? e * e : 1e300;
        error.exact_squares += exact[d] * exact[d];
        error.largest = std::max(error.largest, e);
      }
      error.lse = masked ? (lse == lse_exact ? 0 : 1e300) : difference(lse, lse_exact);
      p.result[block] = error;
    }
  }

  // One row of attention; `keys` of them, from their start, are seen.
  struct Row {
    std::vector<double> o;
    double lse = 0;
  };
  static Row attend(const std::uint16_t* q, const std::uint16_t* k, const std::uint16_t* v, std::int64_t k_row,
                    std::int64_t v_row, std::int64_t keys, int dim, int dim_v, double scale) {
    Row row{std::vector<double>(static_cast<std::size_t>(dim_v)), -std::numeric_limits<double>::infinity()};
    if (keys <= 0) return row;
    std::vector<double> s(static_cast<std::size_t>(keys));
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < keys; ++j) {
      double dot = 0;
      for (int d = 0; d < dim; ++d) dot += double{widened(q[d])} * widened(k[j * k_row + d]);
      s[static_cast<std::size_t>(j)] = dot * scale;
      largest = std::max(largest, dot * scale);
    }
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const double weight = std::exp(s[static_cast<std::size_t>(j)] - largest);
      sum += weight;
      for (int d = 0; d < dim_v; ++d) row.o[static_cast<std::size_t>(d)] += weight * widened(v[j * v_row + d]);
    }
    for (double& value : row.o) value /= sum;
    row.lse = largest + std::log(sum);
    return row;
  }

  static void reference(const codegen::ReferenceParams& p, const runtime::Dim3& grid) {
    const auto* const q = static_cast<const std::uint16_t*>(p.q);
    const auto* const k = static_cast<const std::uint16_t*>(p.k);
    const auto* const v = static_cast<const std::uint16_t*>(p.v);
    const bool causal = causal_;
    for (unsigned batch = 0; batch < grid.z; ++batch) {
      for (unsigned head = 0; head < grid.y; ++head) {
        for (unsigned index = 0; index < grid.x; ++index) {
          const std::int64_t row = p.row_first + std::int64_t{index} * p.row_step;
          if (row >= p.seqlen_q) continue;
          std::int64_t keys = p.seqlen_k;
          if (causal) keys = std::clamp<std::int64_t>(row + 1 + p.seqlen_k - p.seqlen_q, 0, keys);
          const unsigned kv = head / static_cast<unsigned>(p.group);
          const Row exact =
              attend(q + batch * p.q_batch + head * p.q_head + row * p.q_row, k + batch * p.k_batch + kv * p.k_head,
                     v + batch * p.v_batch + kv * p.v_head, p.k_row, p.v_row, keys, dim_, dim_v_, p.scale);
          const std::int64_t pair = batch * std::int64_t{p.heads} + head;
          if (p.lse != nullptr) p.lse[pair * p.seqlen_q + row] = static_cast<float>(exact.lse);
          if (p.o_exact != nullptr) {
            double* const to = p.o_exact + (pair * grid.x + index) * dim_v_;
            std::copy(exact.o.begin(), exact.o.end(), to);
          }
        }
      }
    }
  }

  void forward(void** a) {
    ++attention_launches;
    clock += seconds;
    if (bug == Bug::illegal_address) lost_ = true;
    if (bug == Bug::ecc) broken_ = true;
    FakeMap maps[4];
    for (int i = 0; i < 4; ++i) maps[i] = fake_map(*static_cast<const runtime::TensorMap*>(a[i]));
    const codegen::ForwardParams& p = *static_cast<const codegen::ForwardParams*>(a[4]);
    const auto batches = static_cast<std::int64_t>(maps[0].dims[3]);
    const auto at = [&](int map, std::int64_t row, std::int64_t head, std::int64_t batch) {
      const FakeMap& m = maps[map];
      return reinterpret_cast<std::uint16_t*>(m.base) +
             (row * static_cast<std::int64_t>(m.strides[0]) + head * static_cast<std::int64_t>(m.strides[1]) +
              batch * static_cast<std::int64_t>(m.strides[2])) /
                 2;
    };
    const auto k_row = static_cast<std::int64_t>(maps[1].strides[0] / 2),
               v_row = static_cast<std::int64_t>(maps[2].strides[0] / 2);
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      for (std::int64_t head = 0; head < p.heads; ++head) {
        for (std::int64_t row = 0; row < p.seqlen_q; ++row) {
          if (bug == Bug::skips_last_row && row == p.seqlen_q - 1) continue;
          std::int64_t keys = p.seqlen_k;
          if (causal_) keys = std::clamp<std::int64_t>(row + 1 + p.seqlen_k - p.seqlen_q, 0, keys);
          if (bug == Bug::sees_one_key_too_many) keys = std::min<std::int64_t>(keys + 1, p.seqlen_k);
          if (bug == Bug::drops_last_key && keys > 1) --keys;
          Row exact = attend(at(0, row, head, batch), at(1, 0, head / p.group, batch), at(2, 0, head / p.group, batch),
                             k_row, v_row, keys, dim_, dim_v_, p.scale);
          if (bug == Bug::not_a_number && row == 5 && head == 1) exact.o[3] = std::nan("");
          if (bug == Bug::overflows_when_shifted && exact.lse > 30) exact.o[0] = 0;
          std::uint16_t* const o = at(3, row, head, batch);
          for (int d = 0; d < dim_v_; ++d) o[d] = rounded(static_cast<float>(exact.o[static_cast<std::size_t>(d)]));
          if (p.lse != nullptr) p.lse[(batch * p.heads + head) * p.seqlen_q + row] = static_cast<float>(exact.lse);
          if (bug == Bug::writes_behind_o && row == p.seqlen_q - 1 && head == p.heads - 1 && batch == batches - 1)
            o[dim_v_] = 0;
        }
      }
    }
    if (bug == Bug::leaves_counter && p.counter != nullptr) *p.counter = 7;
  }

 public:
  // What the kernels would have compiled in.
  inline static bool causal_ = false;
  inline static int dim_ = 16, dim_v_ = 16;

 private:
  bool lost_ = false, broken_ = false;
};

}  // namespace attune::tests
