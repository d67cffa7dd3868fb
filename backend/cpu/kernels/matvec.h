// Matvec: products of one to eight rows with a large matrix, y = x * w^T + bias or x * w + bias.
//
// Such a product reads w once and does little else, so it should run at the speed of memory.
// Several rows of w are in flight at a time, parallel_for divides them, and nothing is copied or
// packed. Sums are kept in float32 and rounded once, when they are stored.
//
//   Matvec call{.element = Element::kBfloat16, .m = 1, .n = 3072, .k = 1024, .x = x,
//               .x_stride = 1024, .w = w, .w_stride = 1024, .y = y, .y_stride = 3072};
//   matvec(call);
//
// Several products of one x, such as those with the weights of Q, K and V, may be one call. It
// prepares x once and starts the threads once, over the outputs of all.
//
// A result does not depend on the number of threads. Its last bits depend on the instruction set.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/base/function_ref.h"
#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

enum class Element : uint8_t { kFloat32, kBfloat16, kFloat16 };
inline int64_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

inline constexpr int64_t kMaxMatvecRows = 8;

// x whose rows lie in pieces, each of which is anywhere: the patches of images, which are read in
// place.
struct RowPieces {
  int64_t size = 0;       // elements; k is a multiple
  int64_t row_bytes = 0;  // of x that a row adds to the ones before it, about
  bool floats = false;    // they are of float32, whatever the element
  // Puts the address of piece p of row first + r at to[p * stride + r], for rows r < count.
  FunctionRef<void(int64_t first, int64_t count, int64_t stride, const void** to)> find;
};

// x is [m, k], y is [m, n], bias is [n]; all of one element type, dense along their last dimension.
// Strides count elements.
struct Matvec {
  Element element = Element::kFloat32;
  bool columns = false;  // false: w is [n, k], a row for each output; true: w is [k, n]
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  bool x_columns = false;  // x is [k, m]; for tile_gemm and panel_gemm alone
  // In place of x, for panel_gemm alone; each piece begins piece_offset bytes behind its address.
  const RowPieces* pieces = nullptr;
  int64_t piece_offset = 0;
  const void* w = nullptr;
  int64_t w_stride = 0;
  // w as pack_tile_weight or pack_panel_weight made it, or null; for tile_gemm and panel_gemm
  // alone.
  const void* packed = nullptr;
  const void* bias = nullptr;  // null for none
  void* y = nullptr;
  int64_t y_stride = 0;
  Limits limits = {};  // of y; for tile_gemm and panel_gemm alone
};

inline const std::byte* element_at(const void* base, int64_t index, Element element) {
  return static_cast<const std::byte*>(base) + index * element_bytes(element);
}
// The first element of w that an output needs.
inline const std::byte* weight_of(const Matvec& call, int64_t output) {
  return element_at(call.w, output * (call.columns ? 1 : call.w_stride), call.element);
}

// Whether calls may be computed together: they have the same x and prepare it in the same way. Of
// pieces, each may have others beside the same addresses.
inline bool same_x(const Matvec& a, const Matvec& b) {
  return a.element == b.element && a.columns == b.columns && a.m == b.m && a.k == b.k && a.x == b.x &&
         a.x_stride == b.x_stride && a.x_columns == b.x_columns && a.pieces == b.pieces;
}

// Writes the y of each call, with the bits of separate calls. Takes no heap memory once it has run
// with as large an x. REQUIRES: same_x for any two calls; 0 <= m <= kMaxMatvecRows; no y overlaps
// an input or another y.
void matvec(std::span<const Matvec> calls);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
void matvec(std::span<const Matvec> calls, InstructionSet set);
inline void matvec(const Matvec& call) { matvec(std::span(&call, 1)); }
inline void matvec(const Matvec& call, InstructionSet set) { matvec(std::span(&call, 1), set); }

// Rows of elements to floats and back, rounded to nearest.
void widen(Element element, const void* from, int64_t count, float* to, InstructionSet set = instruction_set());
void narrow(Element element, const float* from, int64_t count, void* to, InstructionSet set = instruction_set());
// to[i] += from[first + i].
void add_elements(Element element, const void* from, int64_t first, int64_t count, float* to);

}  // namespace hetero::backend
