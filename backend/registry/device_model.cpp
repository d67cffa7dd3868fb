#include "backend/registry/device_model.h"

#include "backend/cuda/cuda_device.h"
#include "backend/fault/fault_device.h"

namespace hetero::backend {

std::string model_of(const Device& device) {
  if (const auto* const faulty = dynamic_cast<const FaultDevice*>(&device)) return model_of(faulty->device());
#if defined(HETERO_WITH_CUDA)
  if (const auto* const gpu = dynamic_cast<const CudaDevice*>(&device)) return gpu->model();
#endif
  return "";
}

}  // namespace hetero::backend
