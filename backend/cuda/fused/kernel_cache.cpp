#include "backend/cuda/fused/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include "backend/base/fnv.h"

namespace hetero::backend {
namespace {

struct Header {
  char magic[8];
  uint64_t source_bytes;
  uint64_t target_hash;
  uint64_t code_bytes;
  uint64_t checksum;  // of the code
};
constexpr char kMagic[8] = {'h', 'e', 't', 'k', 'e', 'r', 'n', '1'};
constexpr uint64_t kMaxCodeBytes = uint64_t{64} << 20;
constexpr std::string_view kSuffix = ".cubin";
// The folder is looked through when this part of the limit was added, and then so much is made room for.
constexpr int64_t kTrimsPerLimit = 8;
constexpr time_t kAbandonedSeconds = 3600;

Header header_of(std::string_view source, std::string_view target, std::string_view code) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.source_bytes = source.size();
  header.target_hash = fnv(target);
  header.code_bytes = code.size();
  header.checksum = fnv(code);
  return header;
}

class File {
 public:
  File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  bool is_own() const {
    struct stat status;
    return fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  }
  bool read_all(void* to, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = read(descriptor_, static_cast<char*>(to) + done, bytes - done);
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    return true;
  }
  bool write_all(const void* from, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = write(descriptor_, static_cast<const char*>(from) + done, bytes - done);
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    return true;
  }
  void touch() const { (void)futimens(descriptor_, nullptr); }
  bool at_end() const {
    char more;
    return read(descriptor_, &more, 1) == 0;
  }

 private:
  int descriptor_;
};

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::string KernelCache::default_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/hetero/kernels";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/hetero/kernels";
  return "";
}

std::string KernelCache::path_of(std::string_view source, std::string_view target) const {
  Fnv first, second;
  first.add(target);
  first.add(source);
  second.add(source);
  second.add(target);
  return folder_ + "/" + hexadecimal(first.value()) + hexadecimal(second.value()) + std::string(kSuffix);
}

bool KernelCache::make_folder() const {
  for (size_t at = folder_.find('/', 1);; at = folder_.find('/', at + 1)) {
    const std::string part = folder_.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && access(part.c_str(), X_OK) != 0) return false;
    if (at == std::string::npos) return true;
  }
}

std::optional<std::string> KernelCache::find(std::string_view source, std::string_view target) const {
  if (folder_.empty()) return std::nullopt;
  const File file(path_of(source, target), O_RDONLY | O_NOFOLLOW);
  Header header;
  if (!file.is_open() || !file.is_own() || !file.read_all(&header, sizeof(header))) return std::nullopt;
  if (header.code_bytes > kMaxCodeBytes) return std::nullopt;
  std::string code(header.code_bytes, '\0');
  if (!file.read_all(code.data(), code.size()) || !file.at_end()) return std::nullopt;
  const Header expected = header_of(source, target, code);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) return std::nullopt;
  file.touch();
  return code;
}

void KernelCache::add(std::string_view source, std::string_view target, std::string_view code) const {
  if (folder_.empty() || code.size() > kMaxCodeBytes || !make_folder()) return;
  static std::atomic<int> made{0};
  const std::string path = path_of(source, target);
  const std::string unfinished = path + "." + std::to_string(getpid()) + "." + std::to_string(made.fetch_add(1));
  bool complete = false;
  {
    const File file(unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (!file.is_open()) return;
    const Header header = header_of(source, target, code);
    complete = file.write_all(&header, sizeof(header)) && file.write_all(code.data(), code.size());
  }
  if (!complete || rename(unfinished.c_str(), path.c_str()) != 0) {
    unlink(unfinished.c_str());
    return;
  }
  const int64_t before = added_.fetch_add(static_cast<int64_t>(sizeof(Header) + code.size()));
  if (before >= 0 && before < max_bytes_ / kTrimsPerLimit) return;
  added_.store(0);
  trim();
}

void KernelCache::trim() const {
  struct Entry {
    std::string name;
    int64_t bytes;
    timespec used;
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(folder_.c_str()), closedir);
  if (folder == nullptr) return;
  const int descriptor = dirfd(folder.get());
  std::vector<Entry> entries;
  int64_t total = 0;
  while (const dirent* it = readdir(folder.get())) {
    struct stat status;
    const std::string_view name = it->d_name;
    if (name.find(kSuffix) == name.npos || fstatat(descriptor, it->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(status.st_mode)) continue;
    // What a process did not live to finish.
    if (!name.ends_with(kSuffix) && time(nullptr) - status.st_mtime > kAbandonedSeconds) {
      unlinkat(descriptor, it->d_name, 0);
      continue;
    }
    entries.push_back({std::string(name), status.st_size, status.st_mtim});
    total += status.st_size;
  }
  if (total <= max_bytes_) return;
  std::ranges::sort(entries, {}, [](const Entry& it) { return std::pair(it.used.tv_sec, it.used.tv_nsec); });
  for (const Entry& it : entries) {
    if (total <= max_bytes_ - max_bytes_ / kTrimsPerLimit) return;
    unlinkat(descriptor, it.name.c_str(), 0);
    total -= it.bytes;
  }
}

}  // namespace hetero::backend
