#include "backend/memory/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "backend/memory/allocator.h"

namespace hetero::backend {
namespace {

class HostPageMemory final : public PageMemory {
 public:
  HostPageMemory(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~HostPageMemory() override { munmap(base_, bytes_); }
  HostPageMemory(const HostPageMemory&) = delete;

  size_t bytes() const override { return bytes_; }
  std::byte* base() const override { return base_; }

  // Whole pages of the system, outwards: a page that two parts share belongs to both.
  Status commit(size_t offset, size_t bytes) override {
    const size_t first = offset / kSystemPage * kSystemPage;
    const size_t end = (offset + bytes + kSystemPage - 1) / kSystemPage * kSystemPage;
    if (mprotect(base_ + first, end - first, PROT_READ | PROT_WRITE) == 0) return {};
    return {ErrorClass::kResource, "no memory for " + format_bytes(bytes) + " of pages"};
  }

  // Inwards.
  void release(size_t offset, size_t bytes) override {
    const size_t first = (offset + kSystemPage - 1) / kSystemPage * kSystemPage;
    const size_t end = (offset + bytes) / kSystemPage * kSystemPage;
    if (first >= end) return;
    madvise(base_ + first, end - first, MADV_DONTNEED);
    mprotect(base_ + first, end - first, PROT_NONE);
  }

 private:
  static inline const size_t kSystemPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::byte* base_;
  size_t bytes_;
};

class DevicePageMemory final : public PageMemory {
 public:
  DevicePageMemory(Device& device, size_t bytes) : device_(device), bytes_(bytes) {}

  size_t bytes() const override { return bytes_; }
  std::byte* base() const override { return static_cast<std::byte*>(block_.data()); }

  Status commit(size_t, size_t) override {
    if (parts_ == 0) {
      Result<Block> block = device_.allocate(bytes_);
      if (!block.ok()) return block.status();
      block_ = std::move(block.value());
    }
    ++parts_;
    return {};
  }
  void release(size_t, size_t) override {
    if (--parts_ == 0) block_.reset();
  }

 private:
  Device& device_;
  size_t bytes_;
  Block block_;
  size_t parts_ = 0;
};

class BorrowedPageMemory final : public PageMemory {
 public:
  BorrowedPageMemory(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  size_t bytes() const override { return bytes_; }
  std::byte* base() const override { return base_; }
  Status commit(size_t, size_t) override { return {}; }
  void release(size_t, size_t) override {}

 private:
  std::byte* base_;
  size_t bytes_;
};

}  // namespace

Result<std::unique_ptr<PageMemory>> host_page_memory(size_t bytes) {
  const size_t mapped = bytes == 0 ? 1 : bytes;
  void* const base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status(ErrorClass::kResource, "no range of " + format_bytes(bytes) + " of addresses for pages");
  }
  return std::unique_ptr<PageMemory>(std::make_unique<HostPageMemory>(static_cast<std::byte*>(base), mapped));
}

std::unique_ptr<PageMemory> device_page_memory(Device& device, size_t bytes) {
  return std::make_unique<DevicePageMemory>(device, bytes);
}

std::unique_ptr<PageMemory> borrowed_page_memory(void* base, size_t bytes) {
  return std::make_unique<BorrowedPageMemory>(static_cast<std::byte*>(base), bytes);
}

}  // namespace hetero::backend
