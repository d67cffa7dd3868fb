// ThreadBlock: what the fastest allocators keep per thread, in one thread_local variable.
//
// A library that is loaded by dlopen, as this one is, reaches its thread_local variables by a call.
// So the free lists of handles (pool.h) and the released addresses (address_space.h) share one
// variable. A function that makes several things asks for it once.
//
// There is no tls_model, because torch leaves no static TLS for libraries that are loaded later.
// There are no TLS descriptors, because before glibc 2.40 they may clobber vector registers.
//
// Thread safety: each thread has its own. It is trivial, so it stays usable while the thread ends.

#pragma once

#include <cstdint>

namespace hetero::backend {

namespace pool_detail {
struct FreeObject;

// Free objects of one size.
struct ThreadList {
  FreeObject* head = nullptr;
  uint32_t count = 0;
  // 0 before the thread's first use and after its end: the slow path decides.
  uint32_t capacity = 0;
};
}  // namespace pool_detail

namespace address_space {
struct ThreadCache;
}

struct ThreadBlock {
  static constexpr int kSizes = 32;
  pool_detail::ThreadList lists[kSizes];
  // Null before the thread's first use and after its end.
  address_space::ThreadCache* addresses = nullptr;
};

// The calling thread's block. Const like errno's location: within a function, the compiler calls it
// once.
[[gnu::const]] ThreadBlock& thread_block() noexcept;

}  // namespace hetero::backend
