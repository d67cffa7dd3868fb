// What tests of block files share: a folder, memory on page borders, blocks with known contents.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/file/file_transfer.h"
#include "backend/tier/block_file.h"
#include "tests/backend/tier/temporary_folder.h"

namespace hetero::backend::testing {

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
using Pages = std::unique_ptr<std::byte[], Free>;

inline Pages pages(int64_t bytes) {
  const size_t whole = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(4096, whole));
  std::memset(data, 0xEE, whole);
  return Pages(data);
}

// The bytes of a block follow from its key, with gaps between pieces left as they are.
inline void fill(std::byte* data, const BlockGeometry& geometry, const BlockKey& key) {
  for (int64_t piece = 0; piece < geometry.pieces; ++piece) {
    uint64_t state = key.low * 0x9E3779B97F4A7C15u + key.high + static_cast<uint64_t>(piece);
    std::byte* const start = data + piece * geometry.piece_stride();
    for (int64_t i = 0; i < geometry.piece_bytes; i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(start + i, &state, static_cast<size_t>(std::min<int64_t>(8, geometry.piece_bytes - i)));
    }
  }
}

inline bool is_filled(const std::byte* data, const BlockGeometry& geometry, const BlockKey& key, int64_t first,
                      int64_t pieces) {
  const Pages wanted = testing::pages(geometry.block_bytes());
  fill(wanted.get(), geometry, key);
  for (int64_t piece = first; piece < first + pieces; ++piece) {
    const int64_t at = piece * geometry.piece_stride();
    if (std::memcmp(data + at, wanted.get() + at, static_cast<size_t>(geometry.piece_bytes)) != 0) return false;
  }
  return true;
}

// A value that another thread gives. Unlike a promise, it may be destroyed as soon as get() returns.
template <typename Value>
class Waiter {
 public:
  void set(Value value) {
    const std::lock_guard guard(mutex_);
    value_ = std::move(value);
    is_set_.notify_all();
  }
  Value get() {
    std::unique_lock lock(mutex_);
    is_set_.wait(lock, [&] { return value_.has_value(); });
    return *std::move(value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_set_;
  std::optional<Value> value_;
};

// Calls that wait.
inline BlockResult write_blocks(BlockFile& file, std::vector<BlockWrite> blocks) {
  Waiter<BlockResult> result;
  file.write(std::move(blocks), [&](const BlockResult& of) { result.set(of); });
  return result.get();
}

inline BlockResult read_blocks(BlockFile& file, std::vector<BlockRead> blocks, int64_t first, int64_t pieces) {
  Waiter<BlockResult> result;
  file.read(std::move(blocks), first, pieces, [&](const BlockResult& of) { result.set(of); });
  return result.get();
}

// For the duration of its life, all calls of the system go by `Faults`.
template <typename Faults>
struct WithFaults : Faults {
  template <typename... Arguments>
  explicit WithFaults(Arguments&&... arguments) : Faults(std::forward<Arguments>(arguments)...) {
    set_file_faults(this);
  }
  ~WithFaults() { set_file_faults(nullptr); }
};

}  // namespace hetero::backend::testing
