// CudaVariant: how the threads of a GPU walk a fused kernel. The source of a kernel depends on its
// structure and on the variant.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/fused/space.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

inline constexpr int kCudaThreads = 256;     // of a block
inline constexpr int kCudaVectorBytes = 16;  // of the widest memory access

// Rows are cut where they give the GPU too few blocks; a part has at least so many entries.
inline constexpr int64_t kCudaPartEntries = 8192;
inline constexpr int kMaxCudaVector = 8;

// Where an operand's entries are, as one kernel walks them.
enum class CudaView : uint8_t { kEntries, kInRow, kByRow };

inline const LinearView& view_of(const OperandView& operand, CudaView view) {
  return view == CudaView::kEntries ? operand.entries : view == CudaView::kInRow ? operand.in_row : operand.by_row;
}

// How a thread's entries are laid out.
enum class CudaAccess : uint8_t { kVector, kStrided, kSame };

struct CudaVariant {
  struct Operand {
    CudaAccess access = CudaAccess::kStrided;
    bool by_row = false;     // only read and written as a row value
    bool row_store = false;  // stored once for each row
    // Dimensions of the view of entries (of the whole space, or in a row), and of that over rows;
    // which of the variant's shapes they have.
    uint8_t rank = 1, shape = 0;
    uint8_t row_rank = 1, row_shape = 0;
    bool operator==(const Operand&) const = default;
  };
  bool by_rows = false;  // the kernel has row values
  bool parts = false;    // several blocks share a row
  bool wide = false;     // indices of 64 bits
  int vector = 1;        // entries that a thread takes at a time
  int group = 0;         // threads of a row
  int shapes = 0, row_shapes = 0;
  std::vector<Operand> operands;
  bool operator==(const CudaVariant&) const = default;
};

// `aligned`: all addresses are multiples of kCudaVectorBytes. `multiprocessors`: of the GPU.
// REQUIRES: the space is the kernel's (FusedLaunch::space), and not empty.
CudaVariant choose_variant(const FusedKernel& kernel, const RowSpace& space, bool aligned, int multiprocessors);

}  // namespace hetero::backend
