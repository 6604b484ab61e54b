// One compile per key among all processes.
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "cache/rows.h"
#include "cache/store_impl.h"

namespace attune::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstSleep{2};
constexpr milliseconds kLongestSleep{50};

bool is_held(Database& database, const std::string& key, System& system) {
  Query query(database, "SELECT boot, pid, start FROM leases WHERE key = ? AND expires > ?");
  query.bind(key).bind(system.now_ms());
  return query.step() && system.may_be_alive({query.text(0), query.integer(1), query.integer(2)});
}

}  // namespace

void StoreImpl::take_lease(const std::string& key, const std::string& owner, milliseconds lifetime,
                           std::string* token) {
  const ProcessIdentity self = system_.self();
  const Change take = [&](Database& database) {
    token->clear();
    if (is_held(database, key, system_)) return;
    const std::string fresh = random_id();
    Query insert(database,
                 "INSERT OR REPLACE INTO leases(key, token, owner, boot, pid, start, expires) "
                 "VALUES (?, ?, ?, ?, ?, ?, ?)");
    insert.bind(key).bind(fresh).bind(owner).bind(self.boot).bind(self.pid).bind(self.start);
    insert.bind(now() + lifetime.count()).run();
    *token = fresh;
  };
  if (!write_to_disk(take)) write_to_memory(take);
}

void StoreImpl::release_lease(const std::string& key, const std::string& token) {
  // It may lie on either side if the disk came or went meanwhile.
  const Change release = [&](Database& database) {
    Query(database, "DELETE FROM leases WHERE key = ? AND token = ?").bind(key).bind(token).run();
  };
  write_to_disk(release);
  if (memory_) write_to_memory(release);
}

bool StoreImpl::renew_lease(const std::string& key, const std::string& token, milliseconds lifetime) {
  bool renewed = false;
  const Change renew = [&](Database& database) {
    Query update(database, "UPDATE leases SET expires = ? WHERE key = ? AND token = ?");
    update.bind(now() + lifetime.count()).bind(key).bind(token).run();
    renewed = database.changes() > 0;
  };
  write_to_disk(renew);
  if (!renewed && memory_) write_to_memory(renew);
  return renewed;
}

bool StoreImpl::is_leased(const std::string& key) {
  bool leased = false;
  read([&](Database& database) { leased = leased || is_held(database, key, system_); });
  return leased;
}

Lease StoreImpl::make_lease(const std::string& key, const std::string& token) {
  Lease lease;
  lease.impl_ = shared_from_this();
  lease.key_ = key;
  lease.token_ = token;
  lease.pid_ = getpid();
  return lease;
}

Lease::Lease(Lease&& other) noexcept
    : impl_(std::move(other.impl_)), key_(std::move(other.key_)), token_(std::move(other.token_)), pid_(other.pid_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    impl_ = std::move(other.impl_);
    key_ = std::move(other.key_);
    token_ = std::move(other.token_);
    pid_ = other.pid_;
  }
  return *this;
}

Lease::~Lease() { release(); }

void Lease::release() noexcept {
  const std::shared_ptr<StoreImpl> impl = std::exchange(impl_, nullptr);
  if (!impl || pid_ != getpid()) return;
  StoreImpl::Use use(*impl);
  impl->release_lease(key_, token_);
}

bool Lease::renew(milliseconds lifetime) {
  if (!impl_ || pid_ != getpid()) return false;
  StoreImpl::Use use(*impl_);
  return impl_->renew_lease(key_, token_, lifetime);
}

std::optional<Lease> Store::try_lease(const std::string& key, const std::string& owner, milliseconds lifetime) {
  check_key("key", key);
  StoreImpl::Use use(*impl_);
  std::string token;
  impl_->take_lease(key, owner, lifetime, &token);
  if (token.empty()) return std::nullopt;
  return impl_->make_lease(key, token);
}

bool Store::wait_for_kernel(const std::string& build_key, milliseconds timeout) {
  check_key("build_key", build_key);
  const auto deadline = steady_clock::now() + timeout;
  for (milliseconds sleep = kFirstSleep;; sleep = std::min(2 * sleep, kLongestSleep)) {
    {
      StoreImpl::Use use(*impl_);
      bool there = false;
      impl_->read([&](Database& database) {
        Query query(
            database,
            "SELECT 1 FROM kernels WHERE build_key = ?1 UNION ALL SELECT 1 FROM rejections WHERE build_key = ?1");
        there = query.bind(build_key).step() || there;
      });
      if (there) return true;
      if (!impl_->is_leased(build_key)) return false;
    }
    if (steady_clock::now() + sleep > deadline) return false;
    std::this_thread::sleep_for(sleep);
  }
}

}  // namespace attune::cache
