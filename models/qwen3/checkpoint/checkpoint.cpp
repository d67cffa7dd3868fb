#include "qwen3/checkpoint/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <unordered_set>

#include "qwen3/checkpoint/json.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kMostIndexBytes = uint64_t{256} << 20;

Status storage_error(std::string message) { return Status(ErrorClass::kStorage, std::move(message)); }

// A file beside the index: no folder, no way out of the folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::filesystem::path& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  std::error_code error;
  const std::filesystem::path single = path / "model.safetensors";
  const std::filesystem::path index = path / "model.safetensors.index.json";
  Status status;
  if (!std::filesystem::is_directory(path, error)) {
    status = checkpoint->add(path);
  } else if (std::filesystem::exists(single, error)) {
    status = checkpoint->add(single);
  } else if (std::filesystem::exists(index, error)) {
    status = checkpoint->add_shards(path, index);
  } else {
    status = storage_error(path.string() + " has neither model.safetensors nor model.safetensors.index.json");
  }
  if (!status.ok()) return status;
  for (const auto& [name, tensor] : checkpoint->tensors_) {
    checkpoint->names_.emplace_back(name);
    checkpoint->bytes_ += tensor->data.size();
  }
  return checkpoint;
}

Status Checkpoint::add(const std::filesystem::path& path) {
  auto file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  for (const auto& [name, tensor] : file.value()->tensors()) {
    if (!tensors_.emplace(name, &tensor).second) {
      return storage_error("the tensor " + in_quotes(name) + " is in more than one shard, also in " + path.string());
    }
  }
  files_.push_back(std::move(file.value()));
  return Status();
}

Status Checkpoint::add_shards(const std::filesystem::path& folder, const std::filesystem::path& index) {
  auto json = read_json(index, kMostIndexBytes);
  if (!json.ok()) return json.status();
  const std::string what = index.string();
  JsonFields fields(json.value(), what);
  fields.require("weight_map");
  if (!fields.status().ok()) return fields.status();
  const Json& map = fields.at("weight_map");
  if (!map.is_object()) return storage_error(what + ": weight_map is not an object");
  std::set<std::string> shards;
  for (const auto& [name, shard] : map.items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>())) {
      return storage_error(what + ": the tensor " + in_quotes(name) +
                           " is not mapped to the name of a file in the folder");
    }
    shards.insert(shard.get<std::string>());
  }
  for (const std::string& shard : shards) {
    if (Status status = add(folder / shard); !status.ok()) return status;
    for (const auto& [name, tensor] : files_.back()->tensors()) {
      const auto entry = map.find(name);
      if (entry == map.end() || *entry != shard) {
        return storage_error(what + " does not say that the tensor " + in_quotes(name) + " is in " + in_quotes(shard));
      }
    }
  }
  for (const auto& [name, shard] : map.items()) {
    if (has(name)) continue;
    return storage_error("the tensor " + in_quotes(name) + " is not in " + in_quotes(shard.get<std::string>()) +
                         ", where the index says it is");
  }
  return Status();
}

const SafetensorsFile::Tensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

Result<TensorView> Checkpoint::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return Status(ErrorClass::kUsage, "the checkpoint has no tensor " + in_quotes(name));
  }
  const SafetensorsFile::Tensor& tensor = *found->second;
  const std::byte* data = tensor.data.data();
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(tensor.element_bytes) != 0) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<std::byte[]>& copy = copies_[found->first];
    if (copy == nullptr) {
      copy.reset(new std::byte[tensor.data.size()]);
      std::memcpy(copy.get(), data, tensor.data.size());
    }
    data = copy.get();
  }
  return TensorView::row_major(const_cast<std::byte*>(data), tensor.dtype, tensor.sizes);
}

uint64_t Checkpoint::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [name, copy] : copies_) bytes += find(name)->data.size();
  return bytes;
}

void Checkpoint::will_need(std::string_view name) const { advise(name, MADV_WILLNEED); }

void Checkpoint::release(std::string_view name) const { advise(name, MADV_DONTNEED); }

void Checkpoint::advise(std::string_view name, int advice) const {
  const SafetensorsFile::Tensor* tensor = find(name);
  if (tensor == nullptr || tensor->data.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor->data.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(tensor->data.data()) + tensor->data.size();
  // The mapping is private and never written, so dropped pages are read again unchanged.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

std::vector<ExpectedTensor> expected_tensors(const Qwen3Config& config) {
  std::vector<ExpectedTensor> tensors;
  const auto add = [&](std::string name, std::vector<int64_t> sizes, bool is_linear = false) {
    tensors.push_back({.name = std::move(name), .sizes = std::move(sizes), .is_linear = is_linear});
  };
  const int64_t hidden = config.hidden_size;
  const auto add_mlp = [&](const std::string& prefix, int64_t inner) {
    add(prefix + "gate_proj.weight", {inner, hidden}, true);
    add(prefix + "up_proj.weight", {inner, hidden}, true);
    add(prefix + "down_proj.weight", {hidden, inner}, true);
  };
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    const auto add_projection = [&](const char* name, int64_t out, int64_t in) {
      add(attention + name + ".weight", {out, in}, true);
      if (config.attention_bias) add(attention + name + ".bias", {out});
    };
    add(prefix + "input_layernorm.weight", {hidden});
    add_projection("q_proj", config.query_size(), hidden);
    add_projection("k_proj", config.key_value_size(), hidden);
    add_projection("v_proj", config.key_value_size(), hidden);
    add_projection("o_proj", hidden, config.query_size());
    add(attention + "q_norm.weight", {config.head_dim});
    add(attention + "k_norm.weight", {config.head_dim});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    if (!config.layer_is_sparse[static_cast<size_t>(layer)]) {
      add_mlp(prefix + "mlp.", config.intermediate_size);
      continue;
    }
    add(prefix + "mlp.gate.weight", {config.num_experts, hidden});
    for (int64_t expert = 0; expert < config.num_experts; ++expert) {
      add_mlp(prefix + "mlp.experts." + std::to_string(expert) + ".", config.moe_intermediate_size);
    }
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {config.vocab_size, hidden}, true);
  tensors.back().is_optional = config.tie_word_embeddings;
  return tensors;
}

namespace {

// What a quantized layer has instead of its weight, [n, k].
void add_quantized(const QuantizationConfig& config, const std::string& layer, int64_t n, int64_t k,
                   std::vector<ExpectedTensor>& tensors) {
  const int64_t in_word = 32 / config.bits;
  const int64_t groups = config.group == 0 ? 1 : backend::divide_up(k, config.group);
  const bool awq = config.layout == backend::CheckpointLayout::kAwq;
  using enum ExpectedTensor::Dtype;
  const auto add = [&](const char* part, std::vector<int64_t> sizes, ExpectedTensor::Dtype dtype,
                       bool is_optional = false) {
    tensors.push_back({.name = layer + part, .sizes = std::move(sizes), .is_optional = is_optional, .dtype = dtype});
  };
  add("qweight", awq ? std::vector<int64_t>{k, n / in_word} : std::vector<int64_t>{k / in_word, n}, kInt32);
  add("qzeros", {groups, n / in_word}, kInt32);
  add("scales", {groups, n}, kHalf);
  if (!awq) add("g_idx", {k}, kInt32, true);
  add("bias", {n}, kFloat, true);
}

// The tensors that this checkpoint must have.
std::vector<ExpectedTensor> expected_of(const Checkpoint& checkpoint, const Qwen3Config& config) {
  std::vector<ExpectedTensor> tensors;
  for (ExpectedTensor& tensor : expected_tensors(config)) {
    const std::string layer = tensor.name.substr(0, tensor.name.rfind('.') + 1);
    if (!config.quantization.method.empty() && tensor.is_linear && !checkpoint.has(tensor.name) &&
        checkpoint.has(layer + "qweight")) {
      add_quantized(config.quantization, layer, tensor.sizes[0], tensor.sizes[1], tensors);
    } else {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

Status check_tensor(const SafetensorsFile::Tensor& found, const ExpectedTensor& expected) {
  if (found.sizes != expected.sizes) {
    return storage_error("the tensor " + in_quotes(expected.name) + " has the shape " + text_of(found.sizes) +
                         ", and config.json asks for " + text_of(expected.sizes));
  }
  using enum ExpectedTensor::Dtype;
  const bool is_half = found.dtype == "bf16" || found.dtype == "f16";
  const bool fits = expected.dtype == kInt32  ? found.dtype == "i32"
                    : expected.dtype == kHalf ? is_half
                                              : is_half || found.dtype == "f32";
  if (fits) return Status();
  return storage_error("the tensor " + in_quotes(expected.name) + " is " + found.dtype + ", and " +
                       (expected.dtype == kInt32  ? "packed numbers must be i32"
                        : expected.dtype == kHalf ? "scales must be f16 or bf16"
                                                  : "weights must be f32, bf16 or f16"));
}

}  // namespace

Status check_tensors(const Checkpoint& checkpoint, const Qwen3Config& config) {
  const std::string& method = config.quantization.method;
  if (!method.empty() && method != "gptq" && method != "awq") {
    return storage_error("the checkpoint is quantized with " + in_quotes(method) +
                         "; only gptq, awq and plain f32, bf16 and f16 weights are supported");
  }
  const std::vector<ExpectedTensor> expected = expected_of(checkpoint, config);
  std::unordered_set<std::string_view> known;
  const std::string* missing = nullptr;
  size_t count = 0;
  for (const ExpectedTensor& tensor : expected) {
    known.insert(tensor.name);
    const SafetensorsFile::Tensor* found = checkpoint.find(tensor.name);
    if (found == nullptr) {
      if (tensor.is_optional) continue;
      if (missing == nullptr) missing = &tensor.name;
      ++count;
      continue;
    }
    if (Status status = check_tensor(*found, tensor); !status.ok()) return status;
  }
  if (missing != nullptr) {
    return storage_error("the checkpoint lacks the tensor " + in_quotes(*missing) +
                         (count > 1 ? " and " + std::to_string(count - 1) + " others" : "") +
                         " that config.json asks for");
  }
  for (const std::string& name : checkpoint.names()) {
    if (!known.contains(name)) {
      return storage_error("the checkpoint has the tensor " + in_quotes(name) + ", which the model does not have");
    }
  }
  return Status();
}

}  // namespace hetero::qwen3
