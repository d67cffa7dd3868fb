#include "ops/program/caller_stream.h"

#include "backend/registry/registry.h"

#if defined(HETERO_WITH_CUDA)
#include "backend/cuda/cuda_device.h"
#endif

namespace hetero::ops {
namespace {

Status no_gpu() {
  const backend::Device* const device = backend::accelerator();
  return Status(ErrorClass::kUsage,
                "streams of the caller are those of the accelerator 'cuda', and the accelerator is " +
                    (device == nullptr ? std::string("none") : "'" + device->name() + "'"));
}

}  // namespace

#if defined(HETERO_WITH_CUDA)

Status wait_for_stream(void* stream) {
  auto* const gpu = dynamic_cast<backend::CudaDevice*>(backend::accelerator());
  return gpu == nullptr ? no_gpu() : gpu->wait_for_stream(stream);
}

Status let_stream_wait(void* stream) {
  auto* const gpu = dynamic_cast<backend::CudaDevice*>(backend::accelerator());
  return gpu == nullptr ? no_gpu() : gpu->let_stream_wait(stream);
}

#else

Status wait_for_stream(void*) { return no_gpu(); }
Status let_stream_wait(void*) { return no_gpu(); }

#endif

}  // namespace hetero::ops
