#include "backend/registry/registry.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/cuda/cuda_device.h"
#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"

namespace hetero::backend {
namespace {

std::atomic<Device*> chosen{nullptr};
std::atomic<Device*> faulty_cpu{nullptr};  // in the CPU's stead, where not null
std::mutex choice_mutex;

// Every device below is made once and leaked. REQUIRES, for these: choice_mutex is held.

Result<Device*> sim_device() {
  static auto& made = *new std::vector<std::unique_ptr<SimDevice>>;
  for (const auto& device : made) {
    if (device->options() == sim_options() && device->is_usable()) return static_cast<Device*>(device.get());
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
  return check_accelerator("cuda");
#endif
}

FaultDevice& faults_of(Device& device) {
  static auto& made = *new std::map<Device*, std::unique_ptr<FaultDevice>>;
  std::unique_ptr<FaultDevice>& found = made[&device];
  if (found == nullptr) found = std::make_unique<FaultDevice>(device);
  return *found;
}

Device& real_cpu() {
  static CpuDevice& leaked = *new CpuDevice;
  return leaked;
}

}  // namespace

Device& cpu_device() {
  Device* const faulty = faulty_cpu.load(std::memory_order_acquire);
  return faulty == nullptr ? real_cpu() : *faulty;
}

Device* accelerator() { return chosen.load(std::memory_order_acquire); }

Status check_accelerator(std::string_view name) {
#if !defined(HETERO_WITH_CUDA)
  if (name == "cuda") {
    return Status(ErrorClass::kDevice, "the accelerator \"cuda\" needs a build with CUDA; this one is CPU-only");
  }
#endif
  if (name == "none" || name == "sim" || name == "cuda") return Status();
  return Status(ErrorClass::kUsage, "unknown accelerator \"" + std::string(name) + "\"; choose one of none, sim, cuda");
}

Status choose_accelerator(std::string_view name) {
  if (Status status = check_accelerator(name); !status.ok()) return status;
  std::lock_guard guard(choice_mutex);
  Device* device = nullptr;
  if (name != "none") {
    const Result<Device*> made = name == "sim" ? sim_device() : cuda_device();
    if (!made.ok()) return made.status();
    device = made.value();
  }
  chosen.store(device, std::memory_order_release);
  return Status();
}

void forget_accelerator() { chosen.store(nullptr, std::memory_order_release); }

Device* device_at(DeviceIndex index) { return index == kCpu ? &cpu_device() : accelerator(); }

FaultDevice* interpose_faults(DeviceIndex index) {
  std::lock_guard guard(choice_mutex);
  std::atomic<Device*>& place = index == kCpu ? faulty_cpu : chosen;
  Device* const device = device_at(index);
  if (device == nullptr) return nullptr;
  if (auto* const there = dynamic_cast<FaultDevice*>(device)) return there;
  FaultDevice& faulty = faults_of(*device);
  place.store(&faulty, std::memory_order_release);
  return &faulty;
}

void remove_faults() {
  std::lock_guard guard(choice_mutex);
  faulty_cpu.store(nullptr, std::memory_order_release);
  if (auto* const faulty = dynamic_cast<FaultDevice*>(accelerator())) {
    chosen.store(&faulty->device(), std::memory_order_release);
  }
}

}  // namespace hetero::backend
