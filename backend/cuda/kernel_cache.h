// KernelCache: compiled kernels on disk, so that a later process does not compile them again.
//
// A file for each kernel, in a folder of the user: $XDG_CACHE_HOME/hetero/kernels, or ~/.cache/hetero/kernels. Its name is a hash of the source and
// of what compiled it for which GPU; it holds these in short, the code, and a checksum. Files appear whole (they are renamed into place), so any
// number of processes may share the folder. A file that is damaged, of another version, or not the user's own is as good as none. Where nothing can
// be written, nothing is kept, and nothing fails.
//
// Thread safety: any thread. Ownership: none; files stay.

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hetero::backend {

class KernelCache {
 public:
  // In this folder, which is made when it is needed; "" keeps nothing.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}
  // The user's folder; "" where the environment names none.
  static std::string default_folder();

  // `target`: the GPU and the compiler, which the code depends on beside the source.
  std::optional<std::string> find(std::string_view source, std::string_view target) const;
  void add(std::string_view source, std::string_view target, std::string_view code) const;

  std::string path_of(std::string_view source, std::string_view target) const;

 private:
  bool make_folder() const;

  std::string folder_;
};

}  // namespace hetero::backend
