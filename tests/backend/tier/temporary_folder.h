// A folder of a test, which is deleted at its end.
//
// Thread safety: any thread may make one.

#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace hetero::backend::testing {

struct TemporaryFolder {
  std::filesystem::path path;

  explicit TemporaryFolder(const char* name) {
    std::string folder = std::filesystem::temp_directory_path() / "hetero-";
    folder.append(name).append("-XXXXXX");
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    path = folder;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
};

}  // namespace hetero::backend::testing
