// Window and WindowTable: dtype, sizes, strides and offset of a tensor over its storage, interned
// to a 32-bit id.
//
// Two tensors view their storages in the same way exactly if their WindowIds are equal. So
// recording, planning and the meta cache compare one integer where PyTorch compares vectors.
// Offsets and strides count elements. The extent [first_byte, last_byte) bounds the bytes that the
// window can touch.
//
// Thread safety: intern() needs external locking (the recorder's lock). Any thread may look up an
// earlier id at any time, because windows never move.
// Ownership: the table owns its windows until clear(), after which old ids are meaningless.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hetero::graph {

using WindowId = uint32_t;
inline constexpr WindowId kNoWindow = UINT32_MAX;

// Numbered as c10::ScalarType, so that ops/ converts by a cast. The graph layer needs the size and
// the name only.
using DType = int8_t;
int dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);
// The dtype of that name, or -1.
DType parse_dtype(std::string_view name);

struct Window {
  DType dtype = 0;
  // Elements fill [first_byte, last_byte) without gap or overlap, in some order.
  bool dense = false;
  bool contiguous = false;  // dense, in row-major order
  int rank = 0;
  int64_t offset = 0;  // in elements
  int64_t numel = 0;
  int64_t first_byte = 0;
  int64_t last_byte = 0;
  // Equal for windows that look alike but for their sizes: dtype, rank, and which dimensions have
  // size 1, stride 0 or stride 1.
  uint64_t kind = 0;
  const int64_t* dims = nullptr;  // rank sizes, then rank strides

  std::span<const int64_t> sizes() const { return {dims, static_cast<size_t>(rank)}; }
  std::span<const int64_t> strides() const { return {dims + rank, static_cast<size_t>(rank)}; }
  bool equals(DType other_dtype, std::span<const int64_t> other_sizes, std::span<const int64_t> other_strides,
              int64_t other_offset) const {
    if (dtype != other_dtype || offset != other_offset || rank != static_cast<int>(other_sizes.size())) {
      return false;
    }
    for (int i = 0; i < rank; ++i) {
      if (dims[i] != other_sizes[i] || dims[rank + i] != other_strides[i]) return false;
    }
    return true;
  }
  // True when the two windows, over one storage, can touch no common byte.
  bool disjoint(const Window& other) const {
    return numel == 0 || other.numel == 0 || last_byte <= other.first_byte || other.last_byte <= first_byte;
  }
};

// Row-major strides of these sizes, one for each.
void fill_row_major(std::span<const int64_t> sizes, int64_t* strides);

class WindowTable {
 public:
  WindowTable();
  ~WindowTable();
  WindowTable(const WindowTable&) = delete;
  WindowTable& operator=(const WindowTable&) = delete;

  // The id of this window; kNoWindow once four million different windows are in the table.
  // REQUIRES: sizes and strides of equal length, none negative.
  WindowId intern(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset);
  // Interns a window with row-major strides and offset 0.
  WindowId intern_contiguous(DType dtype, std::span<const int64_t> sizes);

  // REQUIRES: id < size().
  const Window& operator[](WindowId id) const { return chunks_[id >> kChunkBits][id & kChunkMask]; }
  size_t size() const { return size_; }
  // Differs for all tables there ever were, and for one table before and after clear(): with it, an
  // id names a window for ever.
  uint64_t serial() const { return serial_.load(std::memory_order_relaxed); }

  // Forgets all windows. REQUIRES: no id is in use.
  void clear();

 private:
  static constexpr int kChunkBits = 10;
  static constexpr uint32_t kChunkMask = (1u << kChunkBits) - 1;
  static constexpr size_t kMaxChunks = 4096;

  void grow_index();
  int64_t* allocate_dims(size_t count);

  std::array<std::unique_ptr<Window[]>, kMaxChunks> chunks_;
  std::vector<std::unique_ptr<int64_t[]>> dims_;  // slabs
  size_t dims_left_ = 0;                          // in the last slab
  int64_t* next_dims_ = nullptr;
  // Open addressing with linear probing. An entry is id + 1 in its low bits and bits of the hash
  // above; 0 is empty.
  std::vector<uint32_t> index_;
  size_t size_ = 0;
  std::atomic<uint64_t> serial_;
};

// Whether nothing that is computed of such a window overflows. No window of memory comes near these
// limits, but one in a text may.
// REQUIRES: as WindowTable::intern().
bool is_measurable(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset);

// "f32[2,3]" for row-major windows at offset 0, "f32[2,3]{1,2}+4" otherwise; parse_window reads it
// back.
std::string to_string(const Window& window);
// Returns kNoWindow where `text` is not a window.
WindowId parse_window(std::string_view text, WindowTable& table);

}  // namespace hetero::graph
