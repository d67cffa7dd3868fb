#include "backend/cuda/host_pages.h"

#include <atomic>

#include "backend/base/spin_lock.h"
#include "backend/cuda/cuda_status.h"
#include "backend/memory/host_ranges.h"

namespace hetero::backend {
namespace {

// Of the host's memory, for HostRanges: whole pages, which nobody else has a part of.
constexpr uintptr_t kPageBytes = 4096;

void* first_page(const void* data) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) & ~(kPageBytes - 1));
}

bool lock_pages(void* data, size_t bytes) {
  void* const begin = first_page(data);
  const size_t before = static_cast<size_t>(static_cast<char*>(data) - static_cast<char*>(begin));
  const cudaError_t error = cudaHostRegister(begin, before + bytes, cudaHostRegisterPortable);
  return cuda_status(error, "cudaHostRegister").ok();
}

std::atomic<int> locking_generation{0};  // the fork generation of the process that locks

void unlock_pages(void* data) {
  if (fork_generation() != locking_generation.load()) return;
  static_cast<void>(cuda_status(cudaHostUnregister(first_page(data)), "cudaHostUnregister"));
}

}  // namespace

PageKind page_kind_of(const void* data, size_t bytes) {
  cudaPointerAttributes attributes = {};
  if (!cuda_status(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes").ok()) {
    return PageKind::kPageable;
  }
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return host_ranges().is_locked(data, bytes) ? PageKind::kPinned : PageKind::kPageable;
  }
  return attributes.type == cudaMemoryTypeHost ? PageKind::kPinned : PageKind::kDevice;
}

bool is_reached_by_kernels(const void* data) {
  cudaPointerAttributes attributes = {};
  return cuda_status(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes").ok() &&
         attributes.type == cudaMemoryTypeHost && attributes.devicePointer == data;
}

void use_page_locks() {
  locking_generation = fork_generation();
  host_ranges().set_locks({lock_pages, unlock_pages});
}

}  // namespace hetero::backend
