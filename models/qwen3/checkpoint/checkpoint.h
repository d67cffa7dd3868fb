// Checkpoint: the weights of a model folder by name, mapped into memory without a copy.
//
// A folder has one file, model.safetensors, or shards with an index, model.safetensors.index.json.
// open() reads headers only, and refuses files that are damaged or do not fit together. Weights
// come into memory when they are touched; will_need() and release() tell the kernel which ones are
// next and which ones are done.
//
//   auto checkpoint = Checkpoint::open(folder);
//   Status status = check_tensors(*checkpoint.value(), config);   // exactly the model's tensors
//   auto weight = checkpoint.value()->tensor("model.norm.weight");
//
// Thread safety: any thread may call any function.
// Ownership: owns the mappings. A TensorView is valid while the checkpoint exists. Its memory is
// read-only: writing to it faults.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "graph/program/tensor_view.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/safetensors.h"

namespace hetero::qwen3 {

class Checkpoint {
 public:
  // `path` is a folder, or a file of the safetensors format. Errors: kStorage.
  static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& path);

  // In alphabetical order.
  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // The tensor, row-major and aligned to its elements. Data that are not aligned in the file are
  // copied at their first use. Errors: kUsage for an unknown name.
  Result<TensorView> tensor(std::string_view name) const;

  // What the tensor is, without its data: dtype by its short name, sizes, bytes. Null for an
  // unknown name.
  const SafetensorsFile::Tensor* find(std::string_view name) const;

  // Bytes of all tensors.
  uint64_t bytes() const { return bytes_; }
  // Bytes that were copied because they were not aligned.
  uint64_t copied_bytes() const;

  // Hints for the kernel: read the tensor's pages ahead; or drop them from this process, which
  // reads them again from the page cache or the disk if they are touched. Unknown names are
  // ignored.
  void will_need(std::string_view name) const;
  void release(std::string_view name) const;

 private:
  Checkpoint() = default;
  Status add(const std::filesystem::path& path);
  Status add_shards(const std::filesystem::path& folder, const std::filesystem::path& index);
  void advise(std::string_view name, int advice) const;

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  // Keys are in files_.
  std::map<std::string_view, const SafetensorsFile::Tensor*, std::less<>> tensors_;
  std::vector<std::string> names_;
  uint64_t bytes_ = 0;
  mutable std::mutex mutex_;  // guards copies_
  mutable std::map<std::string_view, std::unique_ptr<std::byte[]>, std::less<>> copies_;
};

// A tensor that a model must have.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> sizes;
  bool is_optional = false;  // lm_head.weight of tied embeddings
  // Of a linear layer, which a quantized checkpoint may have as qweight, qzeros and scales.
  bool is_linear = false;
  enum class Dtype : uint8_t { kFloat, kHalf, kInt32 } dtype = Dtype::kFloat;  // kHalf: f16 or bf16
};

// All tensors of a model, in the order of its layers, with the names of published checkpoints; none
// of them quantized.
std::vector<ExpectedTensor> expected_tensors(const Qwen3Config& config);

// Whether the checkpoint has exactly these tensors, with these sizes, all f32, bf16 or f16; of one
// that is quantized, the layers that are (backend/cpu/quantized/checkpoint.h) in place of their
// weights. Refuses other quantizations than GPTQ and AWQ. Errors: kStorage, one sentence that names
// a tensor.
Status check_tensors(const Checkpoint& checkpoint, const Qwen3Config& config);

}  // namespace hetero::qwen3
