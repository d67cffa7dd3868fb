// PageMemory: a fixed range of addresses whose parts get memory when they are needed and give it
// back.
//
// A pool of pages (graph/kv/page_pool.h) wants one base address for all pages, however many there
// are at the moment, so that a kernel finds page i at base + i * bytes. The range is reserved as a
// whole; only committed parts may be touched.
//
//   host_page_memory      reserved addresses of the process; committing maps memory there
//   device_page_memory    memory of a device, which has no such mappings: the first commit takes
//                         all of it, and releasing the last part gives it back
//   borrowed_page_memory  memory of the caller, such as a tensor's; commit and release do nothing
//
// Thread safety: none; the owner's.
// Ownership: the device and borrowed memory must outlive it.

#pragma once

#include <cstddef>
#include <memory>

#include "backend/base/status.h"
#include "backend/device/device.h"

namespace hetero::backend {

class PageMemory {
 public:
  virtual ~PageMemory() = default;
  virtual size_t bytes() const = 0;
  // The address of byte 0; null while there is none (a device before its first commit).
  virtual std::byte* base() const = 0;
  // Gives a part memory. Errors: kResource; nothing has changed then. REQUIRES: the part was not
  // committed.
  virtual Status commit(size_t offset, size_t bytes) = 0;
  // REQUIRES: the part was committed by one call.
  virtual void release(size_t offset, size_t bytes) = 0;
};

// Errors: kResource if the process has no such range of addresses.
Result<std::unique_ptr<PageMemory>> host_page_memory(size_t bytes);
std::unique_ptr<PageMemory> device_page_memory(Device& device, size_t bytes);
std::unique_ptr<PageMemory> borrowed_page_memory(void* base, size_t bytes);

}  // namespace hetero::backend
