// qwen3_inspect: what the parts of hetero_qwen3 make of files and lines, as JSON, for tests and for
// people.
//
//   qwen3_inspect config FOLDER        the configuration
//   qwen3_inspect tensors FOLDER       the checkpoint's tensors, and whether they are the model's
//   qwen3_inspect encode FOLDER        each line of the input, a JSON string, as a list of ids
//   qwen3_inspect decode FOLDER        each line, {"ids": [...], "skip_special": bool}, as a string
//   qwen3_inspect chat FOLDER          each line, {"messages", "tools", ...}, as a prompt
//   qwen3_inspect sample               each line, {"logits", "prompt", "options", "count"}, as
//                                      probabilities and sampled tokens
//   qwen3_inspect speed FOLDER FILE    MB/s of encoding the file, as lines and as one text
//
// Prints one line of JSON for each line or command. Errors are {"error": sentence}.
//
// Thread safety: one thread.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/json.h"
#include "qwen3/checkpoint/rope.h"
#include "qwen3/sampling/sampler.h"
#include "qwen3/text/chat_template.h"
#include "qwen3/text/text_stream.h"
#include "qwen3/text/tokenizer.h"

namespace hetero::qwen3 {
namespace {

Json error_of(const Status& status) { return {{"error", status.message()}}; }

Json describe(const Qwen3Config& config) {
  const RotaryFrequencies rope = rotary_frequencies(config, config.max_position_embeddings * 2);
  return {{"is_moe", config.is_moe},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"attention_bias", config.attention_bias},
          {"rope_theta", config.rope_theta},
          {"inverse_frequencies", rope.inverse},
          {"attention_factor", rope.attention_factor},
          {"layer_windows", config.layer_windows},
          {"num_experts", config.num_experts},
          {"num_experts_per_tok", config.num_experts_per_tok},
          {"moe_intermediate_size", config.moe_intermediate_size},
          {"norm_topk_prob", config.norm_topk_prob},
          {"layer_is_sparse", config.layer_is_sparse},
          {"dtype", config.dtype},
          {"eos_token_ids", config.eos_token_ids}};
}

Json inspect_config(const std::string& folder) {
  const auto config = Qwen3Config::read(folder);
  return config.ok() ? describe(config.value()) : error_of(config.status());
}

// The sum of a tensor's bytes, weighted by their place, to compare without printing them.
uint64_t checksum(const void* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum = sum * 31 + static_cast<const unsigned char*>(data)[i];
  return sum;
}

Json inspect_tensors(const std::string& folder) {
  const auto config = Qwen3Config::read(folder);
  if (!config.ok()) return error_of(config.status());
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return error_of(checkpoint.status());
  if (Status status = check_tensors(*checkpoint.value(), config.value()); !status.ok()) return error_of(status);
  Json result = Json::object();
  for (const std::string& name : checkpoint.value()->names()) {
    const auto view = checkpoint.value()->tensor(name);
    if (!view.ok()) return error_of(view.status());
    const SafetensorsFile::Tensor* tensor = checkpoint.value()->find(name);
    result[name] = {tensor->dtype, tensor->sizes, checksum(view.value().data, tensor->data.size())};
  }
  return result;
}

// Answers each line of the input with a line.
void answer_lines(const std::function<Json(const OrderedJson&)>& answer) {
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson json = OrderedJson::parse(line, nullptr, false);
    const Json result = json.is_discarded() ? Json{{"error", "the line is not JSON"}} : answer(json);
    std::cout << result.dump() << "\n";
  }
}

Json decode(const Tokenizer& tokenizer, const OrderedJson& json) {
  const auto ids = json["ids"].get<std::vector<int32_t>>();
  const bool skip = json.value("skip_special", false);
  TextStream stream(tokenizer, skip);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.add(id);
  streamed += stream.finish();
  std::string text = tokenizer.decode(ids, skip);
  if (streamed != text) return {{"error", "the stream gives another text"}};
  return text;
}

Json render(const ChatTemplate& chat, const OrderedJson& json) {
  const auto messages = parse_messages(json.value("messages", OrderedJson()));
  if (!messages.ok()) return error_of(messages.status());
  ChatOptions options;
  if (json.contains("tools")) options.tools = json["tools"].get<std::vector<OrderedJson>>();
  options.add_generation_prompt = json.value("add_generation_prompt", true);
  options.enable_thinking = json.value("enable_thinking", true);
  const auto prompt = chat.render(messages.value(), options);
  return prompt.ok() ? Json(prompt.value()) : error_of(prompt.status());
}

SamplingOptions sampling_options(const OrderedJson& json) {
  SamplingOptions options;
  options.temperature = json.value("temperature", 1.0);
  options.top_k = json.value("top_k", int64_t{0});
  options.top_p = json.value("top_p", 1.0);
  options.min_p = json.value("min_p", 0.0);
  options.repetition_penalty = json.value("repetition_penalty", 1.0);
  options.frequency_penalty = json.value("frequency_penalty", 0.0);
  options.presence_penalty = json.value("presence_penalty", 0.0);
  options.seed = json.value("seed", uint64_t{0});
  options.logprobs = json.value("logprobs", -1);
  for (const auto& pair : json.value("logit_bias", OrderedJson::array())) {
    options.logit_bias.emplace_back(pair[0].get<int32_t>(), pair[1].get<float>());
  }
  return options;
}

Json sample(const OrderedJson& json) {
  const auto logits = json["logits"].get<std::vector<float>>();
  const auto size = static_cast<int64_t>(logits.size());
  auto sequence = SamplingSequence::make(sampling_options(json["options"]), size);
  if (!sequence.ok()) return error_of(sequence.status());
  const auto prompt = json.value("prompt", std::vector<int32_t>());
  if (Status status = sequence.value().add_prompt(prompt); !status.ok()) return error_of(status);
  Sampler sampler(size);
  std::vector<float> probabilities(logits.size());
  if (Status status = sampler.probabilities(sequence.value(), logits, probabilities); !status.ok())
    return error_of(status);
  Json result{{"probabilities", probabilities}, {"tokens", Json::array()}, {"logprobs", Json::array()}};
  for (int64_t i = json.value("count", int64_t{0}); i > 0; --i) {
    const auto token = sampler.sample(sequence.value(), logits);
    if (!token.ok()) return error_of(token.status());
    result["tokens"].push_back(token.value().id);
    if (sequence.value().options().logprobs < 0) continue;
    Json top = Json::array();
    for (const TokenLogprob& entry : token.value().top) top.push_back({entry.id, entry.logprob});
    result["logprobs"].push_back({token.value().logprob, top});
  }
  return result;
}

Json measure_speed(const Tokenizer& tokenizer, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  const auto seconds = [](const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  size_t tokens = 0;
  const double whole = seconds([&] { tokens = tokenizer.encode(text).value().size(); });
  std::vector<std::string> lines;
  for (std::string line; std::getline(buffer, line);) lines.push_back(line);
  const double by_line = seconds([&] {
    for (const std::string& line : lines) (void)tokenizer.encode(line).value().size();
  });
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  return {{"tokens", tokens}, {"whole_mb_s", megabytes / whole}, {"lines_mb_s", megabytes / by_line}};
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  const std::string folder = arguments.size() > 1 ? arguments[1] : ".";
  if (command == "config") {
    std::cout << inspect_config(folder).dump() << "\n";
  } else if (command == "tensors") {
    std::cout << inspect_tensors(folder).dump() << "\n";
  } else if (command == "encode" || command == "decode" || command == "speed") {
    const auto tokenizer = Tokenizer::read(folder);
    if (!tokenizer.ok()) {
      std::cout << error_of(tokenizer.status()).dump() << "\n";
      return 1;
    }
    if (command == "decode") {
      answer_lines([&](const OrderedJson& json) { return decode(tokenizer.value(), json); });
    } else if (command == "speed") {
      std::cout << measure_speed(tokenizer.value(), arguments.at(2)).dump() << "\n";
    } else {
      answer_lines([&](const OrderedJson& json) {
        const auto ids = tokenizer.value().encode(json.get<std::string>());
        return ids.ok() ? Json(ids.value()) : error_of(ids.status());
      });
    }
  } else if (command == "chat") {
    const auto chat = ChatTemplate::read(folder);
    if (!chat.ok()) {
      std::cout << error_of(chat.status()).dump() << "\n";
      return 1;
    }
    if (!chat.value().warning().empty()) std::cerr << chat.value().warning() << "\n";
    answer_lines([&](const OrderedJson& json) { return render(chat.value(), json); });
  } else if (command == "sample") {
    answer_lines(sample);
  } else {
    std::cerr << "qwen3_inspect: config, tensors, encode, decode, chat or speed, and a folder; or sample\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace hetero::qwen3

int main(int count, char** arguments) {
  return hetero::qwen3::run(std::vector<std::string>(arguments + 1, arguments + count));
}
