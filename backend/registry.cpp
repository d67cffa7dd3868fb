#include "backend/registry.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/cuda/cuda_device.h"
#include "backend/sim/sim_device.h"

namespace hetero::backend {
namespace {

std::atomic<Device*> chosen{nullptr};
std::mutex choice_mutex;

// Every device below is made once and leaked. REQUIRES, for these: choice_mutex is held.

Result<Device*> sim_device() {
  static auto& made = *new std::vector<std::unique_ptr<SimDevice>>;
  for (const auto& device : made) {
    if (device->options() == sim_options()) return static_cast<Device*>(device.get());
  }
  Result<std::unique_ptr<SimDevice>> created = SimDevice::create(sim_options());
  if (!created.ok()) return created.status();
  made.push_back(std::move(created.value()));
  return static_cast<Device*>(made.back().get());
}

Result<Device*> cuda_device() {
#if defined(HETERO_WITH_CUDA)
  static CudaDevice* only = nullptr;
  if (only == nullptr) {
    Result<std::unique_ptr<CudaDevice>> created = CudaDevice::create();
    if (!created.ok()) return created.status();
    only = created.value().release();
  }
  return static_cast<Device*>(only);
#else
  return Status(ErrorClass::kDevice, "the accelerator \"cuda\" needs a build with CUDA; this one is CPU-only");
#endif
}

Result<Device*> find_accelerator(std::string_view name) {
  if (name == "none") return static_cast<Device*>(nullptr);
  if (name == "sim") return sim_device();
  if (name == "cuda") return cuda_device();
  return Status(ErrorClass::kUsage, "unknown accelerator \"" + std::string(name) + "\"; choose one of none, sim, cuda");
}

}  // namespace

Device& cpu_device() {
  static CpuDevice& leaked = *new CpuDevice;
  return leaked;
}

Device* accelerator() { return chosen.load(std::memory_order_acquire); }

Status choose_accelerator(std::string_view name) {
  std::lock_guard guard(choice_mutex);
  const Result<Device*> device = find_accelerator(name);
  if (!device.ok()) return device.status();
  chosen.store(device.value(), std::memory_order_release);
  return Status();
}

Device* device_at(DeviceIndex index) { return index == kCpu ? &cpu_device() : accelerator(); }

}  // namespace hetero::backend
