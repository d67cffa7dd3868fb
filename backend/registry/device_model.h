// The product model of a device, so that measurements of another model are not used for it.
//
// Thread safety: any thread.

#pragma once

#include <string>

#include "backend/device/device.h"

namespace hetero::backend {

// "NVIDIA H200, driver 12040" for a GPU; "" if the device's name suffices.
std::string model_of(const Device& device);

}  // namespace hetero::backend
