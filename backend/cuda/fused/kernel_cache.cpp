#include "backend/cuda/fused/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

#include "backend/base/fnv.h"

namespace hetero::backend {
namespace {

constexpr std::string_view kSuffix = ".cubin";
// The folder is looked through when this part of the limit was added, and then so much is made room
// for.
constexpr int64_t kTrimsPerLimit = 8;
constexpr time_t kAbandonedSeconds = 3600;

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::string KernelCache::default_folder() {
  const std::string folder = CacheFile::folder();
  return folder.empty() ? "" : folder + "/kernels";
}

std::string KernelCache::path_of(std::string_view source, std::string_view target) const {
  Fnv first, second;
  first.add(target);
  first.add(source);
  second.add(source);
  second.add(target);
  return folder_ + "/" + hexadecimal(first.value()) + hexadecimal(second.value()) + std::string(kSuffix);
}

CacheFile KernelCache::file_of(std::string_view source, std::string_view target) const {
  return {path_of(source, target), "kernel 2",
          std::string(target) + ", source of " + std::to_string(source.size()) + " bytes"};
}

std::optional<std::string> KernelCache::find(std::string_view source, std::string_view target) const {
  if (folder_.empty()) return std::nullopt;
  const CacheFile file = file_of(source, target);
  Result<std::string> code = file.read();
  if (!code.ok()) return std::nullopt;
  (void)utimensat(AT_FDCWD, file.path().c_str(), nullptr, 0);
  return std::move(code.value());
}

void KernelCache::add(std::string_view source, std::string_view target, std::string_view code) const {
  if (folder_.empty() || !file_of(source, target).write(code).ok()) return;
  const int64_t before = added_.fetch_add(static_cast<int64_t>(code.size()));
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
