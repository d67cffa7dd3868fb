// The device as PyTorch sees it: guard, streams, events, hooks; see device.cpp.

#pragma once

namespace hetero::ops {

// Registers hooks and the allocator of pinned memory. Called once, at import.
void register_device();

}  // namespace hetero::ops
