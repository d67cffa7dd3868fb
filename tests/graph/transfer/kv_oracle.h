// The oracle of block stores: what the bytes of a block must be follows from the tokens up to its
// end, so whatever a store delivers can be checked.
//
// Thread safety: a Memory belongs to one thread.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "backend/tier/block_key.h"
#include "graph/transfer/device_blocks.h"
#include "graph/transfer/kv_spec.h"

namespace hetero::graph::testing {

inline KvSpec small_spec() {
  KvSpec spec;
  spec.model = "oracle";
  spec.layers = 3;
  spec.kv_heads = 2;
  spec.head_size = 4;
  spec.block_tokens = 4;
  return spec;
}

// One whose blocks' keys of a head, in a layer, are a page.
inline KvSpec page_spec() {
  KvSpec spec = small_spec();
  spec.head_size = 4096 / (spec.block_tokens * spec.element_bytes);
  return spec;
}

// A caller's memory for some blocks.
class Memory {
 public:
  // `rows`: keys of a layer are [heads, all tokens, size] instead of [blocks, heads, tokens, size].
  Memory(const KvSpec& spec, int64_t blocks, bool rows = false, backend::Device* device = nullptr)
      : spec_(spec), half_(static_cast<size_t>(spec.geometry().piece_bytes / 2)) {
    view = std::make_shared<DeviceBlocks>();
    view->device = device;
    view->blocks = blocks;
    const int64_t head = spec.block_tokens * spec.head_size * spec.element_bytes;
    view->rows = rows ? spec.kv_heads : 1;
    view->row_bytes = rows ? head : static_cast<int64_t>(half_);
    view->row_stride = rows ? blocks * head : 0;
    view->block_stride = rows ? head : static_cast<int64_t>(half_);
    for (int64_t i = 0; i < 2 * spec.layers; ++i) planes_.emplace_back(static_cast<size_t>(blocks) * half_);
    for (int64_t i = 0; i < spec.layers; ++i) {
      view->layers.push_back(
          {planes_[static_cast<size_t>(2 * i)].data.get(), planes_[static_cast<size_t>(2 * i) + 1].data.get()});
    }
  }

  void clear() {
    for (Plane& plane : planes_) std::memset(plane.data.get(), 0xee, plane.bytes);
  }
  // The block at the end of these tokens.
  void write(int64_t block, std::span<const int32_t> tokens) {
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      visit(block, layer, tokens, [](std::byte& at, std::byte is) { at = is; });
  }
  bool is_right(int64_t block, std::span<const int32_t> tokens) {
    bool right = true;
    for (int64_t layer = 0; layer < spec_.layers; ++layer) right &= is_layer_right(block, layer, tokens);
    return right;
  }
  bool is_layer_right(int64_t block, int64_t layer, std::span<const int32_t> tokens) {
    bool right = true;
    visit(block, layer, tokens, [&](std::byte& at, std::byte is) { right &= at == is; });
    return right;
  }

  std::shared_ptr<DeviceBlocks> view;

 private:
  template <typename Visit>
  void visit(int64_t block, int64_t layer, std::span<const int32_t> tokens, const Visit& call) {
    uint64_t word = backend::checksum(tokens.data(), tokens.size_bytes()) + static_cast<uint64_t>(layer) * 77;
    const DeviceBlocks& at = *view;
    for (const bool values : {false, true}) {
      std::byte* const base =
          values ? at.layers[static_cast<size_t>(layer)].values : at.layers[static_cast<size_t>(layer)].keys;
      for (int64_t row = 0; row < at.rows; ++row) {
        std::byte* const bytes = base + block * at.block_stride + row * at.row_stride;
        for (int64_t i = 0; i < at.row_bytes; ++i) {
          word = word * 6364136223846793005u + 1442695040888963407u;
          call(bytes[i], static_cast<std::byte>(word >> 56));
        }
      }
    }
  }

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  // On a page border.
  struct Plane {
    explicit Plane(size_t bytes)
        : bytes((bytes / 4096 + 1) * 4096), data(static_cast<std::byte*>(std::aligned_alloc(4096, this->bytes))) {
      std::memset(data.get(), 0, this->bytes);
    }
    size_t bytes;
    std::unique_ptr<std::byte[], Free> data;
  };

  const KvSpec spec_;
  const size_t half_;
  std::vector<Plane> planes_;
};

inline std::vector<int64_t> numbers(int64_t count, int64_t first = 0) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(first + i);
  return result;
}

}  // namespace hetero::graph::testing
