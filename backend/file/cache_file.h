// CacheFile: what one process has measured or compiled, so that the next one need not.
//
// The first line says what the file is: kind and version of the content, the machine that it is
// true of, its length and its checksum. Files appear whole (they are renamed into place), so any
// number of processes may share one. A file that is damaged, of another version or machine, or not
// the user's own is refused with a sentence; callers go on as if there were none, and replace it.
//
//   const CacheFile file(CacheFile::default_path("costs 2", machine), "costs 2", machine);
//   if (Result<std::string> costs = file.read(); costs.ok()) ...
//   file.write(text);
//
// Thread safety: a value.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backend/base/status.h"

namespace hetero::backend {

class CacheFile {
 public:
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // `kind` has the version of the content in it. An empty path is no file: it cannot be read, and
  // writing does nothing.
  CacheFile(std::string path, const std::string& kind, const std::string& machine);

  // The user's folder for such files, $XDG_CACHE_HOME/hetero or ~/.cache/hetero; "" where the
  // environment names none.
  static std::string folder();
  // A file of this kind and machine in that folder; "" where there is none.
  static std::string default_path(const std::string& kind, const std::string& machine);

  const std::string& path() const { return path_; }

  // The content. Errors: kStorage.
  Result<std::string> read() const;
  // Replaces the file; makes its folders where they are missing. Errors: kStorage.
  Status write(std::string_view content) const;

 private:
  std::string first_line(std::string_view content) const;

  std::string path_;
  std::string subject_;  // how the first line begins
};

}  // namespace hetero::backend
