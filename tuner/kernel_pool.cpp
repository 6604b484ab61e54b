#include "tuner/kernel_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

#include "base/error.h"

namespace attune::tuner {
namespace {

// The worker's launches come first: a late one would be measured.
void yield_to_others() {
  constexpr int kNice = 5;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

KernelPool::KernelPool(runtime::Builder& builder, int threads) : builder_(builder) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

KernelPool::~KernelPool() {
  for (std::jthread& thread : threads_) thread.request_stop();
  changed_.notify_all();
}

KernelPool::Kernel* KernelPool::add(const codegen::KernelSpec& spec, bool urgent) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Kernel>& kernel = kernels_[codegen::to_string(spec)];
  if (!kernel) {
    kernel = std::make_unique<Kernel>();
    kernel->spec = spec;
    queue_.insert(urgent ? queue_.begin() : queue_.end(), kernel.get());
    ++totals_.kernels;
    changed_.notify_all();
  }
  ++kernel->wanted;
  return kernel.get();
}

void KernelPool::give_up(Kernel* kernel) {
  const std::lock_guard lock(mutex_);
  if (--kernel->wanted > 0 || kernel->state != State::waiting) return;
  kernel->state = State::dropped;
  std::erase(queue_, kernel);
  changed_.notify_all();
}

std::set<std::string> KernelPool::ready() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> texts;
  for (const auto& [text, kernel] : kernels_)
    if (kernel->state == State::ready) texts.insert(codegen::kernel_part(kernel->spec.config));
  return texts;
}

void KernelPool::drop_waiting() {
  const std::lock_guard lock(mutex_);
  for (Kernel* kernel : queue_) kernel->state = State::dropped;
  queue_.clear();
  changed_.notify_all();
}

KernelPool::Totals KernelPool::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

bool KernelPool::wait_until(const std::function<bool()>& look, const StopCondition& stop, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (failure_) std::rethrow_exception(failure_);
    if (look()) return true;
    if (stop.interrupted() || std::chrono::steady_clock::now() >= deadline) return false;
    // A stop wakes nobody here, so the wait is short.
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

void KernelPool::update(const std::function<void()>& change) {
  const std::lock_guard lock(mutex_);
  change();
  changed_.notify_all();
}

void KernelPool::work(const std::stop_token& stop) {
  yield_to_others();
  for (;;) {
    Kernel* kernel = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !queue_.empty(); }) || stop.stop_requested()) return;
      kernel = queue_.front();
      queue_.pop_front();
      kernel->state = State::building;
    }
    build(*kernel);
  }
}

void KernelPool::build(Kernel& kernel) {
  runtime::Build build;
  std::string reason;
  try {
    build = builder_.build(kernel.spec);
    reason = build.info.rejected;
  } catch (const Error& error) {
    // What concerns this kernel alone rejects it; without a compiler, or memory, there is nothing to go on with.
    if (error.code() != ErrorCode::compile_failed && error.code() != ErrorCode::invalid_argument) {
      update([&] {
        failure_ = std::current_exception();
        kernel.state = State::rejected;
        kernel.reason = error.what();
      });
      return;
    }
    reason = first_line(error.what());
  }
  update([&] {
    kernel.build_key = build.key;
    kernel.registers = build.info.registers;
    kernel.from_cache = build.from_cache;
    if (reason.empty()) {
      kernel.cubin = std::make_shared<const std::string>(std::move(build.cubin));
      kernel.state = State::ready;
    } else {
      kernel.reason = reason;
      kernel.state = State::rejected;
      ++totals_.rejected;
    }
    ++totals_.done;
    totals_.compiled += build.from_cache ? 0 : 1;
    totals_.last_build = steady_seconds();
  });
}

}  // namespace attune::tuner
