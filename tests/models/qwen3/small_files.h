// Files of a small model, for tests: texts of its configuration and tokenizer, and safetensors
// files with any header.
//
// Thread safety: pure functions, except for TemporaryFolder, which belongs to one test.

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hetero::qwen3 {

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file into it; returns its path.
  std::filesystem::path write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

// config.json of a dense model with two layers; of one with experts in the second.
nlohmann::json small_config();
nlohmann::json small_moe_config();

// tokenizer.json with a token for each byte (its id), merges for a few English words, and added
// tokens as Qwen3 has them.
nlohmann::json small_tokenizer();

struct FileTensor {
  std::string dtype;  // as safetensors spells it
  std::vector<int64_t> sizes;
  std::string data;
};

// The bytes of a safetensors file; `padding` spaces make the header longer.
std::string safetensors(const std::map<std::string, FileTensor>& tensors, size_t padding = 0);
// A file with this header as it is.
std::string safetensors_of(std::string_view header, std::string_view data);

}  // namespace hetero::qwen3
