#include "backend/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace hetero::backend {
namespace {

std::atomic<int64_t> operations_to_fault{-1};
std::atomic<bool> faults_for_ever{false};
std::atomic<int64_t> operations{0};

bool faults() {
  int64_t left = operations_to_fault.load();
  if (left < 0) return false;
  if (left == 0 && faults_for_ever) return true;
  operations_to_fault = left - 1;
  return left == 0;
}

Status storage_error(const std::string& what, int error) {
  return Status(ErrorClass::kStorage, "spill: " + what + ": " + std::generic_category().message(error));
}

// A file without a name, or -1.
int open_unnamed(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  std::string path = folder + "/hetero-spill-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

// Moves all bytes, in as many calls as the system needs. `move` is pread or pwrite. Returns 0 or an errno.
template <typename Byte, typename Move>
int transfer(int file, Byte* data, size_t bytes, Move move) {
  ++operations;
  if (faults()) return EIO;
  for (size_t done = 0; done < bytes;) {
    const ssize_t moved = move(file, data + done, bytes - done, static_cast<off_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;  // the file is shorter than it was written
    done += static_cast<size_t>(moved);
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<SpillFile>> SpillFile::create(const std::string& folder, const void* data, size_t bytes) {
  const int file = open_unnamed(folder);
  if (file < 0) return storage_error("cannot make a file in " + folder, errno);
  std::unique_ptr<SpillFile> made(new SpillFile(file, bytes));
  const int error = transfer(file, static_cast<const char*>(data), bytes, pwrite);
  if (error != 0) return storage_error("cannot write to " + folder, error);
  return made;
}

SpillFile::~SpillFile() { close(file_); }

Status SpillFile::read(void* data) const {
  const int error = transfer(file_, static_cast<char*>(data), bytes_, pread);
  return error == 0 ? Status() : storage_error("cannot read back", error);
}

void set_spill_faults(int64_t skipped, bool for_ever) {
  faults_for_ever = for_ever;
  operations_to_fault = skipped;
}

int64_t spill_operations() { return operations; }

}  // namespace hetero::backend
