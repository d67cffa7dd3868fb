// Memory figures of the hetero device: what its tensors hold on the host, whoever allocated it.
//
// Blocks of the CPU device and memory that ATen kernels allocated and storages adopted count alike. The peak is of the sum.
//
// Thread safety: any thread.

#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <utility>

#include "backend/device/device.h"

namespace hetero::ops {

backend::MemoryStats memory_stats();
c10::CachingDeviceAllocator::DeviceStats device_stats();
// Free and total bytes.
std::pair<size_t, size_t> memory_info();
void reset_peak();
// Gives cached blocks back to the system.
void empty_cache();

}  // namespace hetero::ops
