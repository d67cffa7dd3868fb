// PieceCopies: queues that copy many small, scattered pieces by one kernel.
//
// A copy engine takes some time for each piece of a batch. A kernel is given a table of pieces, and
// its threads read one memory and write the other: it scatters pieces of the host in the device,
// and gathers those of the device for the host. An interface of its own, as most queues have none.
//
//   Result<bool> by_kernel = copy_scattered(queue, ranges);
//
// Thread safety: any thread.

#pragma once

#include <span>

#include "backend/device/device.h"

namespace hetero::backend {

class PieceCopies {
 public:
  virtual ~PieceCopies() = default;
  // Does what Queue::copy_batch() does, between the host's memory and the device's, by a kernel.
  // False if the kernel cannot do it for these ranges; then nothing was submitted.
  virtual Result<bool> copy_pieces(std::span<const CopyRange> ranges) = 0;
};

// Many pieces, small on average.
inline constexpr size_t kLeastPieces = 16;
inline constexpr size_t kMostPieceBytes = size_t{64} << 10;
bool is_scattered(std::span<const CopyRange> ranges);

// queue.copy_batch(), or copy_pieces() where the queue has it and the ranges are scattered. Returns
// whether it was the latter.
Result<bool> copy_scattered(Queue& queue, std::span<const CopyRange> ranges);

}  // namespace hetero::backend
