// SafetensorsFile: one file of the safetensors format, mapped into memory and checked.
//
// The file is eight bytes (the length of the header, little-endian), a JSON header and the data:
//
//   {"name": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}, ..., "__metadata__": {...}}
//
// open() accepts only files in which each tensor has exactly the bytes that its dtype and shape ask
// for, and the tensors fill the data without gap or overlap. It reads the header only. The data are
// read by whoever touches them.
//
// Thread safety: immutable once open.
// Ownership: owns the mapping. The file must not shrink while it is mapped: touching bytes that are
// gone raises SIGBUS.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

class SafetensorsFile {
 public:
  struct Tensor {
    std::string dtype;  // hetero's short name, "bf16"
    int element_bytes = 0;
    std::vector<int64_t> sizes;
    std::span<const std::byte> data;  // in the mapping; perhaps not aligned to the element
  };

  // Errors: kStorage, one sentence that names the file and, where it has one, the tensor.
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::filesystem::path& path);

  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;
  Status map(const std::filesystem::path& path);
  Status read_header(const std::string& file);

  std::span<const std::byte> bytes_;  // the mapping
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace hetero::qwen3
