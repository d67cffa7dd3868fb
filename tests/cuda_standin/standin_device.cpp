// What the stand-in (standin_cuda.cpp) says of its device, one like an H100 with less memory, and
// the driver: contexts, modules, whose functions may have any name since code for GPUs is not
// looked at, and launches of them. One of these does its work (standin_pieces.cpp).

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "backend/cuda/pieces.h"
#include "standin.h"

namespace standin {

void run_copy_pieces(unsigned blocks, hetero::backend::PieceArguments arguments);

namespace {

std::atomic<bool> has_context{false};

struct Module {};

struct Function {
  std::string name;
};

cudaDeviceProp describe() {
  cudaDeviceProp it = {};
  std::strcpy(it.name, "Stand-in");
  it.uuid.bytes[0] = 1;
  it.totalGlobalMem = memory_limit();
  it.major = 9, it.minor = 0;
  it.multiProcessorCount = 132;
  it.warpSize = 32;
  it.maxThreadsPerBlock = 1024;
  it.maxThreadsPerMultiProcessor = 2048;
  it.maxBlocksPerMultiProcessor = 32;
  it.maxThreadsDim[0] = it.maxThreadsDim[1] = 1024, it.maxThreadsDim[2] = 64;
  it.maxGridSize[0] = 2147483647, it.maxGridSize[1] = it.maxGridSize[2] = 65535;
  it.regsPerBlock = it.regsPerMultiprocessor = 65536;
  it.sharedMemPerBlock = 49152, it.sharedMemPerBlockOptin = 232448;
  it.sharedMemPerMultiprocessor = 233472, it.reservedSharedMemPerBlock = 1024;
  it.totalConstMem = 65536;
  it.l2CacheSize = 50 << 20;
  it.memoryBusWidth = 5120;
  it.asyncEngineCount = 3;
  it.concurrentKernels = it.unifiedAddressing = it.canMapHostMemory = it.streamPrioritiesSupported = 1;
  it.cooperativeLaunch = it.hostRegisterSupported = it.memoryPoolsSupported = 1;
  it.textureAlignment = it.surfaceAlignment = it.memPitch = 512;
  return it;
}

int attribute(int which) {
  const cudaDeviceProp it = describe();
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      return it.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return it.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return it.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return it.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return it.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return it.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return it.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(it.sharedMemPerBlock);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(it.sharedMemPerBlockOptin);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(it.sharedMemPerMultiprocessor);
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return static_cast<int>(it.reservedSharedMemPerBlock);
    case cudaDevAttrTotalConstantMemory:
      return static_cast<int>(it.totalConstMem);
    case cudaDevAttrWarpSize:
      return it.warpSize;
    case cudaDevAttrMaxRegistersPerBlock:
      return it.regsPerBlock;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return it.regsPerMultiprocessor;
    case cudaDevAttrClockRate:
      return 1980000;
    case cudaDevAttrMemoryClockRate:
      return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth:
      return it.memoryBusWidth;
    case cudaDevAttrL2CacheSize:
      return it.l2CacheSize;
    case cudaDevAttrTextureAlignment:
      return 512;
    case cudaDevAttrMultiProcessorCount:
      return it.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return it.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return it.maxBlocksPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor:
      return it.major;
    case cudaDevAttrComputeCapabilityMinor:
      return it.minor;
    case cudaDevAttrAsyncEngineCount:
      return it.asyncEngineCount;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

void make_context() { has_context = true; }

}  // namespace standin

using namespace standin;

extern "C" {

// ---- The runtime

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDA_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device != 0) return noted(cudaErrorInvalidDevice);
  make_context();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  if (device != 0) return noted(cudaErrorInvalidDevice);
  *result = describe();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device != 0) return noted(cudaErrorInvalidDevice);
  *value = attribute(which);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* result, int bytes, int) {
  std::snprintf(result, static_cast<size_t>(bytes), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return noted(cudaErrorPeerAccessUnsupported); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, (std::string(symbol) + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(RTLD_DEFAULT, symbol);
  const bool found = *function != nullptr;
  if (result != nullptr) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* result) {
  cudaGetDriverEntryPointByVersion(symbol, function, static_cast<unsigned>(version), flags, nullptr);
  const bool found = *function != nullptr;
  if (result != nullptr) *result = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- The driver

CUresult cuInit(unsigned) { return environment_flag("STANDIN_NO_DRIVER") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = CUDA_VERSION, cuInit(0); }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  return *value = attribute(which), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  return *flags = 0, *active = has_context, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  make_context();
  return cuCtxGetCurrent(context);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = has_context ? reinterpret_cast<CUcontext>(&has_context) : nullptr, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
  return *text = cudaGetErrorString(static_cast<cudaError_t>(error)), CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  return *text = cudaGetErrorName(static_cast<cudaError_t>(error)), CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  cudaPointerAttributes it;
  cudaPointerGetAttributes(&it, reinterpret_cast<void*>(address));
  if (it.type == cudaMemoryTypeUnregistered) return CUDA_ERROR_INVALID_VALUE;
  if (which == CU_POINTER_ATTRIBUTE_CONTEXT) return cuCtxGetCurrent(static_cast<CUcontext*>(value));
  if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return *static_cast<int*>(value) = 0, CUDA_SUCCESS;
  if (which != CU_POINTER_ATTRIBUTE_MEMORY_TYPE) return CUDA_ERROR_NOT_SUPPORTED;
  *static_cast<unsigned*>(value) = it.type == cudaMemoryTypeHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  return *module = reinterpret_cast<CUmodule>(new Module), CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule module) { return delete reinterpret_cast<Module*>(module), CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  return *function = reinterpret_cast<CUfunction>(new Function{name}), CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
  return *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** parameters, void**) {
  const char* const name = reinterpret_cast<Function*>(function)->name.c_str();
  std::function<void()> run;
  if (std::strcmp(name, "hetero_copy_pieces") == 0) {
    const auto arguments = *static_cast<const hetero::backend::PieceArguments*>(parameters[0]);
    run = [=] { run_copy_pieces(grid_x, arguments); };
  }
  return static_cast<CUresult>(
      launch_kernel(stream, name, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, std::move(run)));
}

}  // extern "C"
