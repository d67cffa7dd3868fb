#include "backend/cpu/fused/executable_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace hetero::backend {
namespace {
std::atomic<size_t> in_use{0};
}

ExecutableMemory::~ExecutableMemory() {
  if (data_ == nullptr) return;
  munmap(data_, bytes_);
  in_use.fetch_sub(bytes_, std::memory_order_relaxed);
}

ExecutableMemory ExecutableMemory::copy(std::span<const uint8_t> code, size_t limit) {
  ExecutableMemory memory;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (code.size() + page - 1) / page * page;
  if (bytes == 0) return memory;
  if (in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data != MAP_FAILED) {
      std::memcpy(data, code.data(), code.size());
      if (mprotect(data, bytes, PROT_READ | PROT_EXEC) == 0) {
        memory.data_ = data;
        memory.bytes_ = bytes;
        return memory;
      }
      munmap(data, bytes);
    }
  }
  in_use.fetch_sub(bytes, std::memory_order_relaxed);
  return memory;
}

size_t ExecutableMemory::bytes_in_use() { return in_use.load(std::memory_order_relaxed); }

}  // namespace hetero::backend
