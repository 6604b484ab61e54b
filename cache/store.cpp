#include "cache/store.h"

#include "cache/store_impl.h"

namespace attune::cache {

Store Store::memory_only() {
  Options options;
  options.directory.clear();
  return open(std::move(options));
}

Store Store::open(Options options) {
  Store store(std::make_shared<StoreImpl>(std::move(options)));
  {
    StoreImpl::Use use(*store.impl_);
    store.impl_->read([](Database&) {});  // opens the disk, so that its warnings come now
  }
  return store;
}

Stats Store::stats() {
  StoreImpl::Use use(*impl_);
  Stats stats = impl_->stats();
  stats.on_disk = impl_->on_disk();
  return stats;
}

std::string Store::directory() {
  StoreImpl::Use use(*impl_);
  return impl_->directory();
}

std::string Store::file() {
  StoreImpl::Use use(*impl_);
  return impl_->on_disk() ? impl_->file() : std::string();
}

}  // namespace attune::cache
