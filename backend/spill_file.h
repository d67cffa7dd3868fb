// SpillFile: bytes that had to leave memory, in a file that nobody else sees.
//
// The file has no name (O_TMPFILE, or removed as soon as it is made), so the system frees it when the process ends, however it ends. Bytes are written
// once and read back as often as wanted.
//
// Thread safety: one thread at a time for each file; faults may be set from any thread. In a forked child the file is the parent's and stays readable.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/status.h"

namespace hetero::backend {

class SpillFile {
 public:
  // Errors: kStorage, with the folder and what the system says. Nothing is left behind then.
  static Result<std::unique_ptr<SpillFile>> create(const std::string& folder, const void* data, size_t bytes);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;

  size_t bytes() const { return bytes_; }
  // Into `data`, all of it. Errors: kStorage; what `data` holds is then not defined, and reading may be tried again.
  Status read(void* data) const;

 private:
  SpillFile(int file, size_t bytes) : file_(file), bytes_(bytes) {}

  const int file_;
  const size_t bytes_;
};

// For tests: of all reads and writes of spill files from now on, the one after the next `skipped` fails, and with `for_ever` all that come later; negative:
// none does.
void set_spill_faults(int64_t skipped, bool for_ever);
// So many there were.
int64_t spill_operations();

}  // namespace hetero::backend
