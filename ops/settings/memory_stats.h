// Memory figures of the hetero device: the host bytes of its tensors, whoever allocated them.
//
// Blocks of the CPU device count like memory that ATen kernels allocated and storages adopted. The
// peak is of the sum.
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
