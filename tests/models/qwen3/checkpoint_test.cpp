// Checkpoints: tensors without a copy, and files that are damaged or do not fit together.

#include "qwen3/checkpoint/checkpoint.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch/catch.h"
#include "tests/models/qwen3/small_files.h"

namespace hetero::qwen3 {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, FileTensor>;

std::string bytes_of(size_t count, char first) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(first + static_cast<char>(i));
  return bytes;
}

// Tensors of a model, as bf16.
Tensors tensors_of(const Qwen3Config& config) {
  Tensors tensors;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    size_t count = 1;
    for (const int64_t size : expected.sizes) count *= static_cast<size_t>(size);
    tensors[expected.name] = {"BF16", expected.sizes, bytes_of(count * 2, static_cast<char>(tensors.size()))};
  }
  return tensors;
}

Qwen3Config config_of(const Json& json) { return Qwen3Config::parse(json.dump()).value(); }

// The sentence with which a file of this content is refused; empty if it is opened.
std::string refusal(const std::string& content) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", content);
  const auto checkpoint = Checkpoint::open(folder.path());
  return checkpoint.ok() ? "" : checkpoint.status().message();
}

std::string refusal_of(const std::string& header, const std::string& data) {
  return refusal(safetensors_of(header, data));
}

Status check(const Tensors& tensors, const Qwen3Config& config) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors(tensors));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.ok());
  return check_tensors(*checkpoint.value(), config);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("tensors of one file are views of the mapping") {
  const TemporaryFolder folder;
  const Tensors tensors{
      {"a", {"F32", {2, 3}, bytes_of(24, 0)}}, {"b", {"BF16", {4}, bytes_of(8, 50)}}, {"c", {"I64", {0}, ""}}};
  folder.write("model.safetensors", safetensors(tensors));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint.value()->names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(checkpoint.value()->bytes() == 32);
  const auto view = checkpoint.value()->tensor("a");
  REQUIRE(view.ok());
  CHECK(to_string(view.value()) == "f32[2,3]");
  CHECK(std::memcmp(view.value().data, tensors.at("a").data.data(), 24) == 0);
  CHECK(checkpoint.value()->tensor("b").value().data != nullptr);
  const auto unknown = checkpoint.value()->tensor("d");
  REQUIRE(!unknown.ok());
  CHECK(unknown.status().error_class() == ErrorClass::kUsage);
}

TEST_CASE("data that are not aligned in the file are copied once, all others never") {
  const Tensors tensors{{"a", {"F32", {2}, bytes_of(8, 1)}}, {"b", {"BF16", {2}, bytes_of(4, 9)}}};
  bool copied = false;
  bool shared = false;
  for (size_t padding = 0; padding < 8; ++padding) {
    const TemporaryFolder folder;
    folder.write("model.safetensors", safetensors(tensors, padding));
    const auto checkpoint = Checkpoint::open(folder.path());
    REQUIRE(checkpoint.ok());
    for (const char* name : {"a", "b"}) {
      const auto view = checkpoint.value()->tensor(name).value();
      const size_t bytes = name[0] == 'a' ? 4 : 2;
      CHECK(reinterpret_cast<uintptr_t>(view.data) % bytes == 0);
      CHECK(std::memcmp(view.data, tensors.at(name).data.data(), tensors.at(name).data.size()) == 0);
      CHECK(checkpoint.value()->tensor(name).value().data == view.data);
      const bool is_copy = view.data != checkpoint.value()->find(name)->data.data();
      const bool is_aligned = reinterpret_cast<uintptr_t>(checkpoint.value()->find(name)->data.data()) % bytes == 0;
      CHECK(is_copy != is_aligned);
      (is_copy ? copied : shared) = true;
    }
  }
  CHECK(copied);
  CHECK(shared);
}

TEST_CASE("hints change no byte") {
  const TemporaryFolder folder;
  const std::string data = bytes_of(100000, 3);
  folder.write("model.safetensors", safetensors({{"a", {"U8", {100000}, data}}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.ok());
  checkpoint.value()->will_need("a");
  checkpoint.value()->release("a");
  checkpoint.value()->release("unknown");
  CHECK(std::memcmp(checkpoint.value()->tensor("a").value().data, data.data(), data.size()) == 0);
}

TEST_CASE("files that are damaged are refused in a sentence") {
  const std::string entry = R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  const std::string eight(8, 'x');
  CHECK(refusal_of("{" + entry + "}", eight).empty());
  CHECK(refusal_of("{}", "").empty());
  CHECK(refusal_of("{\"__metadata__\": {\"format\": \"pt\"}, " + entry + "}", eight).empty());
  struct Case {
    std::string header;
    std::string data;
    const char* says;
  };
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string("{\"a\": {\"dtype\": ") + dtype + ", \"shape\": " + shape + ", \"data_offsets\": " + offsets +
           "}}";
  };
  const std::vector<Case> cases = {
      {"", "", "not JSON"},
      {"[]", "", "not JSON"},
      {"{", "", "not JSON"},
      {"{\"a\": \xFF}", "", "not JSON"},
      {"{" + entry + ", " + entry + "}", eight, "twice"},
      {std::string(200, '{'), "", "not JSON"},
      {"{\"a\": 1}", "", "exactly"},
      {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2]}}", eight, "exactly"},
      {"{\"__metadata__\": {\"x\": 1}}", "", "__metadata__"},
      {"{\"__metadata__\": [1]}", "", "__metadata__"},
      {one("\"F4\"", "[2]", "[0, 8]"), eight, "F4"},
      {one("7", "[2]", "[0, 8]"), eight, "7"},
      {one("\"F32\"", "[-2]", "[0, 8]"), eight, "shape"},
      {one("\"F32\"", "2", "[0, 8]"), eight, "shape"},
      {one("\"F32\"", "[2.0]", "[0, 8]"), eight, "shape"},
      {one("\"F32\"", "[4294967296, 4294967296]", "[0, 8]"), eight, "shape"},
      {one("\"F32\"", "[9223372036854775808]", "[0, 8]"), eight, "shape"},
      {one("\"F32\"", "[4611686018427387905]", "[0, 4]"), "xxxx", "shape"},
      {one("\"F32\"", "[2]", "[0]"), eight, "data_offsets"},
      {one("\"F32\"", "[2]", "[-8, 0]"), eight, "data_offsets"},
      {one("\"F32\"", "[2]", "[8, 0]"), eight, "offsets"},
      {one("\"F32\"", "[2]", "[0, 4]"), eight, "take 8 bytes"},
      {one("\"F32\"", "[2]", "[0, 8]"), "xxxx", "cut off"},
      {one("\"F32\"", "[2]", "[18446744073709551608, 18446744073709551616]"), eight, "data_offsets"},
      {one("\"F32\"", "[2]", "[8, 16]"), eight + eight, "gap"},
      {one("\"F32\"", "[2]", "[0, 8]"), eight + "x", "belong to no tensor"},
      {"{" + entry + R"(, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})", eight + "xxxx", "overlaps"},
      {"{" + entry + R"(, "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", eight, "overlaps"},
  };
  for (const Case& bad : cases) {
    const std::string sentence = refusal_of(bad.header, bad.data);
    INFO(bad.header << ": " << sentence);
    CHECK(contains(sentence, bad.says));
  }
  CHECK(contains(refusal(""), "too short"));
  CHECK(contains(refusal("\x01\x02"), "too short"));
  CHECK(contains(refusal(std::string(8, '\xFF') + "{}"), "header"));
  CHECK(contains(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "header"));
  const TemporaryFolder folder;
  CHECK(!Checkpoint::open(folder.path()).ok());
  CHECK(!Checkpoint::open(folder.path() / "none.safetensors").ok());
}

TEST_CASE("each truncation of a file is refused") {
  const std::string file = safetensors({{"a", {"F32", {2, 2}, bytes_of(16, 0)}}, {"b", {"U8", {3}, "xyz"}}});
  CHECK(refusal(file).empty());
  for (size_t length = 0; length < file.size(); ++length) CHECK(!refusal(file.substr(0, length)).empty());
}

TEST_CASE("shards are one checkpoint, if they and the index agree") {
  const std::string first = safetensors({{"a", {"F32", {1}, "aaaa"}}, {"b", {"F32", {1}, "bbbb"}}});
  const std::string second = safetensors({{"c", {"F32", {1}, "cccc"}}});
  const auto open = [&](const Json& map, const std::string& other) {
    const TemporaryFolder folder;
    folder.write("one.safetensors", first);
    folder.write("two.safetensors", other);
    folder.write("model.safetensors.index.json", Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
    const auto checkpoint = Checkpoint::open(folder.path());
    return checkpoint.ok() ? std::to_string(checkpoint.value()->names().size()) : checkpoint.status().message();
  };
  const Json right{{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}};
  CHECK(open(right, second) == "3");
  const auto changed = [&](const char* name, const Json& shard) {
    Json map = right;
    if (shard.is_null()) {
      map.erase(name);
    } else {
      map[name] = shard;
    }
    return open(map, second);
  };
  CHECK(contains(changed("d", "two.safetensors"), "\"d\" is not in"));
  CHECK(contains(changed("b", nullptr), "does not say that the tensor \"b\""));
  CHECK(contains(changed("b", "two.safetensors"), "\"b\""));
  CHECK(contains(changed("c", "three.safetensors"), "three.safetensors"));
  CHECK(contains(changed("c", "../two.safetensors"), "name of a file in the folder"));
  CHECK(contains(changed("c", "/etc/passwd"), "name of a file in the folder"));
  CHECK(contains(changed("c", ".."), "name of a file in the folder"));
  CHECK(contains(changed("c", 3), "name of a file in the folder"));
  CHECK(contains(open(right, second.substr(0, second.size() - 1)), "cut off"));
  CHECK(contains(open(right, safetensors({{"c", {"F32", {1}, "cccc"}}, {"a", {"F32", {1}, "aaaa"}}})),
                 "more than one shard"));
  CHECK(contains(open(Json(7), second), "weight_map"));
}

TEST_CASE("each tensor of the model must be there, and no other") {
  for (const Json& json : {small_config(), small_moe_config()}) {
    const Qwen3Config config = config_of(json);
    const Tensors tensors = tensors_of(config);
    CHECK(check(tensors, config).ok());
    for (const auto& [name, tensor] : tensors) {
      Tensors without = tensors;
      without.erase(name);
      const Status status = check(without, config);
      REQUIRE(!status.ok());
      CHECK(contains(status.message(), "\"" + name + "\""));
      Tensors other = tensors;
      other[name].sizes.back() *= 2;
      other[name].data += other[name].data;
      const Status shape = check(other, config);
      REQUIRE(!shape.ok());
      CHECK(contains(shape.message(), "\"" + name + "\" has the shape"));
    }
    Tensors surplus = tensors;
    surplus["model.layers.2.mlp.up_proj.weight"] = {"BF16", {1}, "xx"};
    CHECK(contains(check(surplus, config).message(), "which the model does not have"));
    Tensors integer = tensors;
    integer["model.norm.weight"].dtype = "I16";
    CHECK(contains(check(integer, config).message(), "must be f32, bf16 or f16"));
  }
}

TEST_CASE("a tied head may be there or not, and biases are there where the configuration asks") {
  Json json = small_config();
  json["tie_word_embeddings"] = true;
  Tensors tensors = tensors_of(config_of(json));
  CHECK(check(tensors, config_of(json)).ok());
  tensors.erase("lm_head.weight");
  CHECK(check(tensors, config_of(json)).ok());
  CHECK(!check(tensors, config_of(small_config())).ok());
  json["attention_bias"] = true;
  CHECK(contains(check(tensors, config_of(json)).message(), "7 others"));
  json["quantization_config"] = {{"quant_method", "fp8"}};
  CHECK(contains(check(tensors, config_of(json)).message(), "quantized with \"fp8\""));
}

}  // namespace hetero::qwen3
