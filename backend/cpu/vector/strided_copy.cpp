#include "backend/cpu/vector/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace hetero::backend {
namespace {

// A transposed operand is walked in tiles of this many rows and columns: one cache line of the
// smallest common entries.
constexpr int64_t kTile = 16;

template <int kBytes>
struct Entry {
  unsigned char bytes[kBytes];
};

// Loads and stores through memcpy: an address may be misaligned.
template <int kBytes>
inline void copy_entry(char* out, const char* in) {
  std::memcpy(out, in, kBytes);
}

template <int kBytes>
inline void fill_run(char* out, const char* entry, int64_t count) {
  Entry<kBytes> value;
  std::memcpy(&value, entry, kBytes);
  for (int64_t i = 0; i < count; ++i) std::memcpy(out + i * kBytes, &value, kBytes);
}

// Lines of a square of entries, in the compiler's vectors. None for other sizes of an entry.
template <int kBytes>
constexpr int64_t kSquare = kBytes == 2 || kBytes == 4 ? 16 / kBytes : 0;
typedef uint16_t Line2 __attribute__((vector_size(16)));
typedef uint32_t Line4 __attribute__((vector_size(16)));

// The first halves of two lines, an entry of each in turn, and the second halves.
inline void interleave(Line2& a, Line2& b) {
  const Line2 low = __builtin_shuffle(a, b, Line2{0, 8, 1, 9, 2, 10, 3, 11});
  b = __builtin_shuffle(a, b, Line2{4, 12, 5, 13, 6, 14, 7, 15});
  a = low;
}
inline void interleave(Line4& a, Line4& b) {
  const Line4 low = __builtin_shuffle(a, b, Line4{0, 4, 1, 5});
  b = __builtin_shuffle(a, b, Line4{2, 6, 3, 7});
  a = low;
}

// Lines become columns.
template <int kBytes>
inline void transpose_square(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  constexpr int64_t kEdge = kSquare<kBytes>;
  using Line = std::conditional_t<kBytes == 2, Line2, Line4>;
  Line lines[kEdge], next[kEdge];
  for (int64_t i = 0; i < kEdge; ++i) std::memcpy(&lines[i], from + i * from_stride, sizeof(Line));
  for (int64_t done = 1; done < kEdge; done *= 2) {
    for (int64_t i = 0; i < kEdge / 2; ++i) {
      next[2 * i] = lines[i];
      next[2 * i + 1] = lines[i + kEdge / 2];
      interleave(next[2 * i], next[2 * i + 1]);
    }
    std::copy(next, next + kEdge, lines);
  }
  for (int64_t i = 0; i < kEdge; ++i) std::memcpy(to + i * to_stride, &lines[i], sizeof(Line));
}

// One direction of copying: what is dense and what is strided changes places.
template <int kBytes, bool kGather>
struct Copy {
  static void run(char* dense, char* base, int64_t count, int64_t stride) {
    if (stride == kBytes) {
      // Loaded and stored at the same address: nothing to do, and memcpy must not be asked for it.
      if (dense != base)
        std::memcpy(kGather ? dense : base, kGather ? base : dense, static_cast<size_t>(count * kBytes));
    } else if (kGather && stride == 0) {
      fill_run<kBytes>(dense, base, count);
    } else {
      for (int64_t i = 0; i < count; ++i) one(dense + i * kBytes, base + i * stride);
    }
  }

  static void tile(char* dense, char* base, int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride) {
    if (rows > 1 && std::abs(row_stride) < std::abs(column_stride)) {
      return turn(dense, columns * kBytes, base, rows, row_stride, columns, column_stride);
    }
    for (int64_t r = 0; r < rows; ++r) run(dense + r * columns * kBytes, base + r * row_stride, columns, column_stride);
  }

  // A tile whose columns are further apart than its rows, which are `dense_stride` apart where they
  // are dense. A few rows at a time: those far apart are in different pages.
  static void turn(char* dense, int64_t dense_stride, char* base, int64_t rows, int64_t row_stride, int64_t columns,
                   int64_t column_stride) {
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      const int64_t r1 = std::min(rows, r0 + kTile);
      for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
        const int64_t c1 = std::min(columns, c0 + kTile);
        if (has_squares(r1 - r0, c1 - c0, row_stride)) {
          squares(r1 - r0, c1 - c0, dense + r0 * dense_stride + c0 * kBytes, dense_stride,
                  base + r0 * kBytes + c0 * column_stride, column_stride);
          continue;
        }
        for (int64_t r = r0; r < r1; ++r) {
          for (int64_t c = c0; c < c1; ++c) {
            one(dense + r * dense_stride + c * kBytes, base + r * row_stride + c * column_stride);
          }
        }
      }
    }
  }

  // Whether a tile is squares whose lines are contiguous on both sides.
  static bool has_squares(int64_t rows, int64_t columns, int64_t row_stride) {
    constexpr int64_t kEdge = std::max<int64_t>(kSquare<kBytes>, 1);
    return kSquare<kBytes> != 0 && row_stride == kBytes && rows % kEdge == 0 && columns % kEdge == 0;
  }
  static void squares(int64_t rows_of_tile, int64_t columns_of_tile, char* dense, int64_t dense_stride, char* strided,
                      int64_t stride) {
    if constexpr (kSquare<kBytes> != 0) {
      constexpr int64_t kEdge = kSquare<kBytes>;
      for (int64_t r = 0; r < rows_of_tile; r += kEdge) {
        for (int64_t c = 0; c < columns_of_tile; c += kEdge) {
          char* const rows = dense + r * dense_stride + c * kBytes;
          char* const columns = strided + c * stride + r * kBytes;
          if (kGather) {
            transpose_square<kBytes>(columns, stride, rows, dense_stride);
          } else {
            transpose_square<kBytes>(rows, dense_stride, columns, stride);
          }
        }
      }
    }
  }

  static void walk(char* dense, char* base, const LinearView& view, int64_t first, int64_t count) {
    const int last = view.rank - 1;
    if (last == 0) return run(dense, base + first * view.strides[0], count, view.strides[0]);
    int64_t index[kMaxFusedRank];
    int64_t rest = first;
    char* row = base;  // the start of the innermost run
    const int64_t columns = view.sizes[last];
    int64_t column = rest % columns;
    rest /= columns;
    for (int d = last - 1; d >= 0; --d) {
      index[d] = d == 0 ? rest : rest % view.sizes[d];
      rest /= view.sizes[d];
      row += index[d] * view.strides[d];
    }
    const int outer = last - 1;
    while (count > 0) {
      int64_t rows = 1;
      int64_t entries;
      if (column != 0 || count < columns) {
        entries = std::min(columns - column, count);
        run(dense, row + column * view.strides[last], entries, view.strides[last]);
        if (column + entries < columns) return;
        column = 0;
      } else {
        rows = std::min(count / columns, view.sizes[outer] - index[outer]);
        entries = rows * columns;
        tile(dense, row, rows, view.strides[outer], columns, view.strides[last]);
      }
      dense += entries * kBytes;
      count -= entries;
      index[outer] += rows;
      row += rows * view.strides[outer];
      for (int d = outer; d > 0 && index[d] == view.sizes[d]; --d) {
        row += view.strides[d - 1] - view.sizes[d] * view.strides[d];
        index[d] = 0;
        ++index[d - 1];
      }
    }
  }

 private:
  static void one(char* dense, char* strided) {
    copy_entry<kBytes>(kGather ? dense : strided, kGather ? strided : dense);
  }
};

// Calls body with the size of an entry as a constant.
template <typename Body>
inline void for_size(int bytes, Body&& body) {
  switch (bytes) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 8:
      return body(std::integral_constant<int, 8>());
    default:
      return body(std::integral_constant<int, 16>());
  }
}

}  // namespace

void gather(void* dense, const char* base, const LinearView& view, int64_t first, int64_t count, int bytes) {
  for_size(bytes, [&](auto size) {
    Copy<size, true>::walk(static_cast<char*>(dense), const_cast<char*>(base), view, first, count);
  });
}

void scatter(const void* dense, char* base, const LinearView& view, int64_t first, int64_t count, int bytes) {
  for_size(bytes, [&](auto size) {
    Copy<size, false>::walk(static_cast<char*>(const_cast<void*>(dense)), base, view, first, count);
  });
}

void gather_tile(void* dense, const char* base, int64_t rows, int64_t row_stride, int64_t columns,
                 int64_t column_stride, int bytes) {
  for_size(bytes, [&](auto size) {
    Copy<size, true>::tile(static_cast<char*>(dense), const_cast<char*>(base), rows, row_stride, columns,
                           column_stride);
  });
}

void scatter_tile(const void* dense, char* base, int64_t rows, int64_t row_stride, int64_t columns,
                  int64_t column_stride, int bytes) {
  for_size(bytes, [&](auto size) {
    Copy<size, false>::tile(static_cast<char*>(const_cast<void*>(dense)), base, rows, row_stride, columns,
                            column_stride);
  });
}

void transpose(const char* from, int64_t from_stride, int64_t rows, int64_t columns, char* to, int64_t to_stride,
               int bytes) {
  for_size(bytes, [&](auto size) {
    Copy<size, true>::turn(to, to_stride, const_cast<char*>(from), columns, size, rows, from_stride);
  });
}

void repeat(void* out, const void* entries, int64_t rows, int64_t count, int bytes) {
  for_size(bytes, [&](auto size) {
    for (int64_t j = 0; j < rows; ++j) {
      fill_run<size>(static_cast<char*>(out) + j * count * size, static_cast<const char*>(entries) + j * size, count);
    }
  });
}

}  // namespace hetero::backend
