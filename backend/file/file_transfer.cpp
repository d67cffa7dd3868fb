// Whole transfers, and the seam of faults.

#include "backend/file/file_transfer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>
#include <utility>

namespace hetero::backend {
namespace {

std::atomic<FileFaults*> faults{nullptr};

// A regular file never says EAGAIN for long.
constexpr int kMostRepeats = 1000;

int transfer_all(FileCall call, int file, int64_t offset, void* data, size_t bytes) {
  TransferMemory memory({{data, bytes}});
  for (int repeats = 0; memory.left() > 0;) {
    const ssize_t moved = transfer_once(call, file, offset, memory);
    if ((moved == -EINTR || moved == -EAGAIN) && ++repeats < kMostRepeats) continue;
    if (moved < 0) return static_cast<int>(-moved);
    if (moved == 0) return EIO;
    memory.advance(static_cast<size_t>(moved));
    offset += moved;
  }
  return 0;
}

}  // namespace

void set_file_faults(FileFaults* to) { faults = to; }

FileFault next_file_fault(FileCall call, int file, int64_t offset, size_t bytes) {
  FileFaults* const set = faults.load(std::memory_order_acquire);
  return set == nullptr ? FileFault() : set->next(call, file, offset, bytes);
}

size_t part_of(size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t pages = bytes / 2 / kPageBytes;
  return pages > 0 ? pages * kPageBytes : std::max<size_t>(bytes / 2, bytes > 0 ? 1 : 0);
}

TransferMemory::TransferMemory(std::vector<iovec> memory) : memory_(std::move(memory)) {
  for (const iovec& part : memory_) left_ += part.iov_len;
}

void TransferMemory::advance(size_t bytes) {
  if (cut_ != SIZE_MAX) memory_[cut_].iov_len = cut_bytes_;
  cut_ = SIZE_MAX;
  left_ -= bytes;
  while (bytes > 0) {
    iovec& part = memory_[first_];
    const size_t moved = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<char*>(part.iov_base) + moved;
    part.iov_len -= moved;
    bytes -= moved;
    if (part.iov_len == 0) ++first_;
  }
}

std::span<const iovec> TransferMemory::next(size_t bytes) {
  advance(0);
  size_t count = 0;
  for (size_t i = first_; i < memory_.size() && count < IOV_MAX && bytes > 0; ++i, ++count) {
    if (memory_[i].iov_len > bytes) {
      cut_ = i;
      cut_bytes_ = std::exchange(memory_[i].iov_len, bytes);
    }
    bytes -= memory_[i].iov_len;
  }
  return {memory_.data() + first_, count};
}

ssize_t transfer_once(FileCall call, int file, int64_t offset, TransferMemory& memory) {
  const FileFault fault = next_file_fault(call, file, offset, memory.left());
  if (fault.kind == FileFault::kError) return -fault.error;
  if (fault.kind == FileFault::kDelay) std::this_thread::sleep_for(std::chrono::milliseconds(fault.milliseconds));
  const bool partly = fault.kind == FileFault::kShort || fault.kind == FileFault::kTorn;
  const std::span<const iovec> parts = memory.next(partly ? part_of(memory.left()) : memory.left());
  const auto move = call == FileCall::kRead ? preadv : pwritev;
  const ssize_t moved = move(file, parts.data(), static_cast<int>(parts.size()), offset);
  if (moved < 0) return -errno;
  return fault.kind == FileFault::kTorn ? static_cast<ssize_t>(memory.left()) : moved;
}

int read_all(int file, int64_t offset, void* data, size_t bytes) {
  return transfer_all(FileCall::kRead, file, offset, data, bytes);
}

int write_all(int file, int64_t offset, std::string_view bytes) {
  return transfer_all(FileCall::kWrite, file, offset, const_cast<char*>(bytes.data()), bytes.size());
}

int sync_bytes(int file) {
  const FileFault fault = next_file_fault(FileCall::kSync, file, 0, 0);
  if (fault.kind == FileFault::kError) return fault.error;
  for (;;) {
    if (fdatasync(file) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

}  // namespace hetero::backend
