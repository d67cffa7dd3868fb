#include "ops/settings/memory_stats.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "backend/registry/registry.h"

namespace hetero::ops {
namespace {

std::vector<backend::Device*> accelerators() {
  const backend::Devices devices = backend::all_devices();
  return {devices.begin() + 1, std::find(devices.begin() + 1, devices.end(), nullptr)};
}

}  // namespace

backend::MemoryStats memory_stats() {
  backend::MemoryStats stats = backend::cpu_device().memory_stats();
  for (const backend::Device* const accelerator : accelerators()) {
    const backend::MemoryStats other = accelerator->memory_stats();
    stats.allocated_bytes += other.allocated_bytes;
    stats.peak_bytes += other.peak_bytes;
    stats.reserved_bytes += other.reserved_bytes;
    stats.allocations += other.allocations;
    stats.reused_blocks += other.reused_blocks;
    stats.reused_bytes += other.reused_bytes;
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
  for (backend::Device* const accelerator : accelerators()) accelerator->reset_peak();
}

void empty_cache() {
  backend::cpu_device().empty_cache();
  for (backend::Device* const accelerator : accelerators()) accelerator->empty_cache();
}

}  // namespace hetero::ops
