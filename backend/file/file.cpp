#include "backend/file/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace hetero::backend {
namespace {

Status cannot(const char* what, const std::string& path, int error) {
  return Status(ErrorClass::kStorage, std::string("cannot ") + what + ' ' + path + ": " + std::strerror(error));
}

// Not in the memory of a tmpfs or a ramfs.
bool lies_on_disk(int file) {
  constexpr decltype(statfs::f_type) kRamfs = 0x858458f6;
  struct statfs system;
  return fstatfs(file, &system) == 0 && system.f_type != TMPFS_MAGIC && system.f_type != kRamfs;
}

// Closed at the end of its scope.
struct OpenFile {
  int number;
  explicit OpenFile(int file) : number(file) {}
  OpenFile(const OpenFile&) = delete;
  ~OpenFile() {
    if (number >= 0) close(number);
  }
};

// The file that is to be made or replaced: where a path is a link, what it leads to. There may be
// none yet.
Result<std::string> target_of(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == kMostLinks) return cannot("write", path, ELOOP);
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) return cannot("write", path, error.value());
    target = target.parent_path() / next;
  }
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return Status(ErrorClass::kStorage, "cannot write " + path + ": it is not a file");
  }
  return target.string();
}

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path, bool read_now) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (file.number < 0 || fstat(file.number, &facts) != 0) return cannot("read", path, errno);
  if (!S_ISREG(facts.st_mode)) return Status(ErrorClass::kStorage, "cannot read " + path + ": it is not a file");
  const auto size = static_cast<size_t>(facts.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | (read_now ? MAP_POPULATE : 0), file.number, 0);
    if (data == MAP_FAILED) return cannot("read", path, errno);
    if (!read_now) madvise(data, size, MADV_WILLNEED);
  }
  return std::shared_ptr<MappedFile>(
      new MappedFile(path, data, size, lies_on_disk(file.number), facts.st_dev, facts.st_ino));
}

bool MappedFile::is(int file) const {
  struct stat facts {};
  return fstat(file, &facts) == 0 && facts.st_dev == device_ && facts.st_ino == number_;
}

bool drop_pages(const void* bytes, size_t count) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes);
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + count) / page * page;
  return begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<std::unique_ptr<NewFile>> NewFile::create(const std::string& path, unsigned permissions) {
  static std::atomic<uint32_t> count{0};
  Result<std::string> target = target_of(path);
  if (!target.ok()) return target.status();
  while (true) {
    std::string temporary = target.value() + '.' + std::to_string(getpid()) + '-' + std::to_string(count++) + ".new";
    const int file = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, permissions);
    if (file >= 0) return std::unique_ptr<NewFile>(new NewFile(target.value(), std::move(temporary), file));
    if (errno != EEXIST) return cannot("write", path, errno);
  }
}

NewFile::~NewFile() {
  close(file_);
  if (!committed_) unlink(temporary_.c_str());
}

Status NewFile::failed(const char* what) const { return cannot(what, path_, errno); }

Status NewFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write");
    bytes.remove_prefix(static_cast<size_t>(written));
    size_ += static_cast<uint64_t>(written);
  }
  return Status();
}

Status NewFile::copy(const MappedFile& from, size_t bytes) {
  // The file at its path may be another by now. Then, and where the system does not copy between
  // these files, the bytes in memory are written.
  const OpenFile file(::open(from.path().c_str(), O_RDONLY | O_CLOEXEC));
  size_t copied = 0;
  const bool same = file.number >= 0 && from.is(file.number);
  while (same && copied < bytes) {
    const ssize_t count = copy_file_range(file.number, nullptr, file_, nullptr, bytes - copied, 0);
    if (count <= 0) break;
    copied += static_cast<size_t>(count);
  }
  size_ += copied;
  return write(from.bytes().substr(copied, bytes - copied));
}

Status NewFile::commit(bool on_disk) {
  if (on_disk && fsync(file_) != 0) return failed("write");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return failed("write");
  committed_ = true;
  return Status();
}

}  // namespace hetero::backend
