// Host memory as the CUDA runtime sees it: pageable, or page-locked (pinned), which it copies
// without a detour.
//
// Thread safety: any thread.

#pragma once

#include <cstddef>
#include <cstdint>

namespace hetero::backend {

// Where bytes lie, for a copy.
enum class PageKind : uint8_t { kPageable, kPinned, kDevice };
PageKind page_kind_of(const void* data, size_t bytes);
// Whether kernels of the current GPU reach pinned memory by the host's address.
bool is_reached_by_kernels(const void* data);

// From now on, host_ranges() locks the pages of large host memory that is copied again and again.
void use_page_locks();

}  // namespace hetero::backend
