#include "ops/settings/memory_stats.h"

#include <unistd.h>

#include <algorithm>

#include "backend/registry/registry.h"

namespace hetero::ops {
backend::MemoryStats memory_stats() {
  backend::MemoryStats stats = backend::cpu_device().memory_stats();
  const backend::Devices devices = backend::all_devices();
  for (const backend::Device* const accelerator : backend::accelerators_of(devices)) {
    stats.add(accelerator->memory_stats());
  }
  return stats;
}

c10::CachingDeviceAllocator::DeviceStats device_stats() {
  const backend::MemoryStats stats = memory_stats();
  c10::CachingDeviceAllocator::DeviceStats result;
  auto& allocated = result.allocated_bytes[0];
  allocated.current = stats.allocated_bytes;
  allocated.peak = stats.peak_bytes;
  result.active_bytes[0] = allocated;
  result.requested_bytes[0] = allocated;
  auto& reserved = result.reserved_bytes[0];
  reserved.current = stats.reserved_bytes;
  reserved.peak = stats.reserved_bytes;
  result.allocation[0].allocated = stats.allocations;
  return result;
}

std::pair<size_t, size_t> memory_info() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  const size_t available = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  const auto limit = static_cast<size_t>(backend::cpu_device().memory_stats().limit_bytes);
  if (limit == 0 || limit > total) return {available, total};
  const auto used = static_cast<size_t>(backend::cpu_device().memory_stats().allocated_bytes);
  return {std::min(available, limit > used ? limit - used : 0), limit};
}

void reset_peak() {
  backend::cpu_device().reset_peak();
  const backend::Devices devices = backend::all_devices();
  for (backend::Device* const accelerator : backend::accelerators_of(devices)) accelerator->reset_peak();
}

void empty_cache() {
  backend::cpu_device().empty_cache();
  const backend::Devices devices = backend::all_devices();
  for (backend::Device* const accelerator : backend::accelerators_of(devices)) accelerator->empty_cache();
}

}  // namespace hetero::ops
