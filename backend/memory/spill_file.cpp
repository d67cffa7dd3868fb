#include "backend/memory/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "backend/base/checksum.h"
#include "backend/base/function_ref.h"
#include "backend/file/file_transfer.h"
#include "backend/memory/range_allocator.h"

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

// Bytes are counted while they are in the caches.
constexpr size_t kPieceBytes = size_t{1} << 20;

// Calls move(offset, bytes) for each piece until it returns an errno. Returns that, or 0.
int in_pieces(size_t bytes, FunctionRef<int(size_t, size_t)> move) {
  ++operations;
  if (faults()) return EIO;
  for (size_t done = 0; done < bytes; done += kPieceBytes) {
    if (const int error = move(done, std::min(kPieceBytes, bytes - done))) return error;
  }
  return 0;
}

// Holes are whole pages.
constexpr uint64_t kPageBytes = 4096;
// The file grows as bytes are taken.
constexpr uint64_t kMostBytes = uint64_t{INT64_MAX} / kPageBytes * kPageBytes;

uint64_t whole_pages(size_t bytes) { return (std::max<uint64_t>(1, bytes) + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

class SpillFile {
 public:
  // The folder's file, made if this process has none.
  static Result<std::shared_ptr<SpillFile>> in(const std::string& folder);
  explicit SpillFile(int descriptor) : descriptor(descriptor) {}
  ~SpillFile() { close(descriptor); }
  SpillFile(const SpillFile&) = delete;

  uint64_t take(size_t bytes) {
    const std::lock_guard guard(mutex_);
    return *free_.take(whole_pages(bytes));
  }
  void give(uint64_t start, size_t bytes) {
    // A forked child has the parent's file and maybe its locks, but not its bytes.
    if (!is_ours()) return;
    // Without holes, the space serves later bytes only. No other thread has the range yet, so the
    // lock is not needed.
    (void)fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                    static_cast<off_t>(whole_pages(bytes)));
    const std::lock_guard guard(mutex_);
    free_.give(start, whole_pages(bytes));
  }

  const int descriptor;

 private:
  bool is_ours() const { return process_ == getpid(); }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  RangeAllocator free_{kMostBytes};  // guarded by mutex_
};

Result<std::shared_ptr<SpillFile>> SpillFile::in(const std::string& folder) {
  struct Files {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<SpillFile>> of_folders;  // guarded by it
  };
  // Never destroyed: bytes may be spilled as long as the process lives.
  static auto* const files = new Files;
  const std::lock_guard guard(files->mutex);
  std::weak_ptr<SpillFile>& known = files->of_folders[folder];
  std::shared_ptr<SpillFile> file = known.lock();
  if (file != nullptr && file->is_ours()) return file;
  const int descriptor = open_unnamed(folder);
  if (descriptor < 0) return storage_error("cannot make a file in " + folder, errno);
  file = std::make_shared<SpillFile>(descriptor);
  known = file;
  return file;
}

Result<std::unique_ptr<SpilledBytes>> SpilledBytes::write(const std::string& folder, const void* data, size_t bytes) {
  Result<std::shared_ptr<SpillFile>> file = SpillFile::in(folder);
  if (!file.ok()) return file.status();
  std::unique_ptr<SpilledBytes> made(new SpilledBytes(std::move(file.value()), bytes));
  Checksum sum;
  const int error = in_pieces(bytes, [&](size_t offset, size_t count) {
    const std::string_view piece(static_cast<const char*>(data) + offset, count);
    sum.update(piece.data(), count);
    return write_all(made->file_->descriptor, static_cast<int64_t>(made->start_ + offset), piece);
  });
  if (error != 0) return storage_error("cannot write to " + folder, error);
  made->checksum_ = sum.value();
  return made;
}

SpilledBytes::SpilledBytes(std::shared_ptr<SpillFile> file, size_t bytes)
    : file_(std::move(file)), bytes_(bytes), start_(file_->take(bytes)) {}

SpilledBytes::~SpilledBytes() { file_->give(start_, bytes_); }

Status SpilledBytes::read(void* data) const {
  Checksum sum;
  const int error = in_pieces(bytes_, [&](size_t offset, size_t count) {
    char* const piece = static_cast<char*>(data) + offset;
    const int failed = read_all(file_->descriptor, static_cast<int64_t>(start_ + offset), piece, count);
    if (failed == 0) sum.update(piece, count);
    return failed;
  });
  if (error != 0) return storage_error("cannot read back", error);
  if (sum.value() == checksum_) return Status();
  return Status(ErrorClass::kStorage, "spill: the file has other bytes than were written");
}

Status check_spill_folder(const std::string& folder) {
  const int descriptor = open_unnamed(folder);
  if (descriptor < 0) return storage_error("cannot make a file in " + folder, errno);
  close(descriptor);
  return Status();
}

void set_spill_faults(int64_t skipped, bool for_ever) {
  faults_for_ever = for_ever;
  operations_to_fault = skipped;
}

int64_t spill_operations() { return operations; }

}  // namespace hetero::backend
