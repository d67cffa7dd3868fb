#include "backend/registry/registry.h"

#include <array>
#include <atomic>
#include <charconv>
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

// By DeviceIndex; the CPU's is not used.
std::array<std::atomic<Device*>, kMostDevices> chosen{};
std::atomic<Device*> faulty_cpu{nullptr};  // in the CPU's stead, where not null
std::mutex choice_mutex;

// Every device below is made once and leaked. REQUIRES, for these: choice_mutex is held.

using Chosen = std::vector<Device*>;

Result<Chosen> sim_devices(size_t count) {
  using Made = std::vector<std::unique_ptr<SimDevice>>;
  static auto& made = *new std::vector<Made>;
  const auto pointers = [](const Made& devices) {
    Chosen found;
    for (const auto& device : devices) found.push_back(device.get());
    return found;
  };
  for (const Made& devices : made) {
    if (devices.size() == count && devices[0]->options() == sim_options() && devices[0]->is_usable()) {
      return pointers(devices);
    }
  }
  Result<Made> created = SimDevice::create_machine(sim_options(), count);
  if (!created.ok()) return created.status();
  made.push_back(std::move(created.value()));
  return pointers(made.back());
}

Result<Chosen> cuda_devices() {
#if defined(HETERO_WITH_CUDA)
  static CudaDevice* only = nullptr;
  if (only == nullptr) {
    Result<std::unique_ptr<CudaDevice>> created = CudaDevice::create();
    if (!created.ok()) return created.status();
    only = created.value().release();
  }
  return Chosen{only};
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

// How many simulated accelerators "sim" or "sim:N" asks for; 0 for any other name.
size_t count_of_sim(std::string_view name) {
  constexpr std::string_view kPrefix = "sim:";
  if (name == "sim") return 1;
  if (!name.starts_with(kPrefix)) return 0;
  const std::string_view digits = name.substr(kPrefix.size());
  size_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  return error == std::errc() && end == digits.data() + digits.size() && count < kMostDevices ? count : 0;
}

void choose(const Chosen& devices) {
  for (size_t d = 1; d < kMostDevices; ++d) {
    chosen[d].store(d <= devices.size() ? devices[d - 1] : nullptr, std::memory_order_release);
  }
}

}  // namespace

bool is_simulated(std::string_view name) { return count_of_sim(name) != 0; }

bool is_gpu(std::string_view name) { return name == "cuda"; }

Device& cpu_device() {
  Device* const faulty = faulty_cpu.load(std::memory_order_acquire);
  return faulty == nullptr ? real_cpu() : *faulty;
}

Device* accelerator() { return chosen[kAccelerator].load(std::memory_order_acquire); }

Devices all_devices() {
  Devices devices{&cpu_device()};
  for (DeviceIndex d = 1; d < kMostDevices; ++d) {
    devices[d] = chosen[d].load(std::memory_order_acquire);
    if (devices[d] == nullptr) break;
  }
  return devices;
}

Status check_accelerator(std::string_view name) {
#if !defined(HETERO_WITH_CUDA)
  if (name == "cuda") {
    return Status(ErrorClass::kDevice, "the accelerator \"cuda\" needs a build with CUDA; this one is CPU-only");
  }
#endif
  if (name == "none" || is_simulated(name) || is_gpu(name)) return Status();
  return Status(ErrorClass::kUsage, "unknown accelerator \"" + std::string(name) + "\"; choose one of none, sim, cuda");
}

Status choose_accelerator(std::string_view name) {
  if (Status status = check_accelerator(name); !status.ok()) return status;
  std::lock_guard guard(choice_mutex);
  Chosen devices;
  if (name != "none") {
    Result<Chosen> made = is_simulated(name) ? sim_devices(count_of_sim(name)) : cuda_devices();
    if (!made.ok()) return made.status();
    devices = std::move(made.value());
  }
  choose(devices);
  return Status();
}

void forget_accelerator() { choose({}); }

Device* device_at(DeviceIndex index) {
  return index == kCpu ? &cpu_device() : chosen[index].load(std::memory_order_acquire);
}

FaultDevice* interpose_faults(DeviceIndex index) {
  std::lock_guard guard(choice_mutex);
  std::atomic<Device*>& place = index == kCpu ? faulty_cpu : chosen[index];
  Device* const device = device_at(index);
  if (device == nullptr) return nullptr;
  if (auto* const there = dynamic_cast<FaultDevice*>(device)) return there;
  FaultDevice& faulty = faults_of(*device);
  faulty.heal();  // of what failed when it was used last
  place.store(&faulty, std::memory_order_release);
  return &faulty;
}

void remove_faults() {
  std::lock_guard guard(choice_mutex);
  faulty_cpu.store(nullptr, std::memory_order_release);
  for (std::atomic<Device*>& place : chosen) {
    auto* const faulty = dynamic_cast<FaultDevice*>(place.load(std::memory_order_acquire));
    if (faulty != nullptr) place.store(&faulty->device(), std::memory_order_release);
  }
}

}  // namespace hetero::backend
