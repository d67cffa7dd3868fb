// FusedLevels: the passes over a row that a kernel needs on a GPU, for the writers of kernels
// (source.h, interpreter.h).
//
// A value's level is the number of reductions between it and the loads. The pass of level L has all
// row values up to L. It computes the reductions of level L + 1, and what these need, from the
// loads on. The last pass computes the stored entries.
//
// Thread safety: immutable. Ownership: keeps a reference to the kernel.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/fused/variant.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

class FusedLevels {
 public:
  FusedLevels(const FusedKernel& kernel, const CudaVariant& variant);

  int level(uint16_t value) const { return level_[value]; }
  int last() const { return last_; }
  int reductions() const { return reductions_; }
  // The number of the reduction that makes the value.
  int reduction(uint16_t value) const { return reduction_[value]; }

  bool is_row(uint16_t value) const { return kernel_.values[value].extent == Extent::kRow; }
  // Whether a pass of the level computes this reduction.
  bool is_reduction_of(const FusedStep& step, int level) const {
    return step.kind == FusedStep::Kind::kReduce && level_[step.value] == level + 1;
  }
  bool is_row_store(const FusedStep& step) const {
    return step.kind == FusedStep::Kind::kStore && row_stores_[step.operand] != 0;
  }
  bool is_entry_store(const FusedStep& step) const {
    return step.kind == FusedStep::Kind::kStore && row_stores_[step.operand] == 0;
  }
  bool has_row_stores() const;
  bool has_entry_stores() const;

  // Per value: the element values that a pass of the level needs, or the pass that stores.
  std::vector<uint8_t> needed(int level, bool stores) const;

 private:
  void need(uint16_t value, std::vector<uint8_t>& result) const;

  const FusedKernel& kernel_;
  std::vector<uint8_t> row_stores_;  // by operand
  std::vector<size_t> definition_;   // by value, as what follows
  std::vector<int> level_;
  std::vector<int> reduction_;
  int last_ = 0;
  int reductions_ = 0;
};

}  // namespace hetero::backend
