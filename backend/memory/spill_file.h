// SpilledBytes: bytes that had to leave memory, in a file that is private to the process.
//
// All bytes in a folder share one file, so their number does not count against the limit of open
// files. Each has a range of the file from writing to destruction. The file system then gets the
// space back if it can (a hole), and later bytes reuse the range. The file is closed with the last
// of its bytes.
//
// The file has no name (O_TMPFILE, or it is removed at once), so the system frees it however the
// process ends. Bytes are written once and read back any number of times.
//
// Thread safety: any thread; one at a time for the same bytes. A forked child can still read the
// parent's bytes, and its destroying them does not affect the parent. The child writes to a file of
// its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/base/status.h"

namespace hetero::backend {

class SpillFile;

class SpilledBytes {
 public:
  // Writes the bytes. Errors: kStorage, with the folder and the system's message; nothing is left
  // behind.
  static Result<std::unique_ptr<SpilledBytes>> write(const std::string& folder, const void* data, size_t bytes);
  ~SpilledBytes();
  SpilledBytes(const SpilledBytes&) = delete;

  size_t bytes() const { return bytes_; }
  // Reads all bytes into `data`. Errors: kStorage, also if the file has other bytes than were
  // written; `data` is then undefined, and reading may be tried again.
  Status read(void* data) const;

 private:
  SpilledBytes(std::shared_ptr<SpillFile> file, size_t bytes);

  const std::shared_ptr<SpillFile> file_;
  const size_t bytes_;
  const uint64_t start_;
  uint64_t checksum_ = 0;
};

// Whether files can be made in the folder. Errors: those of writing.
Status check_spill_folder(const std::string& folder);

// For tests: after `skipped` more reads and writes of spilled bytes, the next one fails, and with
// `for_ever` all later ones. Negative: none fails.
void set_spill_faults(int64_t skipped, bool for_ever);
// The number of reads and writes so far.
int64_t spill_operations();

}  // namespace hetero::backend
