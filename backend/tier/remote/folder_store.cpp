// A shared folder as a store of values: <folder>/<fingerprint>/<first 2 digits>/<key>.
//
// 1. A value is written to a temporary name next to its place, and renamed. So a name either has a
//    whole value or none, and what a crash tears is rejected by its checksums.
// 2. Names are made of the digits of keys only. Files are opened without following links, and only
//    regular files are read.
// 3. Other processes may write, replace and delete at any time. What is gone is missing.
// 4. Where values have a lifetime, a file that was written longer ago is missing.
//
// The deadline is looked at between reads and writes. A network file system that blocks in the
// system itself holds the call longer; mount it so that it gives up (for NFS: soft).

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "backend/tier/remote/value_store.h"

namespace hetero::backend {
namespace {

constexpr size_t kMostParts = 256;      // of one call of the system
constexpr size_t kMostBytes = 4 << 20;  // of one call of the system, for the deadline
constexpr const char* kTemporary = ".tmp-";
constexpr int64_t kStaleSeconds = 3600;  // a temporary file this old has no writer

bool late(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

// Cuts a list of parts to at most kMostBytes. Returns how many are left.
size_t limit_bytes(iovec* parts, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (bytes + parts[i].iov_len >= kMostBytes) {
      parts[i].iov_len = kMostBytes - bytes;
      return i + 1;
    }
    bytes += parts[i].iov_len;
  }
  return count;
}

class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  ~OpenFile() {
    if (file_ >= 0) close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }
  // What closing says; a network file system may report a failed write only here.
  bool close_now() {
    const int file = std::exchange(file_, -1);
    return close(file) == 0 || errno == EINTR;
  }

 private:
  int file_;
};

class FolderStore final : public ValueStore {
 public:
  FolderStore(const RemoteAddress& address, const RemoteOptions& options)
      : name_(address.to_string()),
        folder_(address.path),
        values_(std::string(address.path).append("/").append(hetero::backend::to_string(options.fingerprint))),
        lifetime_(options.lifetime_seconds),
        shortest_(static_cast<int64_t>(value_header_bytes(options.geometry))),
        longest_(static_cast<int64_t>(most_value_bytes(options.geometry))) {
    std::random_device device;
    token_ = (static_cast<uint64_t>(device()) << 32) | device();
  }

  Outcome match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) override;
  Outcome get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) override;
  Outcome put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) override;
  Outcome remove(std::span<const BlockKey> keys, Deadline deadline) override;

 private:
  std::string folder_of(const BlockKey& key) const {
    return std::string(values_).append("/").append(hetero::backend::to_string(key), 0, 2);
  }
  std::string path_of(const BlockKey& key) const {
    return folder_of(key).append("/").append(hetero::backend::to_string(key));
  }
  Outcome failed(int error, const std::string& path) const;
  Outcome timed_out() const { return {Outcome::Kind::kTimeout, std::string(name_).append(": took too long")}; }
  bool is_value(const struct stat& about) const;
  Outcome get_one(size_t position, const BlockKey& key, ValueSink& sink, Deadline deadline);
  Outcome put_one(const BlockKey& key, const EncodedBlock& value, Deadline deadline);
  Outcome write_file(int file, const std::string& path, const EncodedBlock& value, Deadline deadline) const;
  Outcome make_folder(const std::string& path) const;
  void clean(const std::string& folder, const BlockKey& key);

  const std::string name_, folder_, values_;
  const int64_t lifetime_, shortest_, longest_;
  uint64_t token_ = 0;  // in temporary names, so that no two writers share one
  std::atomic<uint64_t> counter_{0};
  std::mutex mutex_;
  std::array<bool, 256> cleaned_{};
};

// Whether nothing is there, which is no failure.
bool absent(int error) { return error == ENOENT || error == ELOOP || error == ESTALE || error == ENXIO; }

Outcome FolderStore::failed(int error, const std::string& path) const {
  Outcome outcome{Outcome::Kind::kFailed, std::string(name_).append(": ").append(path).append(": ").append(
                                              std::generic_category().message(error))};
  if (error == ENOSPC || error == EDQUOT || error == EROFS) outcome.kind = Outcome::Kind::kFull;
  return outcome;
}

bool FolderStore::is_value(const struct stat& about) const {
  if (!S_ISREG(about.st_mode)) return false;
  return lifetime_ == 0 || std::time(nullptr) - about.st_mtim.tv_sec < lifetime_;
}

Outcome FolderStore::match(std::span<const BlockKey> keys, Deadline deadline, int64_t* found) {
  for (const BlockKey& key : keys) {
    if (late(deadline)) return timed_out();
    struct stat about {};
    const std::string path = path_of(key);
    if (lstat(path.c_str(), &about) != 0) return absent(errno) ? Outcome{} : failed(errno, path);
    if (!is_value(about) || about.st_size <= shortest_ || about.st_size > longest_) return {};
    ++*found;
  }
  return {};
}

Outcome FolderStore::get(std::span<const BlockKey> keys, ValueSink& sink, Deadline deadline) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (late(deadline)) return timed_out();
    if (Outcome outcome = get_one(i, keys[i], sink, deadline); !outcome.ok()) return outcome;
  }
  return {};
}

Outcome FolderStore::get_one(size_t position, const BlockKey& key, ValueSink& sink, Deadline deadline) {
  const std::string path = path_of(key);
  // Without O_NONBLOCK, a pipe with this name would block.
  const OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return absent(errno) ? Outcome{} : failed(errno, path);
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return absent(errno) ? Outcome{} : failed(errno, path);
  if (!is_value(about)) return {};
  BlockDecoder& decoder = sink.begin(position, static_cast<uint64_t>(about.st_size));
  Outcome outcome;
  std::array<iovec, kMostParts> parts;
  while (size_t count = decoder.next(parts)) {
    if (late(deadline)) {
      outcome = timed_out();
      break;
    }
    count = limit_bytes(parts.data(), count);
    const ssize_t got = readv(file.get(), parts.data(), static_cast<int>(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && !absent(errno)) outcome = failed(errno, path);
    if (got <= 0) break;
    decoder.advance(static_cast<size_t>(got));
  }
  sink.end(position);
  return outcome;
}

Outcome FolderStore::put(std::span<const BlockKey> keys, ValueSource& source, Deadline deadline) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (late(deadline)) return timed_out();
    if (Outcome outcome = put_one(keys[i], source.value(i), deadline); !outcome.ok()) return outcome;
    source.taken(i);
  }
  return {};
}

Outcome FolderStore::put_one(const BlockKey& key, const EncodedBlock& value, Deadline deadline) {
  const std::string folder = folder_of(key);
  char number[40];
  std::snprintf(number, sizeof(number), "%016llx-%llx",
                static_cast<unsigned long long>(token_ ^ static_cast<uint64_t>(getpid())),
                static_cast<unsigned long long>(counter_.fetch_add(1)));
  const std::string temporary = std::string(folder).append("/").append(kTemporary).append(number);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  int handle = open(temporary.c_str(), kFlags, 0600);
  if (handle < 0 && errno == ENOENT) {
    for (const std::string* path : {&folder_, &values_, &folder}) {
      if (Outcome outcome = make_folder(*path); !outcome.ok()) return outcome;
    }
    handle = open(temporary.c_str(), kFlags, 0600);
  }
  if (handle < 0) return failed(errno, temporary);
  OpenFile file(handle);
  clean(folder, key);
  Outcome outcome = write_file(file.get(), temporary, value, deadline);
  if (outcome.ok() && !file.close_now()) outcome = failed(errno, temporary);
  const std::string path = path_of(key);
  if (outcome.ok() && rename(temporary.c_str(), path.c_str()) != 0) outcome = failed(errno, path);
  if (!outcome.ok()) unlink(temporary.c_str());
  return outcome;
}

Outcome FolderStore::write_file(int file, const std::string& path, const EncodedBlock& value, Deadline deadline) const {
  std::array<iovec, kMostParts> parts;
  size_t next = 0;    // part of the value
  size_t within = 0;  // bytes of it that are written
  while (next < value.parts.size()) {
    if (late(deadline)) return timed_out();
    const size_t count = std::min(kMostParts, value.parts.size() - next);
    std::copy_n(value.parts.begin() + static_cast<ptrdiff_t>(next), count, parts.begin());
    parts[0].iov_base = static_cast<char*>(parts[0].iov_base) + within;
    parts[0].iov_len -= within;
    const ssize_t wrote = writev(file, parts.data(), static_cast<int>(limit_bytes(parts.data(), count)));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return failed(errno, path);
    within += static_cast<size_t>(wrote);
    while (next < value.parts.size() && within >= value.parts[next].iov_len) within -= value.parts[next++].iov_len;
  }
  return {};
}

Outcome FolderStore::make_folder(const std::string& path) const {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return failed(errno, path);
}

// Deletes what crashed writers left, and what has expired, once for each folder of keys.
void FolderStore::clean(const std::string& folder, const BlockKey& key) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(cleaned_[key.high >> 56], true)) return;
  }
  DIR* list = opendir(folder.c_str());
  if (list == nullptr) return;
  while (const dirent* entry = readdir(list)) {
    const bool temporary = std::string_view(entry->d_name).starts_with(kTemporary);
    if (!temporary && lifetime_ == 0) continue;
    struct stat about {};
    if (fstatat(dirfd(list), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(about.st_mode)) continue;
    const int64_t age = std::time(nullptr) - about.st_mtim.tv_sec;
    if (age >= (temporary ? kStaleSeconds : lifetime_)) unlinkat(dirfd(list), entry->d_name, 0);
  }
  closedir(list);
}

Outcome FolderStore::remove(std::span<const BlockKey> keys, Deadline deadline) {
  for (const BlockKey& key : keys) {
    if (late(deadline)) return timed_out();
    const std::string path = path_of(key);
    if (unlink(path.c_str()) != 0 && !absent(errno)) return failed(errno, path);
  }
  return {};
}

}  // namespace

std::unique_ptr<ValueStore> open_folder_store(const RemoteAddress& address, const RemoteOptions& options) {
  return std::make_unique<FolderStore>(address, options);
}

}  // namespace hetero::backend
