// The global settings that kernels depend on, as one number: torch's switches for TF32, cuDNN and
// determinism.
//
// A recorded segment holds its kernels' choices under these settings, so it is valid for them
// alone.
//
// Thread safety: any thread.

#pragma once

#include <atomic>
#include <cstdint>

namespace hetero::graph {

using KernelSettings = uint64_t (*)();

namespace detail {
inline std::atomic<KernelSettings> find_settings{nullptr};
}

// Installs the function that reads the settings, before anything runs. `find` allocates nothing.
inline void set_kernel_settings(KernelSettings find) { detail::find_settings.store(find, std::memory_order_release); }

// 0 where no kernel looks at any.
inline uint64_t kernel_settings() {
  const KernelSettings find = detail::find_settings.load(std::memory_order_acquire);
  return find == nullptr ? 0 : find();
}

}  // namespace hetero::graph
