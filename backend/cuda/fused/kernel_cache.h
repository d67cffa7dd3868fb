// KernelCache: compiled kernels on disk, so that a later process need not compile them again.
//
// Each kernel has a CacheFile in the user's folder: $XDG_CACHE_HOME/hetero/kernels, or
// ~/.cache/hetero/kernels. Its name is a hash of the source, the compiler and the GPU. If nothing
// can be written, nothing is kept and nothing fails.
//
// Together the files take at most kMaxBytes, or a little more for a while. The file that was found
// longest ago is removed first; its modification time tells when it was found. Processes may delete
// files that others use.
//
// Thread safety: any thread. Ownership: none; files stay.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "backend/file/cache_file.h"

namespace hetero::backend {

class KernelCache {
 public:
  // A fused kernel takes 5 to 30 KiB, so this is thousands of kernels, of all the user's programs.
  static constexpr int64_t kMaxBytes = int64_t{128} << 20;

  // Keeps kernels in this folder, which is created when needed; "" keeps nothing.
  explicit KernelCache(std::string folder, int64_t max_bytes = kMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  // The user's folder; "" if the environment names none.
  static std::string default_folder();

  // `target`: the GPU and the compiler, which the code depends on in addition to the source.
  std::optional<std::string> find(std::string_view source, std::string_view target) const;
  void add(std::string_view source, std::string_view target, std::string_view code) const;

  std::string path_of(std::string_view source, std::string_view target) const;

 private:
  CacheFile file_of(std::string_view source, std::string_view target) const;
  void trim() const;

  const std::string folder_;
  const int64_t max_bytes_;
  // Bytes since the folder was last looked through; -1: it never was.
  mutable std::atomic<int64_t> added_{-1};
};

}  // namespace hetero::backend
