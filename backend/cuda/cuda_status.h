// How a CUDA error becomes a Status. Only files of cuda/ include it.
//
// Thread safety: any thread.

#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backend/base/status.h"

namespace hetero::backend {

// An ok Status for cudaSuccess. Otherwise kResource if memory ran out, or kDevice, with the
// runtime's words. Clears the thread's last CUDA error, which would otherwise surface at an
// unrelated call.
inline Status cuda_status(cudaError_t error, const char* action) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();
  const ErrorClass error_class = error == cudaErrorMemoryAllocation ? ErrorClass::kResource : ErrorClass::kDevice;
  return Status(error_class, std::string("cuda: ") + action + ": " + cudaGetErrorString(error));
}

}  // namespace hetero::backend
