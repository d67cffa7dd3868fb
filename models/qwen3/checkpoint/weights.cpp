#include "qwen3/checkpoint/weights.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "backend/cpu/quantized/checkpoint.h"
#include "qwen3/checkpoint/json.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kAlignment = 64;  // a line of packed weights
constexpr const char* kScaleDtype = "bf16";

Status usage(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
Status storage_error(std::string message) { return Status(ErrorClass::kStorage, std::move(message)); }

uint64_t aligned(int64_t bytes) {
  return static_cast<uint64_t>(backend::round_up(bytes, static_cast<int64_t>(kAlignment)));
}

Status check_options(const Qwen3Config& config, const WeightOptions& options) {
  if (options.bits == 0) return Status();
  if (options.bits != 8 && options.bits != 4) {
    return usage("weights are quantized to 8 or 4 bits, not to " + std::to_string(options.bits));
  }
  if (options.group < -1 || (options.group > 0 && options.group % backend::kQuantizedDepth != 0)) {
    return usage("a group of quantized weights is 0 for whole rows, or a multiple of 32, not " +
                 std::to_string(options.group));
  }
  if (!config.quantization.method.empty()) {
    return usage("the checkpoint is quantized already, with " + in_quotes(config.quantization.method));
  }
  return Status();
}

}  // namespace

struct Weights::Source {
  std::string layer;
  std::string tensor;  // of a plain weight; empty: the layer's own, quantized
  backend::QuantizedShape shape;

  uint64_t bytes() const {
    const int64_t scales = shape.scale_count();
    return aligned(shape.packed_bytes()) + aligned(2 * scales) + aligned(scales) +
           (tensor.empty() ? aligned(4 * shape.k) : 0);
  }
};

std::optional<backend::Element> element_of(std::string_view dtype) {
  if (dtype == "f32") return backend::Element::kFloat32;
  if (dtype == "bf16") return backend::Element::kBfloat16;
  if (dtype == "f16") return backend::Element::kFloat16;
  return std::nullopt;
}

Result<std::shared_ptr<const Weights>> Weights::make(const Qwen3Config& config,
                                                     std::shared_ptr<const Checkpoint> checkpoint,
                                                     const WeightOptions& options) {
  if (Status status = check_tensors(*checkpoint, config); !status.ok()) return status;
  if (Status status = check_options(config, options); !status.ok()) return status;
  std::shared_ptr<Weights> weights(new Weights(std::move(checkpoint)));
  if (Status status = weights->load(config, options); !status.ok()) return status;
  return std::shared_ptr<const Weights>(std::move(weights));
}

const QuantizedLayer* Weights::quantized(std::string_view layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? nullptr : &found->second;
}

std::vector<Weights::Source> Weights::find_sources(const Qwen3Config& config, const WeightOptions& options) const {
  std::vector<Source> sources;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (!tensor.is_linear) continue;
    Source source{.layer = tensor.name.substr(0, tensor.name.rfind('.')),
                  .tensor = {},
                  .shape = {.n = tensor.sizes[0], .k = tensor.sizes[1]}};
    if (checkpoint_->has(source.layer + ".qweight")) {
      source.shape.bits = static_cast<int>(config.quantization.bits);
      source.shape.group = config.quantization.group;
    } else if (options.bits != 0) {
      source.shape.bits = static_cast<int>(options.bits);
      source.shape.group = options.group >= 0 ? options.group : options.bits == 8 ? 128 : 32;
      const bool is_tied_head = config.tie_word_embeddings && source.layer == "lm_head";
      source.tensor = is_tied_head ? "model.embed_tokens.weight" : tensor.name;
    } else {
      continue;
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

Status Weights::load(const Qwen3Config& config, const WeightOptions& options) {
  bytes_ = checkpoint_->bytes();
  if (options.bits == 0 && config.quantization.method.empty()) return Status();
  const std::vector<Source> sources = find_sources(config, options);
  if (sources.empty()) return Status();
  uint64_t bytes = 0;
  for (const Source& source : sources) bytes += source.bytes();
  Result<std::unique_ptr<backend::PageMemory>> memory = backend::host_page_memory(bytes);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory.value());
  if (Status status = memory_->commit(0, bytes); !status.ok()) return status;
  ::madvise(memory_->base(), bytes, MADV_HUGEPAGE);  // a wish
  uint64_t done = 0;
  for (const Source& source : sources) {
    if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(bytes));
    done += source.bytes();
    const uint64_t before = used_;
    Status status = source.tensor.empty() ? import(source, config.quantization) : quantize(source, options.symmetric);
    if (!status.ok()) return status;
    bytes_ += used_ - before;
  }
  return Status();
}

void* Weights::take(uint64_t bytes) {
  void* const place = memory_->base() + used_;
  used_ += aligned(static_cast<int64_t>(bytes));
  return place;
}

TensorView Weights::keep(const void* data, const char* dtype, std::vector<int64_t> sizes) {
  TensorView view = TensorView::row_major(nullptr, dtype, std::move(sizes));
  uint64_t bytes = std::string_view(dtype) == "u8" ? 1 : std::string_view(dtype) == "i32" ? 4 : 2;
  for (const int64_t size : view.sizes) bytes *= static_cast<uint64_t>(size);
  view.data = take(bytes);
  if (data != nullptr) std::memcpy(view.data, data, bytes);
  return view;
}

Status Weights::quantize(const Source& source, bool symmetric) {
  const Result<TensorView> from = checkpoint_->tensor(source.tensor);
  if (!from.ok()) return from.status();
  const SafetensorsFile::Tensor& tensor = *checkpoint_->find(source.tensor);
  const std::optional<backend::Element> element = element_of(tensor.dtype);
  if (!element) return usage("weights in " + tensor.dtype + " cannot be quantized");
  const backend::QuantizedShape& shape = source.shape;
  const std::vector<int64_t> groups{shape.panels(), shape.groups(), backend::kQuantizedPanel};
  QuantizedLayer layer{.shape = shape,
                       .packed = keep(nullptr, "u8", {shape.panels(), shape.panel_bytes()}),
                       .scales = keep(nullptr, kScaleDtype, groups),
                       .zeros = {},
                       .order = {}};
  if (!symmetric) layer.zeros = keep(nullptr, "u8", groups);
  if (!backend::quantize_weight(shape, *element, from.value().data, shape.k, static_cast<uint8_t*>(layer.packed.data),
                                static_cast<uint16_t*>(layer.scales.data), static_cast<uint8_t*>(layer.zeros.data))) {
    return storage_error("the tensor " + in_quotes(source.tensor) + " has values that are not finite");
  }
  checkpoint_->release(source.tensor);
  if (source.tensor == source.layer + ".weight") bytes_ -= tensor.data.size();
  layers_.emplace(source.layer, std::move(layer));
  return Status();
}

Status Weights::import(const Source& source, const QuantizationConfig& config) {
  Status status;
  const auto data = [&](const char* part) -> const void* {
    const std::string name = source.layer + part;
    if (!checkpoint_->has(name)) return nullptr;
    const Result<TensorView> view = checkpoint_->tensor(name);
    if (view.ok()) return view.value().data;
    status = view.status();
    return nullptr;
  };
  const backend::CheckpointWeight from{.layout = config.layout,
                                       .shape = source.shape,
                                       .qweight = static_cast<const int32_t*>(data(".qweight")),
                                       .qzeros = static_cast<const int32_t*>(data(".qzeros")),
                                       .scales = static_cast<const uint16_t*>(data(".scales")),
                                       .group_of = static_cast<const int32_t*>(data(".g_idx"))};
  if (!status.ok()) return status;
  const Result<backend::ImportedWeight> made = backend::import_weight(from);
  if (!made.ok()) return storage_error("the layer " + in_quotes(source.layer) + ": " + made.status().message());
  const backend::QuantizedShape& shape = made.value().shape;
  const std::vector<int64_t> groups{shape.panels(), shape.groups(), backend::kQuantizedPanel};
  const char* const scale_dtype = checkpoint_->find(source.layer + ".scales")->dtype == "f16" ? "f16" : kScaleDtype;
  QuantizedLayer layer{.shape = shape,
                       .packed = keep(made.value().packed.data(), "u8", {shape.panels(), shape.panel_bytes()}),
                       .scales = keep(made.value().scales.data(), scale_dtype, groups),
                       .zeros = {},
                       .order = {}};
  if (!made.value().zeros.empty()) layer.zeros = keep(made.value().zeros.data(), "u8", groups);
  if (!made.value().order.empty()) layer.order = keep(made.value().order.data(), "i32", {shape.k});
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
    checkpoint_->release(source.layer + part);
    if (const auto* tensor = checkpoint_->find(source.layer + part)) bytes_ -= tensor->data.size();
  }
  layers_.emplace(source.layer, std::move(layer));
  return Status();
}

}  // namespace hetero::qwen3
