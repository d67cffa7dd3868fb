#include "backend/memory/address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/base/size_classes.h"
#include "backend/base/spin_lock.h"

namespace hetero::backend::address_space {
namespace {

// The sanitizers keep shadow memory over the address space and bound where mappings may lie.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kMostBytes = size_t{64} << 30;
#else
constexpr size_t kMostBytes = size_t{16} << 40;
#endif
constexpr size_t kLeastBytes = size_t{1} << 30;

class AddressSpace {
 public:
  AddressSpace() {
    for (size_t bytes = kMostBytes; bytes >= kLeastBytes; bytes /= 2) {
      void* begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (begin == MAP_FAILED) continue;
      madvise(begin, bytes, MADV_DONTDUMP);
      next_ = reinterpret_cast<uintptr_t>(begin);
      end_ = next_ + bytes;
      range_begin.store(next_, std::memory_order_relaxed);
      range_bytes.store(bytes, std::memory_order_release);
      return;
    }
  }

  // Takes up to `count` addresses of a class; fewer only if the range is used up.
  int take(int index, uintptr_t* addresses, int count) {
    std::lock_guard guard(lock_);
    std::vector<uintptr_t>& released = released_[index];
    int taken = 0;
    while (taken < count) {
      uintptr_t address = 0;
      if (!released.empty()) {
        address = released.back();
        released.pop_back();
      } else {
        address = take_unused(index);
        if (address == 0) break;
      }
      addresses[taken++] = address;
    }
    return taken;
  }

  void give(int index, const uintptr_t* addresses, int count) {
    std::lock_guard guard(lock_);
    released_[index].insert(released_[index].end(), addresses, addresses + count);
  }

 private:
  uintptr_t take_unused(int index) {
    const size_t bytes = class_bytes(index);
    if (end_ - next_ >= bytes) {
      const uintptr_t address = next_;
      next_ += bytes;
      return address;
    }
    return split_released(index);
  }

  // The range is used up: a released address of a larger class becomes addresses of this class, for
  // good.
  uintptr_t split_released(int index) {
    const size_t bytes = class_bytes(index);
    for (int larger = index + 1; larger < kSizeClasses; ++larger) {
      if (released_[larger].empty()) continue;
      const uintptr_t address = released_[larger].back();
      released_[larger].pop_back();
      const uintptr_t end = address + class_bytes(larger);
      for (uintptr_t piece = address + bytes; piece + bytes <= end; piece += bytes) {
        released_[index].push_back(piece);
      }
      return address;
    }
    return 0;
  }

  ForkSafeSpinLock lock_;
  uintptr_t next_ = 0;
  uintptr_t end_ = 0;
  std::vector<uintptr_t> released_[kSizeClasses];
};

// Leaked: storages may die after static destructors have run.
AddressSpace& space() {
  static AddressSpace& leaked = *new AddressSpace;
  return leaked;
}

// Trivial, so that it stays readable while the thread ends.
constinit thread_local bool thread_is_ending = false;

struct ThreadCacheOwner {
  ThreadCache cache;
  ThreadCacheOwner() { thread_block().addresses = &cache; }
  ~ThreadCacheOwner() {
    thread_block().addresses = nullptr;
    thread_is_ending = true;
    for (int index = 0; index < ThreadCache::kClasses; ++index) {
      ThreadCache::Stack& stack = cache.stacks[index];
      if (stack.count != 0) space().give(index, stack.addresses, stack.count);
    }
  }
};

// The stack of this thread for a class, or null where the class or the thread has none.
ThreadCache::Stack* open_stack(int index) {
  if (index >= ThreadCache::kClasses || thread_is_ending) return nullptr;
  if (thread_block().addresses == nullptr) {
    // On the heap: a thread_local of this size would take up the scarce static TLS of a shared
    // library.
    static thread_local const std::unique_ptr<ThreadCacheOwner> owner = std::make_unique<ThreadCacheOwner>();
  }
  return &thread_block().addresses->stacks[index];
}

struct GuardedRange {
  std::atomic<uintptr_t> begin{0};  // 0 when the slot is free
  std::atomic<size_t> bytes{0};     // 0 while the slot is being filled
};

constexpr int kMaxGuardedRanges = 16;
GuardedRange guarded_ranges[kMaxGuardedRanges];

bool is_guarded(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  for (const GuardedRange& range : guarded_ranges) {
    const size_t bytes = range.bytes.load(std::memory_order_acquire);
    if (value - range.begin.load(std::memory_order_relaxed) < bytes) return true;
  }
  return false;
}

std::atomic<Describe> describe_storage{nullptr};
std::atomic<const void*> last_explained{nullptr};
struct sigaction previous_segv;
struct sigaction previous_bus;

// Text assembled without stdio or allocation, as a signal handler must.
class SignalSafeText {
 public:
  void add(const char* text) {
    while (*text != '\0' && length_ < sizeof(buffer_)) buffer_[length_++] = *text++;
  }
  void add_address(const void* address) {
    add("0x");
    const auto value = reinterpret_cast<uintptr_t>(address);
    for (int shift = 44; shift >= 0; shift -= 4) {
      const char digit[] = {"0123456789abcdef"[(value >> shift) & 15], '\0'};
      add(digit);
    }
  }
  void add_description(Describe describe, const void* address) {
    if (describe == nullptr) return;
    char description[256];
    const size_t written = describe(address, description, sizeof(description) - 1);
    if (written == 0 || written >= sizeof(description)) return;
    description[written] = '\0';
    add(" (");
    add(description);
    add(")");
  }
  void write_to_stderr() const {
    size_t done = 0;
    while (done < length_) {
      const ssize_t count = write(STDERR_FILENO, buffer_ + done, length_ - done);
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
  }

 private:
  char buffer_[640];
  size_t length_ = 0;
};

void explain_fault(const void* address) {
  // A previous handler that returns makes the same instruction fault again; report it once.
  if (last_explained.exchange(address, std::memory_order_relaxed) == address) return;
  SignalSafeText text;
  text.add("hetero: the host touched the bytes of a hetero tensor at ");
  text.add_address(address);
  text.add_description(describe_storage.load(std::memory_order_relaxed), address);
  text.add("; call .cpu() (or .numpy()) to read it on the host\n");
  text.write_to_stderr();
}

void handle_fault(int signal, siginfo_t* info, void* context) {
  const void* address = info->si_addr;
  const bool is_fault = info->si_code > 0;  // not kill() or raise(), which carry no address
  if (is_fault && (contains(address) || is_guarded(address))) explain_fault(address);

  const struct sigaction& previous = signal == SIGBUS ? previous_bus : previous_segv;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // The instruction runs again on return and meets the default action. Signals that were sent are
    // sent again.
    sigaction(signal, &previous, nullptr);
    if (!is_fault) raise(signal);
  }
}

}  // namespace

void* reserve_slow(size_t bytes) {
  if (bytes > kLargestClassBytes) return nullptr;
  const int index = size_class(bytes);
  ThreadCache::Stack* stack = open_stack(index);
  uintptr_t address = 0;
  if (stack == nullptr) {
    space().take(index, &address, 1);
  } else {
    stack->count = space().take(index, stack->addresses, ThreadCache::kCapacity / 2);
    if (stack->count != 0) address = stack->addresses[--stack->count];
  }
  return reinterpret_cast<void*>(address);
}

void release_slow(void* address, size_t bytes) {
  assert(bytes <= kLargestClassBytes);
  const int index = size_class(bytes);
  const auto released = reinterpret_cast<uintptr_t>(address);
  ThreadCache::Stack* stack = open_stack(index);
  if (stack == nullptr) {
    space().give(index, &released, 1);
    return;
  }
  if (stack->count == ThreadCache::kCapacity) {
    // The latest half stays.
    constexpr int kHalf = ThreadCache::kCapacity / 2;
    space().give(index, stack->addresses, kHalf);
    std::copy(stack->addresses + kHalf, stack->addresses + ThreadCache::kCapacity, stack->addresses);
    stack->count = kHalf;
  }
  stack->addresses[stack->count++] = released;
}

void install_fault_handler(Describe describe) {
  describe_storage.store(describe, std::memory_order_relaxed);
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = handle_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    // The handler may run as soon as it is installed, so the previous one is read first.
    sigaction(SIGSEGV, nullptr, &previous_segv);
    sigaction(SIGBUS, nullptr, &previous_bus);
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    return true;
  }();
  static_cast<void>(installed);
}

bool guard_range(const void* begin, size_t bytes) {
  for (GuardedRange& range : guarded_ranges) {
    uintptr_t free_slot = 0;
    if (range.begin.compare_exchange_strong(free_slot, reinterpret_cast<uintptr_t>(begin))) {
      range.bytes.store(bytes, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void unguard_range(const void* begin) {
  for (GuardedRange& range : guarded_ranges) {
    if (range.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(begin)) {
      range.bytes.store(0, std::memory_order_relaxed);
      range.begin.store(0, std::memory_order_release);
      return;
    }
  }
}

}  // namespace hetero::backend::address_space
