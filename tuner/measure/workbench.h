// What the measuring process needs for any problem: the device, helper kernels, references, tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/device.h"
#include "runtime/nvml.h"
#include "runtime/plan_state.h"
#include "runtime/reference.h"
#include "runtime/reference_backward.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/helpers.h"

namespace attune::tuner {

class Workbench {
 public:
  /// `nvml` may be null. Throws as Device does.
  Workbench(std::shared_ptr<runtime::Device> device, std::unique_ptr<runtime::Nvml> nvml,
            std::string_view helpers_cubin);
  ~Workbench();
  Workbench(const Workbench&) = delete;
  Workbench& operator=(const Workbench&) = delete;

  runtime::Device& device() { return *device_; }
  const std::shared_ptr<runtime::Device>& shared_device() { return device_; }
  const std::shared_ptr<runtime::PlanContext>& plans() { return plans_; }
  Helpers& helpers() { return helpers_; }
  runtime::Stream stream() const { return stream_; }
  const runtime::Nvml* nvml() const { return nvml_.get(); }

  void add_reference(const std::string& spec, const std::string& cubin);
  bool has_reference(const std::string& spec) const { return reference_cubins_.contains(spec); }
  /// Throw Error(not_found) if its cubin was not added. The first serves the forward pass of a backward problem, too.
  const runtime::Reference& reference(const Problem& problem);
  const runtime::ReferenceBackward& backward_reference(const Problem& problem);

  /// At least so many bytes for a launch on the stream, shared with those before and after it. Null for none. Throws
  /// Error(out_of_memory).
  void* workspace(std::size_t bytes);

  /// The tile counter that all launches share: 8 bytes, zeroed by reset_counter(), zero again after every launch that
  /// ended well.
  void* counter() { return counter_.data(); }
  void reset_counter();
  bool counter_is_zero();

  /// Copies rows' errors to the host; waits for the stream.
  std::vector<RowError> fetch(const runtime::DeviceBuffer& rows, std::size_t count);
  void wait() { device_->synchronize(stream_); }

 private:
  std::shared_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Nvml> nvml_;
  Helpers helpers_;
  std::shared_ptr<runtime::PlanContext> plans_;
  runtime::Stream stream_;
  runtime::DeviceBuffer counter_;
  const std::string& reference_cubin(const std::string& spec) const;

  std::map<std::string, std::string> reference_cubins_;
  std::map<std::string, std::unique_ptr<runtime::Reference>> references_;
  std::map<std::string, std::unique_ptr<runtime::ReferenceBackward>> backward_references_;
  runtime::DeviceBuffer workspace_;
};

/// The forward pass whose gradients a problem asks for; a forward problem as it is.
Problem forward_of(Problem problem);
/// Text of the spec of the reference kernel of a problem's own operation.
std::string reference_spec(const Arch& arch, const Problem& problem);
/// Of all reference kernels that judging a problem takes.
std::vector<std::string> reference_specs(const Arch& arch, const Problem& problem);

/// Q, K, V, O and LSE of one problem, in its default layout. O and LSE have a guard of poison behind them.
class Tensors {
 public:
  Tensors(Workbench& bench, const Problem& problem, std::uint64_t seed);

  /// Random normal numbers; Q scaled by `q_amplitude`, the first column of Q and K replaced where `leading` says so.
  void fill(double q_amplitude, Leading q_leading = {}, Leading k_leading = {});
  ForwardArgs args() const;
  /// Fills O, LSE and the guards with poison.
  void poison();
  /// Of O and LSE alone, and of the guards alone: 16-bit halves that hold poison. Waits for the stream.
  std::uint64_t unwritten();
  bool guards_intact();

  const void* q() const { return q_.data(); }
  void* k() const { return k_.data(); }
  void* o() const { return o_.data(); }
  float* lse() const { return static_cast<float*>(lse_.data()); }
  std::uint64_t bytes() const { return q_.size() + k_.size() + v_.size() + o_.size() + lse_.size(); }
  /// Of one set, before it is allocated.
  static std::uint64_t bytes_of(const Problem& problem);

 private:
  /// Poisoned halves in a part of O and a part of LSE, both in words.
  std::uint64_t poisoned(std::uint64_t o_first, std::uint64_t o_words, std::uint64_t lse_first,
                         std::uint64_t lse_words);

  Workbench* bench_;
  Problem problem_;
  std::uint64_t seed_;
  std::uint64_t q_count_, k_count_, v_count_;  // elements
  std::uint64_t o_words_, lse_words_;          // guards not included
  runtime::DeviceBuffer q_, k_, v_, o_, lse_, found_;
};

/// The exact output for some rows of every head.
class ExactRows {
 public:
  ExactRows(Workbench& bench, const Problem& problem, const ForwardArgs& inputs, const runtime::RowSample& rows);

  /// Queues the comparison of `tensors` with the exact rows.
  void compare(const Tensors& tensors);
  /// Waits for the comparison and fetches it.
  std::vector<RowError> errors();
  /// Largest finite |LSE| over all rows. Waits.
  double lse_magnitude();
  std::uint64_t bytes() const { return o_.size() + lse_.size() + result_.size(); }

 private:
  Workbench* bench_;
  Problem problem_;
  runtime::RowSample rows_;
  std::int64_t count_;
  runtime::DeviceBuffer o_, lse_, result_;
};

}  // namespace attune::tuner
