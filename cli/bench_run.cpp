#include "cli/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"

namespace attune::cli {
namespace {

constexpr std::size_t kPattern = (1 << 20) + 8 * 127;  // elements; no multiple of a row, so that rows differ
constexpr std::size_t kScratch = 256u << 20;
constexpr std::uint64_t kMostSets = 32;
constexpr double kShareOfMemory = 0.4;
// Below this the host needs as long to queue a launch as the device to run it, so other work goes in front.
constexpr double kShortLaunch = 400e-6;
constexpr auto kRest = std::chrono::milliseconds(30);
constexpr double kChunkSeconds = 0.05;  // queued at once in a sustained turn: a stop need not wait long

std::uint16_t rounded(float value, DType dtype) {
  if (dtype == DType::bf16) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return static_cast<std::uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  // Truncated; what is below the normal numbers becomes zero. Inputs need no more.
  int exponent = 0;
  const float mantissa = std::frexp(std::abs(value), &exponent);
  if (mantissa == 0 || exponent < -13) return 0;
  const int fraction = static_cast<int>(mantissa * 2048) - 1024;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | fraction);
}

std::vector<std::uint16_t> normal_numbers(DType dtype) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(kPattern);
  for (std::uint16_t& number : numbers) number = rounded(std::clamp(normal(generator), -6.0f, 6.0f), dtype);
  return numbers;
}

struct Sizes {
  std::size_t q, k, v, o;  // bytes
  std::uint64_t all() const { return q + k + v + o; }
};

Sizes sizes_of(const Problem& p) {
  const auto bytes = [&](std::int64_t rows, int heads, int dim) {
    return 2 * static_cast<std::size_t>(p.batch) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
           static_cast<std::size_t>(dim);
  };
  return {bytes(p.seqlen_q, p.heads, p.head_dim), bytes(p.seqlen_k, p.heads_kv, p.head_dim),
          bytes(p.seqlen_k, p.heads_kv, p.head_dim_v), bytes(p.seqlen_q, p.heads, p.head_dim_v)};
}

double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void summarise(BenchTiming& timing) {
  std::vector<double> sorted = timing.samples;
  std::ranges::sort(sorted);
  timing.median = quantile(sorted, 0.5);
  timing.quartile_low = quantile(sorted, 0.25);
  timing.quartile_high = quantile(sorted, 0.75);
}

}  // namespace

struct Bench::Set {
  Set(runtime::Device& device, const Problem& problem)
      : q(device, sizes_of(problem).q),
        k(device, sizes_of(problem).k),
        v(device, sizes_of(problem).v),
        o(device, sizes_of(problem).o),
        lse(device, 4 * static_cast<std::size_t>(problem.batch * problem.heads * problem.seqlen_q)) {}

  ForwardArgs args(runtime::Stream stream) const {
    ForwardArgs a;
    a.q = q.data();
    a.k = k.data();
    a.v = v.data();
    a.o = o.data();
    a.lse = static_cast<float*>(lse.data());
    a.stream = stream;
    return a;
  }

  runtime::DeviceBuffer q, k, v, o, lse;
};

Bench::Bench(std::shared_ptr<runtime::Device> device, const Problem& problem, const runtime::Nvml* nvml)
    : device_(std::move(device)), problem_(problem), nvml_(nvml), stream_(device_->create_stream()) {
  const std::uint64_t bytes = std::max<std::uint64_t>(sizes_of(problem).all(), 1);
  const auto l2 = static_cast<std::uint64_t>(std::max<std::int64_t>(device_->properties().l2_bytes, 0));
  const auto room = static_cast<std::uint64_t>(kShareOfMemory * static_cast<double>(device_->free_memory()));
  const std::uint64_t sets =
      std::clamp<std::uint64_t>(1 + 3 * l2 / bytes, 1, std::clamp<std::uint64_t>(room / bytes, 1, kMostSets));
  const std::vector<std::uint16_t> numbers = normal_numbers(problem.dtype);
  const runtime::DeviceBuffer pattern(*device_, 2 * numbers.size());
  device_->copy_to_device(pattern.data(), numbers.data(), 2 * numbers.size());
  std::size_t phase = 0;
  const auto fill = [&](const runtime::DeviceBuffer& buffer) {
    // Each tensor begins elsewhere in the pattern.
    phase = (phase + 8 * 4099) % numbers.size();
    std::size_t from = 2 * phase;
    for (std::size_t at = 0; at < buffer.size();) {
      const std::size_t part = std::min(buffer.size() - at, pattern.size() - from);
      device_->copy_on_device(static_cast<char*>(buffer.data()) + at, static_cast<char*>(pattern.data()) + from, part,
                              stream_);
      at += part;
      from = 0;
    }
  };
  for (std::uint64_t i = 0; i < sets; ++i) {
    sets_.push_back(std::make_unique<Set>(*device_, problem));
    fill(sets_.back()->q);
    fill(sets_.back()->k);
    fill(sets_.back()->v);
  }
  scratch_ = runtime::DeviceBuffer(*device_, kScratch);
  device_->synchronize(stream_);
}

Bench::~Bench() { device_->destroy_stream(stream_); }

void Bench::add(const std::string& label, Plan plan) {
  const Set& set = *sets_.front();
  device_->fill8(set.o.data(), 0xff, set.o.size(), stream_);  // NaN in both types
  plan.launch(set.args(stream_));
  // The ends of O, and places between them.
  constexpr std::size_t kPlaces = 9, kElements = 64;
  device_->synchronize(stream_);
  const std::size_t elements = set.o.size() / 2;
  for (std::size_t place = 0; place < kPlaces; ++place) {
    std::uint16_t words[kElements];
    const std::size_t count = std::min(kElements, elements);
    const std::size_t at = (elements - count) / (kPlaces - 1) * place;
    device_->copy_to_host(words, static_cast<const std::uint16_t*>(set.o.data()) + at, 2 * count);
    if (std::find(words, words + count, 0xffff) != words + count)
      fail(ErrorCode::wrong_result, "{}: the launch left part of O unwritten", label);
  }
  const double rough = timed(plan, 2);
  contenders_.push_back({label, std::move(plan), rough});
}

void Bench::launch(const Plan& plan) {
  plan.launch(sets_[next_set_]->args(stream_));
  next_set_ = (next_set_ + 1) % sets_.size();
}

// Seconds a launch, by two events around all of them.
double Bench::timed(const Plan& plan, int launches) {
  while (events_.size() < 2) events_.push_back(device_->create_event());
  events_[0]->record(stream_);
  for (int i = 0; i < launches; ++i) launch(plan);
  events_[1]->record(stream_);
  events_[1]->synchronize();
  return events_[1]->milliseconds_since(*events_[0]) * 1e-3 / launches;
}

void Bench::burst_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing) {
  const auto launches = static_cast<std::size_t>(options.launches);
  while (events_.size() < 2 * launches) events_.push_back(device_->create_event());
  if (contender.rough < kShortLaunch) {
    for (int i = 0; i < 4; ++i) device_->fill8(scratch_.data(), 0, scratch_.size(), stream_);
  }
  launch(contender.plan);
  for (std::size_t i = 0; i < launches; ++i) {
    events_[2 * i]->record(stream_);
    launch(contender.plan);
    events_[2 * i + 1]->record(stream_);
  }
  device_->synchronize(stream_);
  note_conditions(timing);
  for (std::size_t i = 0; i < launches; ++i)
    timing.samples.push_back(events_[2 * i + 1]->milliseconds_since(*events_[2 * i]) * 1e-3);
  std::this_thread::sleep_for(kRest);
}

void Bench::sustained_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing) {
  const double each = std::max(contender.rough, 5e-6);
  const int chunk = std::max(1, static_cast<int>(kChunkSeconds / each));
  const int chunks = std::max(1, static_cast<int>(std::lround(options.seconds / (each * chunk))));
  for (int i = 0; i < (chunks + 1) / 2; ++i) timed(contender.plan, chunk);
  double total = 0;
  for (int i = 0; i < chunks; ++i) total += timed(contender.plan, chunk);
  note_conditions(timing);
  timing.samples.push_back(total / chunks);
}

void Bench::note_conditions(BenchTiming& timing) {
  if (nvml_ == nullptr) return;
  const runtime::NvmlReading reading = nvml_->read();
  timing.sm_mhz = reading.sm_mhz;
  timing.watts = reading.watts;
  timing.throttle |= reading.throttle.value_or(0);
}

double Bench::host_seconds(const Contender& contender) {
  using Clock = std::chrono::steady_clock;
  // Few enough that the driver's queue never makes the host wait.
  const int launches = std::clamp(static_cast<int>(0.05 / std::max(contender.rough, 1e-6)), 16, 256);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < launches; ++i) launch(contender.plan);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  device_->synchronize(stream_);
  return seconds / launches;
}

std::vector<BenchResult> Bench::run(const BenchOptions& options, const std::stop_token& stop,
                                    const std::function<void(const std::string&)>& progress) {
  std::vector<BenchResult> results;
  for (const Contender& c : contenders_) results.push_back({c.label, c.plan.info(), {}, {}, host_seconds(c)});
  const auto race = [&](const char* regime, std::optional<BenchTiming> BenchResult::* member, auto turn) {
    for (BenchResult& result : results) (result.*member).emplace();
    for (int i = 0; i < options.turns; ++i) {
      for (std::size_t c = 0; c < contenders_.size(); ++c) {
        if (stop.stop_requested()) fail(ErrorCode::interrupted, "interrupted");
        progress(fmt::format("{}  turn {}/{}  {}/{}", regime, i + 1, options.turns, c + 1, contenders_.size()));
        turn(contenders_[c], *(results[c].*member));
      }
    }
    for (BenchResult& result : results) summarise(*(result.*member));
  };
  if (options.burst) {
    race("burst", &BenchResult::burst,
         [&](const Contender& c, BenchTiming& timing) { burst_turn(c, options, timing); });
  }
  if (options.sustained) {
    race("sustained", &BenchResult::sustained,
         [&](const Contender& c, BenchTiming& timing) { sustained_turn(c, options, timing); });
  }
  return results;
}

}  // namespace attune::cli
