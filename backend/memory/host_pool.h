// HostPool: the host memory of a block store. A thread touches it ahead of its use.
//
// The system gives memory page by page, when it is first touched, and clears it then: 0.2 s for
// 58 MiB on a virtual machine. So a thread of the lowest priority touches pages before they are
// used, at most kAhead bytes beyond the highest byte that the store has used. A store that stays
// small stays small in memory.
//
// Where the system cannot populate pages (before Linux 5.14), nothing is touched ahead.
//
// A GPU may page-lock the pool, part by part, as it copies from it again (host_ranges.h). It then
// copies without a detour. io_uring may pin it likewise. A child of a fork does not have it; there
// the destructor does nothing.
//
// Thread safety: any thread. The destructor stops the thread, after at most one piece.

#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

namespace hetero::backend {

class HostPool {
 public:
  static constexpr size_t kAhead = size_t{256} << 20;
  static constexpr size_t kPiece = size_t{4} << 20;
  static constexpr size_t kLockedTogether = size_t{64} << 20;

  // `block_bytes`: parts that are locked together have whole blocks. `is_for_disk`: large pages,
  // into which a disk reads at twice the rate. `ahead`: at most so many bytes are touched beyond
  // what is used; 0: none.
  HostPool(size_t bytes, size_t block_bytes, bool is_for_disk, size_t ahead = kAhead);
  ~HostPool();
  HostPool(const HostPool&) = delete;

  // Null if the system has no such range of addresses.
  std::byte* data() const { return data_; }
  // The first `end` bytes are about to be used.
  void use_up_to(size_t end);
  // Bytes at the beginning that were touched ahead.
  size_t touched() const;

 private:
  void work();
  template <typename Visit>
  void for_each_part(const Visit& visit) const;

  const pid_t process_;
  const size_t bytes_;
  const size_t part_;  // bytes that are locked together
  const size_t ahead_;
  std::byte* data_ = nullptr;

  mutable std::mutex mutex_;  // guards what follows
  // On its own, because a child cannot destroy what the parent's thread waits for.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  size_t wanted_ = 0;
  size_t touched_ = 0;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace hetero::backend
