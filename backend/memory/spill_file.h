// SpilledBytes: bytes that had to leave memory, in a file that nobody else sees.
//
// All bytes in a folder share one file, so that their number does not matter to the limit of open
// files: each has a range of it, from when it is written until it is destroyed. Then the file
// system gets the space back where it can (a hole), and later bytes the range. The file is closed
// with the last of its bytes.
//
// It has no name (O_TMPFILE, or removed as soon as it is made), so the system frees it when the
// process ends, however it ends. Bytes are written once and read back as often as wanted.
//
// Thread safety: any thread; one at a time for the same bytes. In a forked child the parent's bytes
// stay readable, and the parent does not notice when the child destroys them; what the child writes
// goes to a file of its own.

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
  // Errors: kStorage, with the folder and what the system says. Nothing is left behind then.
  static Result<std::unique_ptr<SpilledBytes>> write(const std::string& folder, const void* data, size_t bytes);
  ~SpilledBytes();
  SpilledBytes(const SpilledBytes&) = delete;

  size_t bytes() const { return bytes_; }
  // Into `data`, all of it. Errors: kStorage; what `data` holds is then not defined, and reading
  // may be tried again.
  Status read(void* data) const;

 private:
  SpilledBytes(std::shared_ptr<SpillFile> file, size_t bytes);

  const std::shared_ptr<SpillFile> file_;
  const size_t bytes_;
  const uint64_t start_;
};

// Whether files can be made in the folder. Errors: as those of writing.
Status check_spill_folder(const std::string& folder);

// For tests: of all reads and writes of spilled bytes from now on, the one after the next `skipped`
// fails, and with `for_ever` all that come later; negative: none does.
void set_spill_faults(int64_t skipped, bool for_ever);
// So many there were.
int64_t spill_operations();

}  // namespace hetero::backend
