// Weights: a checkpoint's linear layers as products take them, as they are or in 8 or 4 bits.
//
// Layers of a GPTQ or AWQ checkpoint are packed for our kernels with the numbers that they have.
// With `bits`, plain layers are quantized while loading, from the mapped file into one range of
// memory, and the file's pages are dropped when they are done. The embedding stays as it is; the
// head is a layer, also where they share a tensor.
//
//   auto weights = Weights::make(config, checkpoint, {.bits = 4});
//   if (const QuantizedLayer* layer = weights.value()->quantized("model.layers.0.mlp.up_proj")) ...
//
// Thread safety: any thread, after make().
// Ownership: holds the checkpoint. TensorViews are valid while it exists, and read-only.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "backend/cpu/quantized/weight.h"
#include "backend/memory/page_memory.h"
#include "graph/program/tensor_view.h"
#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"

namespace hetero::qwen3 {

// Of a dtype of weights, by its short name.
std::optional<backend::Element> element_of(std::string_view dtype);

struct WeightOptions {
  int64_t bits = 0;    // 8 or 4; 0: layers are as the checkpoint has them
  int64_t group = -1;  // columns that share a scale, 0 for whole rows; -1: 128 for 8 bits, 32 for 4
  bool symmetric = true;
  // Called now and then while layers are quantized, with the part that is done, from 0 to 1.
  std::function<void(double)> progress{};
};

// What hetero::quantized_linear takes of a layer.
struct QuantizedLayer {
  backend::QuantizedShape shape;
  TensorView packed;
  TensorView scales;
  TensorView zeros;  // without data: symmetric
  TensorView order;  // without data: the input is used as it is; else its columns, gathered
};

class Weights {
 public:
  // Errors: those of check_tensors; kUsage for options out of range, or bits for a checkpoint that
  // is quantized; kStorage for a layer that cannot be read or quantized; kResource for memory.
  static Result<std::shared_ptr<const Weights>> make(const Qwen3Config& config,
                                                     std::shared_ptr<const Checkpoint> checkpoint,
                                                     const WeightOptions& options);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // By the name without ".weight". Null for a layer that is not quantized.
  const QuantizedLayer* quantized(std::string_view layer) const;
  // Of weights that are used: plain ones and quantized ones.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Source;

  explicit Weights(std::shared_ptr<const Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  Status load(const Qwen3Config& config, const WeightOptions& options);
  std::vector<Source> find_sources(const Qwen3Config& config, const WeightOptions& options) const;
  Status quantize(const Source& source, bool symmetric);
  Status import(const Source& source, const QuantizationConfig& config);
  TensorView keep(const void* data, const char* dtype, std::vector<int64_t> sizes);
  void* take(uint64_t bytes);

  const std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<backend::PageMemory> memory_;  // of quantized layers
  uint64_t used_ = 0;
  uint64_t bytes_ = 0;
  std::map<std::string, QuantizedLayer, std::less<>> layers_;
};

}  // namespace hetero::qwen3
