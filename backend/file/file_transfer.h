// Whole transfers between memory and files: what read, write and sync leave to their callers.
//
// A short transfer is resumed, an interrupted one repeated, and a file that ends too early is an
// error. Every call of the system goes by one seam, FileFaults, so a test can make any of them
// fail. Without a test the seam costs one load.
//
//   if (const int error = write_all(file, offset, bytes)) ... std::strerror(error)
//
// Thread safety: any thread.

#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hetero::backend {

enum class FileCall : uint8_t { kRead, kWrite, kSync };

// What happens to one call of the system.
struct FileFault {
  enum Kind : uint8_t {
    kNone,
    kError,    // fails with `error` before it reaches the file
    kShort,    // moves a part of the bytes and says so
    kTorn,     // moves a part of the bytes and says that it moved all
    kDelay,    // succeeds after `milliseconds`
    kReorder,  // its completion comes after that of the next call, where there is one
  };
  Kind kind = kNone;
  int error = 0;
  int milliseconds = 0;
};

// REQUIRES: next() is thread-safe.
class FileFaults {
 public:
  virtual ~FileFaults() = default;
  virtual FileFault next(FileCall call, int file, int64_t offset, size_t bytes) = 0;
};

// For tests: all calls ask `faults` from now on; null: none does. REQUIRES: it outlives the calls.
void set_file_faults(FileFaults* faults);
FileFault next_file_fault(FileCall call, int file, int64_t offset, size_t bytes);

// How much of `bytes` a short or torn call moves: whole pages where there are several.
size_t part_of(size_t bytes);

// The memory of one transfer, of which a part was moved.
class TransferMemory {
 public:
  explicit TransferMemory(std::vector<iovec> memory);

  size_t left() const { return left_; }
  void advance(size_t bytes);  // REQUIRES: bytes <= left()
  // The next bytes, at most `bytes`. Valid until the next call.
  std::span<const iovec> next(size_t bytes);

 private:
  std::vector<iovec> memory_;
  size_t first_ = 0;  // the first one with bytes left
  size_t left_ = 0;
  size_t cut_ = SIZE_MAX;  // the one that next() shortened
  size_t cut_bytes_ = 0;   // its length before
};

// One call of preadv or pwritev. Returns the bytes moved, or a negative errno.
ssize_t transfer_once(FileCall call, int file, int64_t offset, TransferMemory& memory);

// 0, or an errno; EIO where the file ends too early.
int read_all(int file, int64_t offset, void* data, size_t bytes);
int write_all(int file, int64_t offset, std::string_view bytes);
// The bytes of the file, and its size, are on the disk. 0, or an errno.
int sync_bytes(int file);

}  // namespace hetero::backend
