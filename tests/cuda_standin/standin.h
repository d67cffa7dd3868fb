// What the parts of the stand-in for CUDA (standin_cuda.cpp) share.
//
// Thread safety: any thread.

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace standin {

// Where the bytes at an address, of the device or the host, can be read and written.
void* access_to(const void* address);

// Does it now and counts it as a launch on the stream, or makes it a part of the stream's capture.
// `name` is kept.
cudaError_t launch_kernel(cudaStream_t stream, const char* name, dim3 grid, dim3 block,
                          std::function<void()> run = nullptr);

// From the first call on that needs one there is a context of the device.
void make_context();

// Bytes of the device.
size_t memory_limit();

// Whether an environment variable is set to something other than 0.
bool environment_flag(const char* name);

// Notes an error for cudaGetLastError.
cudaError_t noted(cudaError_t error);

}  // namespace standin
