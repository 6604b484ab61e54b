// Kernels, rejected builds, and the protocol by which one process compiles for all.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "cache/rows.h"
#include "cache/store_impl.h"

namespace attune::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t kHour = 3600 * 1000;
constexpr std::size_t kLargestCubin = 512u << 20;  // SQLite takes 1 GB

std::optional<Kernel> lookup(StoreImpl& impl, const std::string& build_key) {
  std::optional<FoundKernel> found;
  bool damaged = false;
  impl.read([&](Database& database) {
    if (found) return;
    found = select_kernel(database, build_key);
    if (!found || found->sound) return;
    damaged = true;
    found.reset();
  });
  if (damaged) {
    // Left where it is, it would keep the next build from being published.
    ++impl.stats().corrupt;
    impl.write_to_disk(
        [&](Database& disk) { Query(disk, "DELETE FROM kernels WHERE build_key = ?").bind(build_key).run(); });
  }
  if (!found) return std::nullopt;
  const std::int64_t now = impl.now();
  if (now - found->kernel.used > kHour) {
    // Written once an hour: reading a kernel should not make everyone a writer.
    impl.try_to_write([&](Database& disk) {
      Query(disk, "UPDATE kernels SET used = ? WHERE build_key = ?").bind(now).bind(build_key).run();
    });
  }
  return std::move(found->kernel);
}

std::optional<Rejection> lookup_rejection(StoreImpl& impl, const std::string& build_key) {
  std::optional<Rejection> found;
  const std::int64_t lifetime = std::chrono::duration_cast<milliseconds>(impl.options().rejection_lifetime).count();
  impl.read([&](Database& database) {
    if (found) return;
    Query query(database, "SELECT reason, environment, time FROM rejections WHERE build_key = ? AND time > ?");
    query.bind(build_key).bind(impl.now() - lifetime);
    if (query.step()) found = Rejection{build_key, query.text(0), query.text(1), query.integer(2)};
  });
  return found;
}

}  // namespace

std::optional<Kernel> Store::find_kernel(const std::string& build_key) {
  check_key("build_key", build_key);
  StoreImpl::Use use(*impl_);
  std::optional<Kernel> kernel = lookup(*impl_, build_key);
  ++(kernel ? impl_->stats().hits : impl_->stats().misses);
  return kernel;
}

bool Store::put_kernel(const std::string& build_key, const std::string& cubin, const std::string& metadata) {
  check_key("build_key", build_key);
  if (cubin.empty() || cubin.size() > kLargestCubin) {
    fail(ErrorCode::invalid_argument, "cubin: {} bytes (allowed: 1 to {})", cubin.size(), kLargestCubin);
  }
  Kernel kernel;
  kernel.build_key = build_key;
  kernel.cubin = cubin;
  kernel.sha256 = sha256_hex(cubin);
  kernel.metadata = metadata;
  StoreImpl::Use use(*impl_);
  kernel.created = kernel.used = impl_->now();
  std::int64_t evicted = 0;
  const bool on_disk = impl_->write([&](Database& database) {
    insert_kernel(database, kernel);
    Query(database, "DELETE FROM rejections WHERE build_key = ?").bind(build_key).run();
    const std::int64_t cap = impl_->options().size_cap_bytes;
    evicted = cap > 0 ? shrink_kernels(database, cap) : 0;
    if (evicted > 0) database.execute("PRAGMA incremental_vacuum");
  });
  impl_->stats().evicted += evicted;
  return on_disk;
}

bool Store::reject(const Rejection& rejection) {
  check_key("build_key", rejection.build_key);
  StoreImpl::Use use(*impl_);
  const std::int64_t now = impl_->now();
  return impl_->write([&](Database& database) {
    Query insert(database,
                 "INSERT OR REPLACE INTO rejections(build_key, reason, environment, time) VALUES (?, ?, ?, ?)");
    insert.bind(rejection.build_key).bind(rejection.reason).bind(rejection.environment).bind(now).run();
  });
}

std::optional<Rejection> Store::find_rejection(const std::string& build_key) {
  check_key("build_key", build_key);
  StoreImpl::Use use(*impl_);
  return lookup_rejection(*impl_, build_key);
}

Claim Store::claim(const std::string& build_key, const std::string& owner, milliseconds lifetime,
                   milliseconds timeout) {
  check_key("build_key", build_key);
  const auto deadline = steady_clock::now() + timeout;
  Claim claim;
  const auto look = [&] {
    claim.kernel = lookup(*impl_, build_key);
    if (!claim.kernel) claim.rejection = lookup_rejection(*impl_, build_key);
    return claim.kernel || claim.rejection;
  };
  bool first = true;
  for (;;) {
    {
      StoreImpl::Use use(*impl_);
      const bool there = look();
      if (std::exchange(first, false)) ++(claim.kernel ? impl_->stats().hits : impl_->stats().misses);
      if (there) return claim;
      std::string token;
      impl_->take_lease(build_key, owner, lifetime, &token);
      if (!token.empty()) {
        // Whoever held it before may have published between the look and the lease.
        if (look()) {
          impl_->release_lease(build_key, token);
        } else {
          claim.lease = impl_->make_lease(build_key, token);
        }
        return claim;
      }
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) break;
    wait_for_kernel(build_key, left);
  }
  claim.timed_out = true;
  return claim;
}

std::vector<KernelRow> Store::list_kernels() {
  StoreImpl::Use use(*impl_);
  std::vector<KernelRow> rows;
  impl_->read([&](Database& database) {
    std::vector<KernelRow> here;
    Query query(database,
                "SELECT build_key, sha256, metadata, size, created, used FROM kernels ORDER BY used DESC, build_key");
    while (query.step()) {
      here.push_back(
          {query.text(0), query.text(1), query.text(2), query.integer(3), query.integer(4), query.integer(5)});
    }
    rows.insert(rows.end(), here.begin(), here.end());
  });
  return rows;
}

std::vector<Rejection> Store::list_rejections() {
  StoreImpl::Use use(*impl_);
  std::vector<Rejection> rows;
  impl_->read([&](Database& database) {
    std::vector<Rejection> here;
    Query query(database, "SELECT build_key, reason, environment, time FROM rejections ORDER BY time DESC, build_key");
    while (query.step()) here.push_back({query.text(0), query.text(1), query.text(2), query.integer(3)});
    rows.insert(rows.end(), here.begin(), here.end());
  });
  return rows;
}

}  // namespace attune::cache
