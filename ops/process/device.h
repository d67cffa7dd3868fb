// The device as PyTorch sees it: guard, streams, events and hooks (device.cpp).
//
// PyTorch asks these through its registries for the current device, for the streams and events that
// programs use, and for pinned memory. There is one device, hetero:0.
//
// Thread safety: registration runs once, at import, on the importing thread. What it registers may
// be called from any thread.
// Ownership: the registered objects are leaked on purpose, because PyTorch may call them at exit.

#pragma once

namespace hetero::ops {

// Registers hooks and the allocator of pinned memory. Called once, at import.
void register_device();

}  // namespace hetero::ops
