// How a CUDA error becomes a Status. Included only by the files of cuda/.

#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backend/base/status.h"

namespace hetero::backend {

// An ok Status for cudaSuccess; else kResource for memory that ran out and kDevice for the rest,
// with the runtime's own words. Clears the thread's last CUDA error, which would otherwise surface
// at somebody else's call.
inline Status cuda_status(cudaError_t error, const char* action) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();
  const ErrorClass error_class = error == cudaErrorMemoryAllocation ? ErrorClass::kResource : ErrorClass::kDevice;
  return Status(error_class, std::string("cuda: ") + action + ": " + cudaGetErrorString(error));
}

}  // namespace hetero::backend
