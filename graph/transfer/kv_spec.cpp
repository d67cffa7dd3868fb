#include "graph/transfer/kv_spec.h"

#include <utility>

namespace hetero::graph {

Status KvSpec::check() const {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t bytes = 1;
  for (const auto& [name, size] :
       {std::pair("element_bytes", element_bytes), std::pair("layers", layers), std::pair("kv_heads", kv_heads),
        std::pair("head_size", head_size), std::pair("block_tokens", block_tokens)}) {
    if (size <= 0) {
      return Status(ErrorClass::kUsage,
                    std::string("kv: ").append(name).append(" must be positive, not ") + std::to_string(size));
    }
    if (size > kMost / bytes) return Status(ErrorClass::kUsage, "kv: a block would have more than 2^40 bytes");
    bytes *= size;
  }
  if (tensor_parallel_size <= 0 || tensor_parallel_rank < 0 || tensor_parallel_rank >= tensor_parallel_size) {
    return Status(ErrorClass::kUsage, "kv: tensor_parallel_rank must be in [0, tensor_parallel_size)");
  }
  return Status();
}

backend::BlockGeometry KvSpec::geometry() const {
  return {
      .tokens = block_tokens, .pieces = layers, .piece_bytes = 2 * block_tokens * kv_heads * head_size * element_bytes};
}

std::string KvSpec::describe() const {
  std::string text = "hetero kv 1\n";
  const auto add = [&](const char* name, const std::string& value) {
    // A length keeps a line break in a name from making two fields of one.
    text.append(name).append(" ").append(std::to_string(value.size())).append(" ").append(value).append("\n");
  };
  const auto add_size = [&](const char* name, int64_t value) { add(name, std::to_string(value)); };
  add("model", model);
  add("revision", revision);
  add("dtype", dtype);
  add_size("element_bytes", element_bytes);
  add_size("layers", layers);
  add_size("kv_heads", kv_heads);
  add_size("head_size", head_size);
  add_size("block_tokens", block_tokens);
  add("layout", layout);
  add_size("tensor_parallel_rank", tensor_parallel_rank);
  add_size("tensor_parallel_size", tensor_parallel_size);
  add("adapter", adapter);
  add("namespace", name_space);
  return text;
}

}  // namespace hetero::graph
