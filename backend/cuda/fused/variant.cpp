#include "backend/cuda/fused/variant.h"

#include <algorithm>

namespace hetero::backend {
namespace {

using Kind = FusedStep::Kind;

// Rows up to this length are a warp's.
constexpr int64_t kWarpRow = 1024;
constexpr int64_t kNarrowEntries = int64_t{1} << 30;  // leaves room for a grid's stride

bool is_row(const FusedKernel& kernel, uint16_t value) { return kernel.values[value].extent == Extent::kRow; }

bool has_rows(const FusedKernel& kernel) {
  return std::ranges::any_of(kernel.values, [](const FusedValue& it) { return it.extent == Extent::kRow; });
}

// Numbers views whose indices are taken apart alike.
class Shapes {
 public:
  uint8_t number(const LinearView& view) {
    for (size_t s = 0; s < known_.size(); ++s) {
      const LinearView& other = *known_[s];
      if (other.rank == view.rank && std::equal(view.sizes + 1, view.sizes + view.rank, other.sizes + 1)) {
        return static_cast<uint8_t>(s);
      }
    }
    known_.push_back(&view);
    return static_cast<uint8_t>(known_.size() - 1);
  }
  int count() const { return static_cast<int>(known_.size()); }

 private:
  std::vector<const LinearView*> known_;
};

// Whether entries i .. i + vector always lie side by side in the innermost dimension, for i a
// multiple of vector.
bool divides(const LinearView& view, int64_t vector) { return view.sizes[view.rank - 1] % vector == 0; }

// Whether vectors lie at multiples of their size, if the first entry does.
bool is_aligned(const OperandView& operand, const LinearView& view, int64_t bytes) {
  if (operand.offset % bytes != 0) return false;
  for (int d = 0; d + 1 < view.rank; ++d) {
    if (view.strides[d] % bytes != 0) return false;
  }
  return true;
}

class Chooser {
 public:
  Chooser(const FusedKernel& kernel, const RowSpace& space, bool aligned, int multiprocessors)
      : kernel_(kernel), space_(space), aligned_(aligned), multiprocessors_(multiprocessors) {}

  CudaVariant choose() {
    variant_.by_rows = has_rows(kernel_);
    variant_.operands.resize(kernel_.operand_count);
    find_row_operands();
    choose_group();
    variant_.wide = space_.rows * std::max<int64_t>(space_.row, 1) > kNarrowEntries;
    view_ = variant_.by_rows ? CudaView::kInRow : CudaView::kEntries;
    if (aligned_) choose_vector();
    Shapes shapes, row_shapes;
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) describe(o, shapes, row_shapes);
    variant_.shapes = shapes.count();
    variant_.row_shapes = row_shapes.count();
    return variant_;
  }

 private:
  void find_row_operands() {
    for (CudaVariant::Operand& it : variant_.operands) it.by_row = variant_.by_rows;
    for (const FusedStep& it : kernel_.steps) {
      if (!uses_operand(it)) continue;
      const bool once = it.kind == Kind::kLoad || space_.operands[it.operand].same_in_row;
      CudaVariant::Operand& operand = variant_.operands[it.operand];
      if (!is_row(kernel_, it.value) || !once) operand.by_row = false;
      if (is_row(kernel_, it.value) && it.kind == Kind::kStore) operand.row_store = once;
    }
  }

  void choose_group() {
    if (!variant_.by_rows) return;
    variant_.group = space_.row <= kWarpRow ? 32 : kCudaThreads;
    const bool few = space_.rows < 2 * int64_t{multiprocessors_};
    variant_.parts = few && space_.row >= 2 * kCudaPartEntries;
    if (variant_.parts) variant_.group = kCudaThreads;
  }

  const LinearView& view(uint16_t operand) const { return view_of(space_.operands[operand], view_); }

  void choose_vector() {
    int64_t widest = 1;
    for (const FusedValue& it : kernel_.values) {
      if (it.extent == Extent::kElement) widest = std::max<int64_t>(widest, it.bytes);
    }
    int64_t vector = std::min<int64_t>(kMaxCudaVector, kCudaVectorBytes / widest);
    // What is not divided by it is walked entry by entry.
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) {
      while (vector > 1 && !variant_.operands[o].by_row && !divides(view(o), vector)) vector /= 2;
    }
    while (vector > 1 && variant_.by_rows && space_.row % vector != 0) vector /= 2;
    while (vector > 1 && !variant_.by_rows && space_.rows * space_.row % vector != 0) vector /= 2;
    variant_.vector = static_cast<int>(vector);
  }

  void describe(uint16_t operand, Shapes& shapes, Shapes& row_shapes) {
    CudaVariant::Operand& it = variant_.operands[operand];
    const OperandView& known = space_.operands[operand];
    if (!it.by_row) {
      const LinearView& entries = view(operand);
      const int64_t stride = entries.strides[entries.rank - 1], bytes = known.bytes * int64_t{variant_.vector};
      bool aligned = aligned_ && stride == known.bytes && is_aligned(known, entries, bytes);
      for (int d = 0; d < known.by_row.rank && variant_.by_rows; ++d) {
        aligned = aligned && known.by_row.strides[d] % bytes == 0;
      }
      it.rank = static_cast<uint8_t>(entries.rank);
      it.shape = shapes.number(entries);
      it.access = aligned && variant_.vector > 1 ? CudaAccess::kVector
                  : stride == 0                  ? CudaAccess::kSame
                                                 : CudaAccess::kStrided;
    }
    if (variant_.by_rows) {
      it.row_rank = static_cast<uint8_t>(known.by_row.rank);
      it.row_shape = row_shapes.number(known.by_row);
    }
  }

  const FusedKernel& kernel_;
  const RowSpace& space_;
  const bool aligned_;
  const int multiprocessors_;
  CudaVariant variant_;
  CudaView view_ = CudaView::kEntries;
};

}  // namespace

CudaVariant choose_variant(const FusedKernel& kernel, const RowSpace& space, bool aligned, int multiprocessors) {
  return Chooser(kernel, space, aligned, multiprocessors).choose();
}

}  // namespace hetero::backend
