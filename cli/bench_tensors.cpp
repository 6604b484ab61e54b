#include "cli/bench_tensors.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "runtime/element.h"
#include "tuner/measure/gate_cases.h"
#include "tuner/measure/workbench.h"

namespace attune::cli {
namespace {

using runtime::Operand;

constexpr std::size_t kPattern = (1 << 20) + 8 * 127;  // elements; no multiple of a row, so that rows differ
constexpr std::uint64_t kMostSets = 32;
constexpr double kShareOfMemory = 0.4;

std::vector<std::uint16_t> normal_numbers(DType dtype) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(kPattern);
  for (std::uint16_t& number : numbers) number = runtime::to_element(dtype, std::clamp(normal(generator), -6.0f, 6.0f));
  return numbers;
}

std::vector<Operand> operands_of(Op op) {
  std::vector<Operand> all;
  for (int i = 0; i < (op == Op::forward ? runtime::kForwardOperands : runtime::kOperands); ++i)
    all.push_back(static_cast<Operand>(i));
  return all;
}

std::size_t bytes_of(const Problem& problem, Operand operand) {
  return 2 * static_cast<std::size_t>(runtime::shape_of(problem, operand).elements());
}

std::size_t lse_bytes(const Problem& p) {
  return sizeof(float) * static_cast<std::size_t>(p.batch) * static_cast<std::size_t>(p.heads) *
         static_cast<std::size_t>(p.seqlen_q);
}

std::uint64_t set_bytes(const Problem& problem) {
  std::uint64_t bytes = lse_bytes(problem);
  for (const Operand operand : operands_of(problem.op)) bytes += bytes_of(problem, operand);
  return bytes;
}

std::uint64_t count_of_sets(runtime::Device& device, const Problem& problem) {
  const std::uint64_t bytes = std::max<std::uint64_t>(set_bytes(problem), 1);
  const auto l2 = static_cast<std::uint64_t>(std::max<std::int64_t>(device.properties().l2_bytes, 0));
  const auto room = static_cast<std::uint64_t>(kShareOfMemory * static_cast<double>(device.free_memory()));
  return std::clamp<std::uint64_t>(1 + 3 * l2 / bytes, 1, std::clamp<std::uint64_t>(room / bytes, 1, kMostSets));
}

}  // namespace

// -- what both operations share -----------------------------------------------------------------------------------

BenchTensors::BenchTensors(runtime::Device& device, const Problem& problem, runtime::Stream stream)
    : device_(device), problem_(problem), stream_(stream) {
  for (std::uint64_t count = count_of_sets(device, problem); count > 0; --count) sets_.push_back(allocated());
  fill_inputs();
}

BenchTensors::Set BenchTensors::allocated() const {
  Set set;
  for (const Operand operand : operands_of(problem_.op))
    set.operands[static_cast<std::size_t>(operand)] = runtime::DeviceBuffer(device_, bytes_of(problem_, operand));
  set.lse = runtime::DeviceBuffer(device_, lse_bytes(problem_));
  return set;
}

void BenchTensors::fill_inputs() {
  const std::vector<std::uint16_t> numbers = normal_numbers(problem_.dtype);
  const runtime::DeviceBuffer pattern(device_, 2 * numbers.size());
  device_.copy_to_device(pattern.data(), numbers.data(), pattern.size());
  std::size_t phase = 0;
  const auto fill = [&](void* memory, std::size_t bytes) {
    // Each tensor begins elsewhere in the pattern.
    phase = (phase + 8 * 4099) % numbers.size();
    std::size_t from = 2 * phase;
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t part = std::min(bytes - at, pattern.size() - from);
      device_.copy_on_device(static_cast<char*>(memory) + at, static_cast<char*>(pattern.data()) + from, part, stream_);
      at += part;
      from = 0;
    }
  };
  for (const Set& set : sets_) {
    for (const Operand operand : operands_of(problem_.op)) {
      if (operand != Operand::o && !runtime::is_output(problem_.op, operand))
        fill(set.data(operand), bytes_of(problem_, operand));
    }
  }
  device_.synchronize(stream_);  // before the pattern goes
}

ForwardArgs BenchTensors::forward_args(const Set& set) const {
  ForwardArgs args;
  args.q = set.data(Operand::q);
  args.k = set.data(Operand::k);
  args.v = set.data(Operand::v);
  args.o = set.data(Operand::o);
  args.lse = static_cast<float*>(set.lse.data());
  // Q and K are normal numbers: the scale is the scores' deviation, but for the head dim.
  if (problem_.scores == ScoreKind::peaked)
    args.scale = static_cast<float>(tuner::kPeakedDeviation / std::sqrt(static_cast<double>(problem_.head_dim)));
  args.stream = stream_;
  return args;
}

void BenchTensors::launch(const Plan& plan) {
  launch(plan, sets_[next_]);
  next_ = (next_ + 1) % sets_.size();
}

std::vector<std::string> BenchTensors::unwritten_by(const Plan& plan) {
  const Set& set = sets_.front();
  std::vector<Operand> outputs = operands_of(problem_.op);
  std::erase_if(outputs, [&](Operand operand) { return !runtime::is_output(problem_.op, operand); });
  const auto buffer_of = [&](Operand operand) -> const runtime::DeviceBuffer& {
    return set.operands[static_cast<std::size_t>(operand)];
  };
  for (const Operand output : outputs)
    device_.fill8(buffer_of(output).data(), 0xff, buffer_of(output).size(), stream_);  // NaN in both types
  launch(plan, set);
  device_.synchronize(stream_);
  std::vector<std::string> unwritten;
  for (const Operand output : outputs)
    if (!is_written(buffer_of(output))) unwritten.emplace_back(runtime::symbol_of(output));
  return unwritten;
}

bool BenchTensors::is_written(const runtime::DeviceBuffer& output) const {
  constexpr std::size_t kPlaces = 9, kElements = 64;
  const std::size_t elements = output.size() / 2, count = std::min(kElements, elements);
  for (std::size_t place = 0; place < kPlaces && count > 0; ++place) {
    std::array<std::uint16_t, kElements> words{};
    const std::size_t at = (elements - count) / (kPlaces - 1) * place;
    device_.copy_to_host(words.data(), static_cast<const std::uint16_t*>(output.data()) + at, 2 * count);
    if (std::ranges::find(words, 0xffff) != words.end()) return false;
  }
  return true;
}

namespace {

// -- forward ------------------------------------------------------------------------------------------------------

class ForwardTensors final : public BenchTensors {
 public:
  ForwardTensors(runtime::Device& device, const Problem& problem, runtime::Stream stream)
      : BenchTensors(device, problem, stream) {}

  void make_room_for(const Plan&) override {}  // the runtime has workspaces of its own

 private:
  void launch(const Plan& plan, const Set& set) const override { plan.launch(forward_args(set)); }
};

// -- backward -----------------------------------------------------------------------------------------------------

class BackwardTensors final : public BenchTensors {
 public:
  BackwardTensors(runtime::Device& device, const Problem& problem, runtime::Stream stream, const Planner& planner)
      : BenchTensors(device, problem, stream) {
    attend(planner);
  }

  // One workspace does for all plans and sets: launches on a stream take turns.
  void make_room_for(const Plan& plan) override {
    if (plan.workspace_bytes() <= workspace_.size()) return;
    device().synchronize(stream());
    workspace_.reset();
    workspace_ = runtime::DeviceBuffer(device(), plan.workspace_bytes());
  }

 private:
  void launch(const Plan& plan, const Set& set) const override { plan.launch(args(set)); }

  // O and LSE of every set.
  void attend(const Planner& planner) {
    try {
      const Plan forward = planner(tuner::forward_of(problem()));
      for (const Set& set : sets()) forward.launch(forward_args(set));
      device().synchronize(stream());  // before the plan goes
    } catch (const Error& error) {
      fail(error.code(), "forward pass, which gives the backward pass O and LSE: {}", error.what());
    }
  }

  BackwardArgs args(const Set& set) const {
    BackwardArgs a;
    a.q = set.data(Operand::q);
    a.k = set.data(Operand::k);
    a.v = set.data(Operand::v);
    a.o = set.data(Operand::o);
    a.d_o = set.data(Operand::d_o);
    a.lse = static_cast<const float*>(set.lse.data());
    a.d_q = set.data(Operand::d_q);
    a.d_k = set.data(Operand::d_k);
    a.d_v = set.data(Operand::d_v);
    a.workspace = workspace_.data();
    a.workspace_bytes = workspace_.size();
    a.stream = stream();
    return a;
  }

  runtime::DeviceBuffer workspace_;
};

}  // namespace

std::unique_ptr<BenchTensors> make_bench_tensors(runtime::Device& device, const Problem& problem,
                                                 runtime::Stream stream, const Planner& planner) {
  if (problem.op == Op::backward) return std::make_unique<BackwardTensors>(device, problem, stream, planner);
  return std::make_unique<ForwardTensors>(device, problem, stream);
}

}  // namespace attune::cli
