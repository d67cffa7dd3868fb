#include "graph/ir/window.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

struct DTypeInfo {
  const char* name;
  int bytes;
};

// Indexed by c10::ScalarType.
constexpr DTypeInfo kDTypes[] = {
    {"u8", 1},    {"i8", 1},     {"i16", 2},       {"i32", 4},        {"i64", 8},     {"f16", 2},       {"f32", 4},
    {"f64", 8},   {"c32", 4},    {"c64", 8},       {"c128", 16},      {"bool", 1},    {"qi8", 1},       {"qu8", 1},
    {"qi32", 4},  {"bf16", 2},   {"qu4x2", 1},     {"qu2x4", 1},      {"bits1x8", 1}, {"bits2x4", 1},   {"bits4x2", 1},
    {"bits8", 1}, {"bits16", 2}, {"f8e5m2", 1},    {"f8e4m3fn", 1},   {"f8e5m2z", 1}, {"f8e4m3fnz", 1}, {"u16", 2},
    {"u32", 4},   {"u64", 8},    {"u1", 1},        {"u2", 1},         {"u3", 1},      {"u4", 1},        {"u5", 1},
    {"u6", 1},    {"u7", 1},     {"i1", 1},        {"i2", 1},         {"i3", 1},      {"i4", 1},        {"i5", 1},
    {"i6", 1},    {"i7", 1},     {"f8e8m0fnu", 1}, {"f4e2m1fnx2", 1},
};
constexpr int kDTypeCount = static_cast<int>(std::size(kDTypes));

constexpr uint32_t kIdBits = 23;  // holds id + 1 of every id that the chunks can hold
constexpr uint32_t kIdMask = (1u << kIdBits) - 1;
constexpr size_t kSlabDims = 4096;
constexpr size_t kFirstIndexSize = 1024;
constexpr size_t kMostDims = 64;  // of a window in a text: sets of dimensions are 64 bits

// Two independent multiply chains, so that sizes and strides hash side by side.
uint64_t hash_window(DType dtype, const int64_t* sizes, const int64_t* strides, size_t rank, int64_t offset) {
  uint64_t a = 0x9E3779B97F4A7C15u ^ static_cast<uint64_t>(dtype);
  uint64_t b = 0xC2B2AE3D27D4EB4Fu ^ static_cast<uint64_t>(offset);
  for (size_t i = 0; i < rank; ++i) {
    a = (a ^ static_cast<uint64_t>(sizes[i])) * 0xFF51AFD7ED558CCDu;
    b = (b ^ static_cast<uint64_t>(strides[i])) * 0xC4CEB9FE1A85EC53u;
    a ^= a >> 29;
    b ^= b >> 31;
  }
  uint64_t h = (a ^ (b << 23 | b >> 41)) * 0x9FB21C651E98DF25u;
  return h ^ (h >> 32);
}

uint64_t next_serial() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) & ~kIdMask; }

bool is_contiguous(const Window& window) {
  int64_t expected = 1;
  for (int i = window.rank; i-- > 0;) {
    if (window.dims[i] == 1) continue;
    if (window.dims[window.rank + i] != expected) return false;
    expected *= window.dims[i];
  }
  return true;
}

// Dense: with the dimensions in order of their strides, each stride is the product of the sizes
// below it.
bool is_dense(const Window& window) {
  int64_t expected = 1;
  int64_t below = 0;
  for (int taken = 0; taken < window.rank; ++taken) {
    int next = -1;
    int trivial = 0;
    for (int i = 0; i < window.rank; ++i) {
      if (window.dims[i] == 1) {
        ++trivial;
      } else if (const int64_t stride = window.dims[window.rank + i];
                 stride > below && (next < 0 || stride < window.dims[window.rank + next])) {
        next = i;
      }
    }
    if (next < 0) return expected == window.numel;
    if (window.dims[window.rank + next] != expected) return false;
    below = expected;
    expected *= window.dims[next];
    if (taken + trivial + 1 == window.rank) break;
  }
  return expected == window.numel;
}

uint64_t kind_of(const Window& window) {
  constexpr int kDims = 15;  // of which three bits each fit
  uint64_t kind = static_cast<uint64_t>(window.dtype) & 0x7F;
  kind = kind << 4 | static_cast<uint64_t>(std::min(window.rank, kDims));
  kind = kind << 1 | static_cast<uint64_t>(window.numel == 0);
  kind = kind << 1 | static_cast<uint64_t>(window.contiguous);
  kind = kind << 1 | static_cast<uint64_t>(window.offset == 0);
  for (int i = 0; i < std::min(window.rank, kDims); ++i) {
    const int64_t stride = window.dims[window.rank + i];
    kind = kind << 3 | static_cast<uint64_t>((window.dims[i] == 1) | (stride == 0) << 1 | (stride == 1) << 2);
  }
  return kind;
}

void measure(Window& window) {
  const int64_t element = dtype_bytes(window.dtype);
  window.numel = 1;
  int64_t last = window.offset;
  for (int i = 0; i < window.rank; ++i) {
    window.numel *= window.dims[i];
    last += (window.dims[i] - 1) * window.dims[window.rank + i];
  }
  window.first_byte = window.offset * element;
  window.last_byte = window.numel == 0 ? window.first_byte : (last + 1) * element;
  window.contiguous = window.numel == 0 || is_contiguous(window);
  window.dense = window.contiguous || is_dense(window);
  window.kind = kind_of(window);
}

}  // namespace

bool is_measurable(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset) {
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  const int64_t most = kMostBytes / dtype_bytes(dtype);
  int64_t points = 1;
  int64_t end = offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t span = 0;
    if (__builtin_mul_overflow(points, std::max<int64_t>(sizes[i], 1), &points) ||
        __builtin_mul_overflow(strides[i], std::max<int64_t>(sizes[i], 1), &span) ||
        __builtin_add_overflow(end, span, &end) || points > most) {
      return false;
    }
  }
  return end <= most;
}

int dtype_bytes(DType dtype) { return dtype >= 0 && dtype < kDTypeCount ? kDTypes[dtype].bytes : 0; }

const char* dtype_name(DType dtype) { return dtype >= 0 && dtype < kDTypeCount ? kDTypes[dtype].name : "?"; }

DType parse_dtype(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return -1;
}

void fill_row_major(std::span<const int64_t> sizes, int64_t* strides) {
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
}

WindowTable::WindowTable() : index_(kFirstIndexSize), serial_(next_serial()) {}
WindowTable::~WindowTable() = default;

WindowId WindowTable::intern(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                             int64_t offset) {
  assert(sizes.size() == strides.size());
  const size_t rank = sizes.size();
  const uint64_t hash = hash_window(dtype, sizes.data(), strides.data(), rank, offset);
  const uint32_t tag = tag_of(hash);
  const size_t mask = index_.size() - 1;
  size_t slot = hash & mask;
  for (; index_[slot] != 0; slot = (slot + 1) & mask) {
    const uint32_t entry = index_[slot];
    if ((entry & ~kIdMask) != tag) continue;
    const WindowId id = (entry & kIdMask) - 1;
    if ((*this)[id].equals(dtype, sizes, strides, offset)) return id;
  }
  if (size_ == kMaxChunks << kChunkBits) return kNoWindow;

  const auto id = static_cast<WindowId>(size_);
  auto& chunk = chunks_[id >> kChunkBits];
  if (chunk == nullptr) chunk = std::make_unique<Window[]>(size_t{1} << kChunkBits);
  int64_t* dims = allocate_dims(2 * rank);
  std::copy(sizes.begin(), sizes.end(), dims);
  std::copy(strides.begin(), strides.end(), dims + rank);
  Window& window = chunk[id & kChunkMask];
  window = Window{.dtype = dtype, .rank = static_cast<int>(rank), .offset = offset, .dims = dims};
  measure(window);
  index_[slot] = tag | (id + 1);
  if (++size_ * 2 > index_.size()) grow_index();
  return id;
}

WindowId WindowTable::intern_contiguous(DType dtype, std::span<const int64_t> sizes) {
  constexpr size_t kStackDims = 32;
  if (sizes.size() > kStackDims) {
    std::vector<int64_t> strides(sizes.size());
    fill_row_major(sizes, strides.data());
    return intern(dtype, sizes, strides, 0);
  }
  int64_t strides[kStackDims];
  fill_row_major(sizes, strides);
  return intern(dtype, sizes, {strides, sizes.size()}, 0);
}

void WindowTable::clear() {
  dims_.clear();
  dims_left_ = 0;
  next_dims_ = nullptr;
  index_.assign(kFirstIndexSize, 0);
  size_ = 0;
  serial_.store(next_serial(), std::memory_order_relaxed);
}

void WindowTable::grow_index() {
  std::vector<uint32_t> larger(index_.size() * 2);
  const size_t mask = larger.size() - 1;
  for (size_t id = 0; id < size_; ++id) {
    const Window& w = (*this)[static_cast<WindowId>(id)];
    const uint64_t hash = hash_window(w.dtype, w.dims, w.dims + w.rank, static_cast<size_t>(w.rank), w.offset);
    size_t slot = hash & mask;
    while (larger[slot] != 0) slot = (slot + 1) & mask;
    larger[slot] = tag_of(hash) | static_cast<uint32_t>(id + 1);
  }
  index_.swap(larger);
}

int64_t* WindowTable::allocate_dims(size_t count) {
  if (next_dims_ == nullptr || dims_left_ < count) {
    dims_left_ = std::max(count, kSlabDims);
    dims_.push_back(std::make_unique<int64_t[]>(dims_left_));
    next_dims_ = dims_.back().get();
  }
  int64_t* dims = next_dims_;
  next_dims_ += count;
  dims_left_ -= count;
  return dims;
}

std::string to_string(const Window& window) {
  auto join = [](std::span<const int64_t> values) {
    std::string text;
    for (const int64_t value : values) {
      if (!text.empty()) text += ',';
      text += std::to_string(value);
    }
    return text;
  };
  std::string text = dtype_name(window.dtype);
  text += '[' + join(window.sizes()) + ']';
  std::vector<int64_t> row_major(window.sizes().size());
  fill_row_major(window.sizes(), row_major.data());
  const bool plain = window.offset == 0 && std::ranges::equal(row_major, window.strides());
  if (!plain) text += '{' + join(window.strides()) + "}+" + std::to_string(window.offset);
  return text;
}

WindowId parse_window(std::string_view text, WindowTable& table) {
  auto read_list = [](TextReader& reader, std::string_view close, std::vector<int64_t>& values) {
    while (!reader.accept(close)) {
      int64_t value = 0;
      if (!values.empty() && !reader.accept(",")) return false;
      if (!reader.accept_number(value) || value < 0) return false;
      values.push_back(value);
    }
    return true;
  };
  TextReader reader(text);
  const DType dtype = parse_dtype(reader.take_until("["));
  std::vector<int64_t> sizes;
  if (dtype < 0 || !reader.accept("[") || !read_list(reader, "]", sizes)) return kNoWindow;
  if (sizes.size() > kMostDims) return kNoWindow;
  if (reader.at_end()) {
    // Row-major strides overflow where the number of points does, and not otherwise.
    if (!is_measurable(dtype, sizes, std::vector<int64_t>(sizes.size()), 0)) return kNoWindow;
    return table.intern_contiguous(dtype, sizes);
  }
  std::vector<int64_t> strides;
  int64_t offset = 0;
  if (!reader.accept("{") || !read_list(reader, "}", strides) || strides.size() != sizes.size() ||
      !reader.accept("+") || !reader.accept_number(offset) || offset < 0 || !reader.at_end() ||
      !is_measurable(dtype, sizes, strides, offset)) {
    return kNoWindow;
  }
  return table.intern(dtype, sizes, strides, offset);
}

}  // namespace hetero::graph
