// hetero_qwen3_fuzz: files of a model that are damaged in every way, by seed.
//
//   hetero_qwen3_fuzz [--seeds N] [--first S] [--seed S] [--keep PATH]
//
// A seed takes a configuration, a tokenizer, a safetensors file, an index, a chat template or text
// to encode, and changes it: bytes, runs and pieces of the text, numbers replaced by extremes,
// values of the JSON replaced, removed and exchanged. What must hold:
//
//   - the file is refused in one sentence, or what is read of it is valid and can be used;
//   - nothing crashes, and no exception comes out.
//
// The first seed that breaks one of these ends the run with status 1; --keep writes its file.
//
// Thread safety: one thread.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "qwen3/checkpoint/checkpoint.h"
#include "qwen3/checkpoint/config.h"
#include "qwen3/checkpoint/rope.h"
#include "qwen3/text/chat_template.h"
#include "qwen3/text/text_stream.h"
#include "qwen3/text/tokenizer.h"
#include "qwen3/text/unicode.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Json = nlohmann::json;
using Random = std::mt19937_64;

// Ends the run.
struct Broken {
  std::string what;
};

void must(bool holds, const std::string& what) {
  if (!holds) throw Broken{what};
}

// A sentence is not empty, is one line of text, and is not as long as what it complains about.
void check_refusal(const Status& status) {
  const std::string& message = status.message();
  must(!message.empty() && message.size() < 2000, "the refusal is no sentence: " + message);
  must(message.find('\n') == std::string::npos, "the refusal has several lines: " + message);
}

// Values of the JSON, in any depth.
void collect(Json& json, std::vector<Json*>& values) {
  values.push_back(&json);
  if (json.is_structured()) {
    for (Json& value : json) collect(value, values);
  }
}

Json random_value(Random& random) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    0,
                                    1,
                                    -1,
                                    3,
                                    1e300,
                                    -0.5,
                                    INT64_MAX,
                                    INT64_MIN,
                                    UINT64_MAX,
                                    uint64_t{1} << 32,
                                    "",
                                    "a",
                                    "F32",
                                    "BF16",
                                    "\x01",
                                    Json::array(),
                                    Json::object(),
                                    {0, 8},
                                    {8, 0},
                                    {{"a", 1}},
                                    "../x",
                                    std::string(300, 'x'),
                                    "Ġ",
                                    255,
                                    1 << 20};
  return values[random() % values.size()];
}

std::string damage_json(Random& random, Json json) {
  for (size_t left = 1 + random() % 3; left > 0; --left) {
    std::vector<Json*> values;
    collect(json, values);
    Json& chosen = *values[random() % values.size()];
    switch (random() % 4) {
      case 0:
        chosen = random_value(random);
        break;
      case 1: {
        Json other = *values[random() % values.size()];
        chosen = std::move(other);
        break;
      }
      case 2:
        if (chosen.is_object() && !chosen.empty()) {
          chosen.erase(std::next(chosen.begin(), static_cast<ptrdiff_t>(random() % chosen.size())));
        } else if (chosen.is_array() && !chosen.empty()) {
          chosen.erase(random() % chosen.size());
        }
        break;
      default:
        if (chosen.is_number_integer()) chosen = static_cast<int64_t>(chosen.get<uint64_t>() + random() % 5 - 2);
        if (chosen.is_array()) chosen.push_back(random_value(random));
        if (chosen.is_object()) chosen["extra" + std::to_string(random() % 3)] = random_value(random);
    }
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string damage_bytes(Random& random, std::string text) {
  for (size_t left = 1 + random() % 4; left > 0 && !text.empty(); --left) {
    const size_t at = random() % text.size();
    const size_t length = std::min<size_t>(1 + random() % 20, text.size() - at);
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), length));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text[at] = "{}[]\",:0129-\\"[random() % 13];
        break;
    }
  }
  return text;
}

std::string damage(Random& random, const Json& json) {
  return random() % 3 == 0 ? damage_bytes(random, json.dump()) : damage_json(random, json);
}

void try_config(Random& random, std::string& file) {
  Json json = random() % 2 ? small_config() : small_moe_config();
  if (random() % 4 == 0) {
    json["quantization_config"] = {
        {"quant_method", random() % 2 ? "gptq" : "awq"}, {"bits", 4}, {"group_size", 32}, {"sym", true}};
  }
  file = damage(random, json);
  const auto config = Qwen3Config::parse(file);
  if (!config.ok()) return check_refusal(config.status());
  const Qwen3Config& read = config.value();
  must(read.num_attention_heads % read.num_key_value_heads == 0, "heads do not divide");
  must(read.layer_windows.size() == static_cast<size_t>(read.num_hidden_layers), "a layer has no window");
  must(read.layer_is_sparse.size() == static_cast<size_t>(read.num_hidden_layers), "a layer is of no kind");
  must(rotary_frequencies(read, 1000).inverse.size() == static_cast<size_t>(read.head_dim / 2), "wrong frequencies");
  const QuantizationConfig& quantization = read.quantization;
  if (quantization.method == "gptq" || quantization.method == "awq") {
    must(quantization.bits == 4 || quantization.bits == 8, "weights of other bits");
    must(quantization.group >= 0 && quantization.group % 32 == 0, "groups that cannot be read");
  }
  if (read.num_hidden_layers < 100 && read.num_experts < 100) must(!expected_tensors(read).empty(), "no tensors");
}

// Reads each byte, as a kernel would.
void use(const Checkpoint& checkpoint) {
  uint64_t sum = 0;
  for (const std::string& name : checkpoint.names()) {
    const auto view = checkpoint.tensor(name);
    must(view.ok(), "a tensor cannot be read");
    const SafetensorsFile::Tensor* tensor = checkpoint.find(name);
    size_t count = 1;
    for (const int64_t size : tensor->sizes) count *= static_cast<size_t>(size);
    must(count * static_cast<size_t>(tensor->element_bytes) == tensor->data.size(), "a tensor has other bytes");
    must(view.value().dtype >= 0, "a tensor has an unknown dtype");
    for (size_t i = 0; i < tensor->data.size(); ++i) sum += static_cast<const unsigned char*>(view.value().data)[i];
  }
  must(sum != 1, "unreachable");  // keeps the reads
}

void try_safetensors(Random& random, std::string& file) {
  Json header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (int i = 0; i < 4; ++i) {
    const int64_t rows = static_cast<int64_t>(random() % 4);
    header["t" + std::to_string(i)] = {
        {"dtype", "F32"}, {"shape", {rows, 2}}, {"data_offsets", {data.size(), data.size() + rows * 8}}};
    data += std::string(static_cast<size_t>(rows) * 8, static_cast<char>('a' + i));
  }
  file = random() % 2 ? safetensors_of(damage_json(random, header) + std::string(random() % 8, ' '), data)
                      : damage_bytes(random, safetensors_of(header.dump(), data));
  const TemporaryFolder folder;
  folder.write("model.safetensors", file);
  const auto checkpoint = Checkpoint::open(folder.path());
  if (!checkpoint.ok()) return check_refusal(checkpoint.status());
  use(*checkpoint.value());
  const Status status = check_tensors(*checkpoint.value(), Qwen3Config::parse(small_config().dump()).value());
  must(!status.ok(), "a checkpoint without the model's tensors is accepted");
  check_refusal(status);
}

void try_index(Random& random, std::string& file) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", safetensors({{"a", {"U8", {1}, "a"}}, {"b", {"U8", {1}, "b"}}}));
  folder.write("two.safetensors", safetensors({{"c", {"U8", {1}, "c"}}}));
  file =
      damage(random, {{"metadata", {{"total_size", 3}}},
                      {"weight_map", {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}}});
  folder.write("model.safetensors.index.json", file);
  const auto checkpoint = Checkpoint::open(folder.path());
  if (!checkpoint.ok()) return check_refusal(checkpoint.status());
  use(*checkpoint.value());
}

std::string random_text(Random& random) {
  std::string text;
  for (size_t left = random() % 30; left > 0; --left) {
    const std::array<const char*, 8> parts{"the ", "<|im_end|>", "\n\n ", "é", "漢字", "e\u0301", "123", "\x01"};
    text += random() % 4 ? parts[random() % parts.size()] : std::string(1, static_cast<char>(random()));
  }
  return text;
}

void try_text(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, text.size() % 2 == 0);
  const bool is_valid = find_invalid_utf8(text) == std::string_view::npos;
  if (!ids.ok()) {
    check_refusal(ids.status());
    return must(!is_valid || ids.status().error_class() == ErrorClass::kResource, "valid text is refused");
  }
  must(is_valid, "invalid text is encoded");
  TextStream stream(tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids.value()) {
    must(id >= 0 && id < tokenizer.size(), "an id is out of range");
    streamed += stream.add(id);
  }
  must(streamed + stream.finish() == tokenizer.decode(ids.value()), "the stream gives another text");
}

void try_tokenizer(Random& random, std::string& file) {
  file = damage(random, small_tokenizer());
  const auto tokenizer = Tokenizer::parse(file);
  if (!tokenizer.ok()) return check_refusal(tokenizer.status());
  for (int i = 0; i < 5; ++i) try_text(tokenizer.value(), random_text(random));
}

void try_encode(Random& random, std::string& file) {
  auto parsed = Tokenizer::parse(small_tokenizer().dump());
  must(parsed.ok(), "the tokenizer is refused");
  const Tokenizer& tokenizer = parsed.value();
  for (int i = 0; i < 20; ++i) {
    file = random_text(random);
    try_text(tokenizer, file);
    if (find_invalid_utf8(file) != std::string_view::npos) continue;
    must(tokenizer.decode(tokenizer.encode(file).value()) == to_nfc(file), "the text does not come back");
  }
}

void try_chat(Random& random, std::string& file) {
  file = damage(random, {{{"role", "system"}, {"content", "S"}},
                         {{"role", "user"}, {"content", "Hello"}},
                         {{"role", "assistant"},
                          {"content", "<think>\nx\n</think>\n\nHi"},
                          {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"x", 1.5}}}}}}}}},
                         {{"role", "tool"}, {"content", {{{"type", "text"}, {"text", "r"}}}}}});
  const OrderedJson json = OrderedJson::parse(file, nullptr, false);
  if (json.is_discarded()) return;
  const auto messages = parse_messages(json);
  if (!messages.ok()) return check_refusal(messages.status());
  for (const auto kind : {ChatTemplate::Kind::kHybrid, ChatTemplate::Kind::kThinking, ChatTemplate::Kind::kInstruct,
                          ChatTemplate::Kind::kChatMl}) {
    const auto prompt = ChatTemplate(kind).render(messages.value(), {.tools = {json}});
    if (!prompt.ok()) {
      check_refusal(prompt.status());
    } else {
      must(find_invalid_utf8(prompt.value()) == std::string_view::npos, "the prompt is not UTF-8");
    }
  }
}

// Whether the seed holds; says what does not.
bool try_seed(uint64_t seed, const std::string& keep) {
  using Try = void (*)(Random&, std::string&);
  constexpr std::array<Try, 6> kTries{try_config, try_safetensors, try_index, try_tokenizer, try_encode, try_chat};
  Random random(seed);
  std::string file;
  std::string what;
  try {
    kTries[seed % kTries.size()](random, file);
    return true;
  } catch (const Broken& broken) {
    what = broken.what;
  } catch (const std::exception& exception) {
    what = std::string("an exception came out: ") + exception.what();
  }
  std::printf("seed %llu: %s\n  hetero_qwen3_fuzz --seed %llu\n", static_cast<unsigned long long>(seed), what.c_str(),
              static_cast<unsigned long long>(seed));
  if (!keep.empty()) std::ofstream(keep, std::ios::binary) << file;
  return false;
}

int run(const std::vector<std::string>& arguments) {
  uint64_t first = 0;
  uint64_t count = 1000;
  std::string keep;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string& value = arguments[i + 1];
    if (arguments[i] == "--seeds") count = std::stoull(value);
    if (arguments[i] == "--first") first = std::stoull(value);
    if (arguments[i] == "--keep") keep = value;
    if (arguments[i] == "--seed") {
      first = std::stoull(value);
      count = 1;
    }
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!try_seed(seed, keep)) return 1;
  }
  std::printf("qwen3-fuzz: %llu seeds as they should be\n", static_cast<unsigned long long>(count));
  return 0;
}

}  // namespace
}  // namespace hetero::qwen3

int main(int count, char** arguments) {
  return hetero::qwen3::run(std::vector<std::string>(arguments + 1, arguments + count));
}
