#include "backend/memory/host_pool.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "backend/base/blocked_signals.h"
#include "backend/memory/host_ranges.h"

namespace hetero::backend {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
constexpr int kPopulate = 23;  // newer than the C library
#endif

}  // namespace

template <typename Visit>
void HostPool::for_each_part(const Visit& visit) const {
  for (size_t begin = 0; begin < bytes_; begin += part_) visit(data_ + begin, std::min(part_, bytes_ - begin));
}

HostPool::HostPool(size_t bytes, size_t block_bytes, bool is_for_disk, size_t ahead)
    : process_(getpid()),
      bytes_(bytes),
      part_(std::max<size_t>(1, kLockedTogether / block_bytes) * block_bytes),
      ahead_(ahead),
      wanted_(std::min(bytes, ahead)) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return;
  data_ = static_cast<std::byte*>(data);
  if (is_for_disk) (void)madvise(data, bytes, MADV_HUGEPAGE);
  // A fork would copy pinned pages. The child has no use for them.
  (void)madvise(data, bytes, MADV_DONTFORK);
  for_each_part([](std::byte* part, size_t size) { host_ranges().add(part, size); });
  if (ahead == 0) return;
  try {
    const BlockedSignals blocked;
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    // Memory is touched when it is used.
  }
}

HostPool::~HostPool() {
  if (getpid() != process_) {
    // The thread is the parent's, and something else may have the addresses.
    if (thread_.joinable()) thread_.detach();
    (void)changed_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_->notify_all();
  if (thread_.joinable()) thread_.join();
  if (data_ == nullptr) return;
  for_each_part([](std::byte* part, size_t size) { host_ranges().remove(part, size); });
  munmap(data_, bytes_);
}

void HostPool::use_up_to(size_t end) {
  const std::lock_guard lock(mutex_);
  const size_t wanted = end < bytes_ ? end + std::min(bytes_ - end, ahead_) : bytes_;
  if (wanted <= wanted_ || ahead_ == 0) return;
  wanted_ = wanted;
  changed_->notify_all();
}

size_t HostPool::touched() const {
  const std::lock_guard lock(mutex_);
  return touched_;
}

void HostPool::work() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_->wait(lock, [&] { return is_closing_ || touched_ < wanted_; });
    if (is_closing_) return;
    const size_t begin = touched_;
    const size_t size = std::min(kPiece, bytes_ - begin);
    lock.unlock();
    // Like a write that changes nothing, also where another thread writes meanwhile.
    const bool done = madvise(data_ + begin, size, kPopulate) == 0;
    lock.lock();
    if (!done) return;
    touched_ = begin + size;
  }
}

}  // namespace hetero::backend
