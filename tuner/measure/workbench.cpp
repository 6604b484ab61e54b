#include "tuner/measure/workbench.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/builder.h"
#include "runtime/tensor_map.h"

namespace attune::tuner {
namespace {

constexpr std::uint64_t kGuardWords = 16384;  // more than a tile

// Serves one kernel that was compiled elsewhere, so that the measuring process needs no NVRTC.
class Precompiled : public runtime::Compiler {
 public:
  explicit Precompiled(std::string cubin) : cubin_(std::move(cubin)) {}
  const std::string& version() const override { return version_; }
  const std::string& nvrtc_path() const override { return version_; }
  runtime::CompileResult compile(const std::string&, const std::vector<std::string>&, bool) const override {
    runtime::CompileResult result;
    result.cubin = cubin_;
    return result;
  }

 private:
  std::string cubin_;
  std::string version_ = "precompiled";
};

runtime::Builder builder_of(const std::string& cubin) {
  return runtime::Builder(cache::Store::memory_only(), [cubin] { return std::make_shared<const Precompiled>(cubin); });
}

std::uint64_t product(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b) * static_cast<std::uint64_t>(c) *
         static_cast<std::uint64_t>(d);
}

std::uint64_t q_elements(const Problem& p) { return product(p.batch, p.seqlen_q, p.heads, p.head_dim); }
std::uint64_t k_elements(const Problem& p) { return product(p.batch, p.seqlen_k, p.heads_kv, p.head_dim); }
std::uint64_t v_elements(const Problem& p) { return product(p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v); }
std::uint64_t o_elements(const Problem& p) { return product(p.batch, p.seqlen_q, p.heads, p.head_dim_v); }
std::uint64_t lse_elements(const Problem& p) { return product(p.batch, p.seqlen_q, p.heads, 1); }

const std::uint32_t* words(const void* base, std::uint64_t first) {
  return static_cast<const std::uint32_t*>(base) + first;
}

}  // namespace

Problem forward_of(Problem problem) {
  problem.op = Op::forward;
  problem.deterministic = false;
  return problem;
}

std::string reference_spec(const Arch& arch, const Problem& problem) {
  const bool backward = problem.op == Op::backward;
  const codegen::Config config{.family = backward ? codegen::Family::reference_backward : codegen::Family::reference};
  return codegen::to_string(codegen::specialise(arch, problem, config));
}

std::vector<std::string> reference_specs(const Arch& arch, const Problem& problem) {
  std::vector<std::string> specs{reference_spec(arch, forward_of(problem))};
  if (problem.op == Op::backward) specs.push_back(reference_spec(arch, problem));
  return specs;
}

// -- Workbench ----------------------------------------------------------------------------------------------------

Workbench::Workbench(std::shared_ptr<runtime::Device> device, std::unique_ptr<runtime::Nvml> nvml,
                     std::string_view helpers_cubin)
    : device_(std::move(device)),
      nvml_(std::move(nvml)),
      helpers_(device_, helpers_cubin),
      plans_(std::make_shared<runtime::PlanContext>(device_)),
      stream_(device_->create_stream()),
      counter_(*device_, 8) {
  reset_counter();
}

Workbench::~Workbench() { device_->destroy_stream(stream_); }

void Workbench::add_reference(const std::string& spec, const std::string& cubin) { reference_cubins_[spec] = cubin; }

const std::string& Workbench::reference_cubin(const std::string& spec) const {
  const auto cubin = reference_cubins_.find(spec);
  if (cubin == reference_cubins_.end()) fail(ErrorCode::not_found, "reference: no code was given for {}", spec);
  return cubin->second;
}

const runtime::Reference& Workbench::reference(const Problem& problem) {
  const Problem forward = forward_of(problem);
  const std::string spec = reference_spec(runtime::arch_of(device_->properties()), forward);
  std::unique_ptr<runtime::Reference>& reference = references_[spec];
  if (!reference) {
    runtime::Builder builder = builder_of(reference_cubin(spec));
    reference = std::make_unique<runtime::Reference>(device_, builder, forward);
  }
  return *reference;
}

const runtime::ReferenceBackward& Workbench::backward_reference(const Problem& problem) {
  const std::string spec = reference_spec(runtime::arch_of(device_->properties()), problem);
  std::unique_ptr<runtime::ReferenceBackward>& reference = backward_references_[spec];
  if (!reference) {
    runtime::Builder builder = builder_of(reference_cubin(spec));
    reference = std::make_unique<runtime::ReferenceBackward>(device_, builder, problem);
  }
  return *reference;
}

void* Workbench::workspace(std::size_t bytes) {
  if (bytes > workspace_.size()) {
    wait();  // for launches that use the smaller one
    workspace_.reset();
    workspace_ = runtime::DeviceBuffer(*device_, bytes);
  }
  return bytes == 0 ? nullptr : workspace_.data();
}

void Workbench::reset_counter() { device_->fill8(counter_.data(), 0, counter_.size(), stream_); }

bool Workbench::counter_is_zero() {
  wait();
  std::uint64_t value = 0;
  device_->copy_to_host(&value, counter_.data(), sizeof value);
  return value == 0;
}

std::vector<RowError> Workbench::fetch(const runtime::DeviceBuffer& rows, std::size_t count) {
  wait();
  std::vector<RowError> host(count);
  if (count > 0) device_->copy_to_host(host.data(), rows.data(), count * sizeof(RowError));
  return host;
}

// -- Tensors ------------------------------------------------------------------------------------------------------

std::uint64_t Tensors::bytes_of(const Problem& p) {
  return 2 * (q_elements(p) + k_elements(p) + v_elements(p) + o_elements(p)) + 4 * lse_elements(p) + 8 * kGuardWords;
}

Tensors::Tensors(Workbench& bench, const Problem& problem, std::uint64_t seed)
    : bench_(&bench),
      problem_(problem),
      seed_(seed),
      q_count_(q_elements(problem)),
      k_count_(k_elements(problem)),
      v_count_(v_elements(problem)),
      o_words_(o_elements(problem) / 2),  // head dims are multiples of 8
      lse_words_(lse_elements(problem)),
      q_(bench.device(), 2 * q_count_),
      k_(bench.device(), 2 * k_count_),
      v_(bench.device(), 2 * v_count_),
      o_(bench.device(), 4 * (o_words_ + kGuardWords)),
      lse_(bench.device(), 4 * (lse_words_ + kGuardWords)),
      found_(bench.device(), 8) {}

void Tensors::fill(double q_amplitude, Leading q_leading, Leading k_leading) {
  const runtime::Stream stream = bench_->stream();
  const DType dtype = problem_.dtype;
  Helpers& helpers = bench_->helpers();
  helpers.fill_normal(q_.data(), q_count_, 3 * seed_, static_cast<float>(q_amplitude), dtype, q_leading, stream);
  helpers.fill_normal(k_.data(), k_count_, 3 * seed_ + 1, 1, dtype, k_leading, stream);
  helpers.fill_normal(v_.data(), v_count_, 3 * seed_ + 2, 1, dtype, {}, stream);
}

ForwardArgs Tensors::args() const {
  ForwardArgs args;
  args.q = q_.data();
  args.k = k_.data();
  args.v = v_.data();
  args.o = o_.data();
  args.lse = lse();
  args.workspace = bench_->counter();
  args.workspace_bytes = 8;
  args.stream = bench_->stream();
  return args;
}

void Tensors::poison() {
  runtime::Device& device = bench_->device();
  device.fill32(o_.data(), kPoisonWord, o_words_ + kGuardWords, bench_->stream());
  device.fill32(lse_.data(), kPoisonWord, lse_words_ + kGuardWords, bench_->stream());
}

std::uint64_t Tensors::poisoned(std::uint64_t o_first, std::uint64_t o_words, std::uint64_t lse_first,
                                std::uint64_t lse_words) {
  const runtime::Stream stream = bench_->stream();
  bench_->device().fill8(found_.data(), 0, found_.size(), stream);
  auto* const found = static_cast<std::uint64_t*>(found_.data());
  bench_->helpers().count_poison(words(o_.data(), o_first), o_words, PoisonUnit::half, found, stream);
  bench_->helpers().count_poison(words(lse_.data(), lse_first), lse_words, PoisonUnit::word, found, stream);
  bench_->wait();
  std::uint64_t halves = 0;
  bench_->device().copy_to_host(&halves, found, sizeof halves);
  return halves;
}

std::uint64_t Tensors::unwritten() { return poisoned(0, o_words_, 0, lse_words_); }

bool Tensors::guards_intact() { return poisoned(o_words_, kGuardWords, lse_words_, kGuardWords) == 4 * kGuardWords; }

// -- ExactRows ----------------------------------------------------------------------------------------------------

ExactRows::ExactRows(Workbench& bench, const Problem& problem, const ForwardArgs& inputs,
                     const runtime::RowSample& rows)
    : bench_(&bench),
      problem_(problem),
      rows_(rows),
      count_(runtime::Reference::rows_in(problem, rows)),
      o_(bench.device(), product(problem.batch, problem.heads, count_, problem.head_dim_v) * sizeof(double)),
      lse_(bench.device(), lse_elements(problem) * sizeof(float)),
      result_(bench.device(), product(problem.batch, problem.heads, count_, 1) * sizeof(RowError)) {
  bench.device().fill32(lse_.data(), kPoisonWord, lse_elements(problem), bench.stream());
  bench.reference(problem).launch(
      problem, inputs, rows, {.lse = static_cast<float*>(lse_.data()), .o_exact = static_cast<double*>(o_.data())});
}

void ExactRows::compare(const Tensors& tensors) {
  if (result_.size() == 0) return;
  // Rows that the kernel below does not reach would otherwise show the last comparison's errors.
  bench_->device().fill8(result_.data(), 0xff, result_.size(), bench_->stream());
  CompareParams params;
  params.o = tensors.o();
  params.lse = tensors.lse();
  params.o_exact = static_cast<const double*>(o_.data());
  params.lse_exact = static_cast<const float*>(lse_.data());
  params.result = static_cast<RowError*>(result_.data());
  const Strides strides = runtime::default_strides(problem_, runtime::Operand::o);
  params.o_batch = strides.batch;
  params.o_head = strides.head;
  params.o_row = strides.row;
  params.heads = problem_.heads;
  params.seqlen_q = static_cast<std::int32_t>(problem_.seqlen_q);
  params.rows = static_cast<std::int32_t>(count_);
  params.head_dim_v = problem_.head_dim_v;
  params.row_first = static_cast<std::int32_t>(rows_.first);
  params.row_step = static_cast<std::int32_t>(rows_.step);
  params.fp16 = problem_.dtype == DType::fp16;
  bench_->helpers().compare_rows(params, product(problem_.batch, problem_.heads, 1, 1), bench_->stream());
}

std::vector<RowError> ExactRows::errors() {
  return bench_->fetch(result_, static_cast<std::size_t>(product(problem_.batch, problem_.heads, count_, 1)));
}

double ExactRows::lse_magnitude() {
  bench_->wait();
  std::vector<float> lse(lse_elements(problem_));
  if (lse.empty()) return 0;
  bench_->device().copy_to_host(lse.data(), lse_.data(), lse_.size());
  double largest = 0;
  for (const float value : lse) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  return largest;
}

}  // namespace attune::tuner
