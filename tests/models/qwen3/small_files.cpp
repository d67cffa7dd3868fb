#include "tests/models/qwen3/small_files.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "qwen3/text/tokenizer_file.h"

namespace hetero::qwen3 {

using Json = nlohmann::json;

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "hetero_qwen3_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::filesystem::path TemporaryFolder::write(const std::string& name, std::string_view content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return path_ / name;
}

Json small_config() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"model_type", "qwen3"},
          {"vocab_size", 32},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 6},
          {"max_position_embeddings", 128},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", 3}};
}

Json small_moe_config() {
  Json config = small_config();
  config["architectures"] = {"Qwen3MoeForCausalLM"};
  config["model_type"] = "qwen3_moe";
  config["num_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 10;
  config["decoder_sparse_step"] = 2;
  return config;
}

Json small_tokenizer() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[spelling_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  Json merges = Json::array();
  constexpr std::array<std::array<const char*, 2>, 12> kMerges{{{"t", "h"},
                                                                {"th", "e"},
                                                                {"i", "n"},
                                                                {"a", "n"},
                                                                {"an", "d"},
                                                                {"in", "g"},
                                                                {" ", "the"},
                                                                {"e", "r"},
                                                                {"l", "l"},
                                                                {"o", "ll"},
                                                                {"a", "a"},
                                                                {"aa", "aa"}}};
  for (const auto& [left, right] : kMerges) {
    const std::string a = spelling_of_bytes(left);
    const std::string b = spelling_of_bytes(right);
    vocabulary[a + b] = vocabulary.size();
    merges.push_back(Json::array({a, b}));
  }
  Json added = Json::array();
  const auto add = [&](const char* content, bool special) {
    added.push_back({{"id", vocabulary.size() + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  add("<|endoftext|>", true);
  add("<|im_start|>", true);
  add("<|im_end|>", true);
  add("<think>", false);
  add("</think>", false);
  const char* pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const Json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

std::string safetensors(const std::map<std::string, FileTensor>& tensors, size_t padding) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.sizes},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  return safetensors_of(header.dump() + std::string(padding, ' '), data);
}

std::string safetensors_of(std::string_view header, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return file.append(header).append(data);
}

}  // namespace hetero::qwen3
