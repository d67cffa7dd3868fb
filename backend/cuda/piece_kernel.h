// PieceKernel: the kernel that copies many pieces (pieces.cu), on one GPU.
//
// Thread safety: any thread, with the GPU current.

#pragma once

#include <cstddef>
#include <mutex>

#include "backend/base/status.h"
#include "backend/cuda/pieces.h"

namespace hetero::backend {

class CudaDriver;

class PieceKernel {
 public:
  // Loads the kernel at the first call. False where the build has no nvcc, or the machine no driver
  // for its code.
  bool is_there();
  // Copies `bytes` in all. The table is in memory that the GPU reaches, until the kernel has run.
  // Errors: kDevice. REQUIRES: is_there().
  Status launch(const CopyPiece* table, size_t count, size_t bytes, void* stream) const;

 private:
  std::once_flag loaded_;
  const CudaDriver* driver_ = nullptr;
  void* function_ = nullptr;
};

}  // namespace hetero::backend
