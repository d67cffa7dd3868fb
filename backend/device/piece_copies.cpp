#include "backend/device/piece_copies.h"

namespace hetero::backend {

bool is_scattered(std::span<const CopyRange> ranges) {
  size_t bytes = 0;
  for (const CopyRange& range : ranges) bytes += range.bytes;
  return ranges.size() >= kLeastPieces && bytes / ranges.size() <= kMostPieceBytes;
}

Result<bool> copy_scattered(Queue& queue, std::span<const CopyRange> ranges) {
  auto* const pieces = dynamic_cast<PieceCopies*>(&queue);
  if (pieces != nullptr && is_scattered(ranges)) {
    Result<bool> copied = pieces->copy_pieces(ranges);
    if (!copied.ok() || copied.value()) return copied;
  }
  if (Status status = queue.copy_batch(ranges); !status.ok()) return status;
  return false;
}

}  // namespace hetero::backend
