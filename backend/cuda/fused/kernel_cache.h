// KernelCache: compiled kernels on disk, so that a later process does not compile them again.
//
// A file for each kernel, in a folder of the user: $XDG_CACHE_HOME/hetero/kernels, or ~/.cache/hetero/kernels. Its name is a hash of the source and
// of what compiled it for which GPU; it holds these in short, the code, and a checksum. Files appear whole (they are renamed into place), so any
// number of processes may share the folder. A file that is damaged, of another version, or not the user's own is as good as none. Where nothing can
// be written, nothing is kept, and nothing fails.
//
// Together the files take no more than kMaxBytes, or a little more for a while: what was not found for longest goes first. A file's time of modification
// tells when it was found last. Files that another process deletes, or reads while they are deleted, harm nobody.
//
// Thread safety: any thread. Ownership: none; files stay.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hetero::backend {

class KernelCache {
 public:
  // Of a fused kernel there are 5 to 30 KiB, so these are thousands, of all programs of the user.
  static constexpr int64_t kMaxBytes = int64_t{128} << 20;

  // In this folder, which is made when it is needed; "" keeps nothing.
  explicit KernelCache(std::string folder, int64_t max_bytes = kMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  // The user's folder; "" where the environment names none.
  static std::string default_folder();

  // `target`: the GPU and the compiler, which the code depends on beside the source.
  std::optional<std::string> find(std::string_view source, std::string_view target) const;
  void add(std::string_view source, std::string_view target, std::string_view code) const;

  std::string path_of(std::string_view source, std::string_view target) const;

 private:
  bool make_folder() const;
  void trim() const;

  const std::string folder_;
  const int64_t max_bytes_;
  mutable std::atomic<int64_t> added_{-1};  // bytes since the folder was last looked through; -1: it never was
};

}  // namespace hetero::backend
