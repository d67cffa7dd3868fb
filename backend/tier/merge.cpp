// Merging: sort by offset, then one walk that joins what touches.

#include "backend/tier/merge.h"

#include <algorithm>

namespace hetero::backend {

std::vector<MergedOperation> merge_pieces(std::vector<FilePiece>& pieces, const MergeLimits& limits) {
  const auto is_before = [](const FilePiece& a, const FilePiece& b) { return a.offset < b.offset; };
  if (!std::is_sorted(pieces.begin(), pieces.end(), is_before)) {
    std::stable_sort(pieces.begin(), pieces.end(), is_before);
  }
  std::vector<MergedOperation> operations;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece& piece = pieces[i];
    if (piece.bytes == 0) continue;
    if (!operations.empty()) {
      MergedOperation& last = operations.back();
      const bool touches = last.offset + last.bytes == piece.offset && last.bytes + piece.bytes <= limits.bytes;
      iovec& part = last.memory.back();
      const bool touches_memory = static_cast<std::byte*>(part.iov_base) + part.iov_len == piece.memory;
      if (touches && (touches_memory || static_cast<int64_t>(last.memory.size()) < limits.parts)) {
        if (touches_memory) {
          part.iov_len += static_cast<size_t>(piece.bytes);
        } else {
          last.memory.push_back({piece.memory, static_cast<size_t>(piece.bytes)});
        }
        last.bytes += piece.bytes;
        last.pieces = i + 1 - last.first_piece;
        continue;
      }
    }
    for (int64_t done = 0; done < piece.bytes;) {
      const int64_t bytes = std::min(limits.bytes, piece.bytes - done);
      MergedOperation operation{
          .offset = piece.offset + done, .bytes = bytes, .memory = {}, .first_piece = i, .pieces = 1};
      operation.memory.push_back({piece.memory + done, static_cast<size_t>(bytes)});
      operations.push_back(std::move(operation));
      done += bytes;
    }
  }
  return operations;
}

}  // namespace hetero::backend
