#include "qwen3/text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <span>

#include "qwen3/checkpoint/json.h"
#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 20;
constexpr size_t kMostAdded = 65536;
constexpr size_t kMostSplits = 16;
// What the ByteLevel pre-tokenizer splits by if it is to.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Status storage_error(std::string message) {
  return Status(ErrorClass::kStorage, "tokenizer.json: " + std::move(message));
}

// The character that stands for each byte: itself if it can be seen, else one from U+0100 on.
constexpr std::array<uint16_t, 256> kCharacterOfByte = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool is_visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    table[byte] = is_visible ? byte : next++;
  }
  return table;
}();

constexpr std::array<int16_t, 0x144> kByteOfCharacter = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  for (int16_t byte = 0; byte < 256; ++byte) table[kCharacterOfByte[static_cast<size_t>(byte)]] = byte;
  return table;
}();

// An option of BPE that must be absent, null or of this value.
void expect_option(JsonFields& fields, const char* key, const Json& value) {
  const Json& found = fields.at(key);
  if (!found.is_null() && found != value) fields.fail(std::string("the option ") + key + " is not supported");
}

// A tokenizer.json whose vocabulary and merges, nearly all of the file, do not become JSON values.
class Builder : public JsonBuilder {
 public:
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::array<std::string, 2>> merges;
  bool has_vocabulary = false;
  bool has_merges = false;

  bool start_object(size_t size) override {
    if (part_ != Part::kRest) return refuse_part();
    if (!is_in_model("vocab")) return JsonBuilder::start_object(size);
    has_vocabulary = true;
    part_ = Part::kVocabulary;
    return true;
  }

  bool end_object() override {
    if (part_ != Part::kVocabulary) return JsonBuilder::end_object();
    part_ = Part::kRest;
    return add(Json());
  }

  bool key(std::string& name) override {
    if (part_ != Part::kVocabulary) return JsonBuilder::key(name);
    if (name.empty()) return refuse("has an empty token in the vocabulary");
    vocabulary.emplace_back(std::move(name), -1);
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (part_ == Part::kRest) return JsonBuilder::number_unsigned(value);
    if (part_ != Part::kVocabulary || value >= static_cast<uint64_t>(kMostIds)) return refuse_part();
    vocabulary.back().second = static_cast<int32_t>(value);
    return true;
  }

  bool start_array(size_t size) override {
    if (part_ == Part::kMerges) {
      part_ = Part::kMerge;
      merges.emplace_back();
      sides_ = 0;
      return true;
    }
    if (part_ != Part::kRest) return refuse_part();
    if (!is_in_model("merges")) return JsonBuilder::start_array(size);
    has_merges = true;
    part_ = Part::kMerges;
    return true;
  }

  bool end_array() override {
    if (part_ == Part::kRest) return JsonBuilder::end_array();
    if (part_ == Part::kMerge) {
      if (sides_ != 2) return refuse_part();
      part_ = Part::kMerges;
      return true;
    }
    part_ = Part::kRest;
    return add(Json());
  }

  // A merge is ["a", "b"] or "a b".
  bool string(std::string& value) override {
    if (part_ == Part::kRest) return JsonBuilder::string(value);
    if (part_ == Part::kMerge && sides_ < 2) {
      merges.back()[sides_++] = std::move(value);
      return true;
    }
    const size_t space = value.find(' ');
    if (part_ != Part::kMerges || space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
      return refuse_part();
    }
    merges.push_back({value.substr(0, space), value.substr(space + 1)});
    return true;
  }

  bool null() override { return part_ == Part::kRest ? JsonBuilder::null() : refuse_part(); }
  bool boolean(bool value) override { return part_ == Part::kRest ? JsonBuilder::boolean(value) : refuse_part(); }
  bool number_integer(int64_t value) override {
    return part_ == Part::kRest ? JsonBuilder::number_integer(value) : refuse_part();
  }
  bool number_float(double value, const std::string& text) override {
    return part_ == Part::kRest ? JsonBuilder::number_float(value, text) : refuse_part();
  }

 private:
  enum class Part : uint8_t { kRest, kVocabulary, kMerges, kMerge };

  bool is_in_model(const char* name) const { return depth() == 2 && key_at(1) == "model" && key_at(2) == name; }

  bool refuse_part() {
    if (part_ != Part::kVocabulary) {
      const size_t number = merges.empty() || part_ == Part::kMerges ? merges.size() : merges.size() - 1;
      return refuse("is wrong: the merge " + std::to_string(number) + " is no pair of tokens");
    }
    return refuse("is wrong: the token " + in_quotes(vocabulary.empty() ? "" : vocabulary.back().first) +
                  " has no id below " + std::to_string(kMostIds));
  }

  Part part_ = Part::kRest;
  size_t sides_ = 0;
};

// Notes a token. False if its id or its spelling is taken by another one.
bool add_token(TokenizerFile& file, const std::string& token, int32_t id) {
  const auto [entry, is_new] = file.ids.try_emplace(token, id);
  if (!is_new) return entry->second == id;
  if (static_cast<size_t>(id) >= file.bytes.size()) file.bytes.resize(static_cast<size_t>(id) + 1);
  if (!file.bytes[static_cast<size_t>(id)].empty()) return false;
  file.bytes[static_cast<size_t>(id)] = bytes_of_spelling(token);
  return true;
}

Status read_vocabulary(Builder& builder, TokenizerFile& file) {
  if (!builder.has_vocabulary) return storage_error("the model has no vocab");
  file.ids.reserve(builder.vocabulary.size() + 64);
  file.bytes.reserve(builder.vocabulary.size() + 64);
  for (const auto& [token, id] : builder.vocabulary) {
    if (file.ids.contains(token)) return storage_error("the vocabulary has the token " + in_quotes(token) + " twice");
    if (!add_token(file, token, id)) {
      return storage_error("the token " + in_quotes(token) + " has the id of another one, " + std::to_string(id));
    }
  }
  return Status();
}

Status read_merges(Builder& builder, TokenizerFile& file) {
  if (!builder.has_merges) return storage_error("the model has no merges");
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = file.ids.find(spelling_of_bytes(std::string(1, static_cast<char>(byte))));
    if (found == file.ids.end()) {
      return storage_error("the vocabulary has no token for the byte " + std::to_string(byte));
    }
    byte_ids[static_cast<size_t>(byte)] = found->second;
  }
  std::vector<BytePairs::Merge> pairs;
  pairs.reserve(builder.merges.size());
  std::string joined;
  for (const auto& [left, right] : builder.merges) {
    joined.assign(left).append(right);
    std::array<int32_t, 3> ids{};
    const std::array<const std::string*, 3> tokens{&left, &right, &joined};
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = file.ids.find(*tokens[i]);
      if (found == file.ids.end()) {
        return storage_error("the merge " + std::to_string(pairs.size()) + " needs the token " + in_quotes(*tokens[i]) +
                             ", which the vocabulary lacks");
      }
      ids[i] = found->second;
    }
    pairs.push_back({ids[0], ids[1], ids[2]});
  }
  file.pairs = BytePairs(byte_ids, pairs);
  return Status();
}

Status read_model(const Json& json, Builder& builder, TokenizerFile& file) {
  JsonFields fields(json, "tokenizer.json: the model");
  std::string type = "BPE";
  fields.read("type", type);
  if (type != "BPE") fields.fail("its type is " + in_quotes(type) + ", and only BPE is supported");
  expect_option(fields, "dropout", 0.0);
  expect_option(fields, "continuing_subword_prefix", "");
  expect_option(fields, "end_of_word_suffix", "");
  expect_option(fields, "byte_fallback", false);
  fields.read("ignore_merges", file.ignores_merges);
  if (!fields.status().ok()) return fields.status();
  if (Status status = read_vocabulary(builder, file); !status.ok()) return status;
  return read_merges(builder, file);
}

Status read_added(const Json& list, TokenizerFile& file) {
  if (list.is_null()) return Status();
  if (!list.is_array() || list.size() > kMostAdded) {
    return storage_error("added_tokens is no list of at most " + std::to_string(kMostAdded) + " tokens");
  }
  for (const Json& json : list) {
    JsonFields fields(json, "tokenizer.json: added_tokens[" + std::to_string(file.added.size()) + "]");
    AddedToken token;
    int64_t id = 0;
    fields.require("id").read("id", id, 0, kMostIds - 1).require("content").read("content", token.content);
    token.is_normalized = !fields.at("special").is_boolean() || !fields.at("special").get<bool>();
    fields.read("special", token.is_special)
        .read("normalized", token.is_normalized)
        .read("lstrip", token.takes_space_before)
        .read("rstrip", token.takes_space_behind)
        .read("single_word", token.is_single_word);
    if (token.content.empty()) fields.fail("its content is empty");
    if (!fields.status().ok()) return fields.status();
    token.id = static_cast<int32_t>(id);
    if (!add_token(file, token.content, token.id)) {
      return storage_error("the added token " + in_quotes(token.content) + " has the id " + std::to_string(id) +
                           ", which does not agree with the other tokens");
    }
    file.added.push_back(std::move(token));
  }
  return Status();
}

// The parts of a Sequence, or the one that is there.
std::vector<const Json*> parts_of(const Json& json, const char* list) {
  std::vector<const Json*> parts;
  if (json.is_null()) return parts;
  if (json.is_object() && json.value("type", Json()) == "Sequence" && json.contains(list) && json[list].is_array()) {
    for (const Json& part : json[list]) parts.push_back(&part);
  } else {
    parts.push_back(&json);
  }
  return parts;
}

std::string type_of(const Json& json) {
  const auto found = json.is_object() ? json.find("type") : json.end();
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : "none";
}

Status read_normalizer(const Json& json, TokenizerFile& file) {
  for (const Json* part : parts_of(json, "normalizers")) {
    if (type_of(*part) != "NFC") {
      return storage_error("the normalizer " + in_quotes(type_of(*part)) + " is not supported, only NFC");
    }
    file.is_normalized = true;
  }
  return Status();
}

Status add_split(std::string_view expression, TokenizerFile& file) {
  if (file.splits.size() == kMostSplits)
    return storage_error("there are more than " + std::to_string(kMostSplits) + " splits");
  auto pattern = Pattern::compile(expression);
  if (!pattern.ok()) return storage_error(pattern.status().message());
  file.splits.push_back(std::move(pattern.value()));
  return Status();
}

Status read_split(const Json& json, TokenizerFile& file) {
  if (json.value("behavior", Json()) != "Isolated") {
    return storage_error("a Split pre-tokenizer is supported with the behavior \"Isolated\" only");
  }
  const Json pattern = json.value("pattern", Json());
  const Json expression = pattern.is_object() ? pattern.value("Regex", Json()) : Json();
  if (!expression.is_string()) return storage_error("a Split pre-tokenizer has no regular expression");
  return add_split(expression.get<std::string>(), file);
}

Status read_pre_tokenizer(const Json& json, TokenizerFile& file) {
  bool has_bytes = false;
  for (const Json* part : parts_of(json, "pretokenizers")) {
    const std::string type = type_of(*part);
    if (has_bytes) return storage_error("a pre-tokenizer follows ByteLevel, which must be the last");
    Status status;
    if (type == "Split") {
      status = read_split(*part, file);
    } else if (type == "ByteLevel") {
      has_bytes = true;
      bool adds_space = true;
      bool uses_pattern = true;
      JsonFields fields(*part, "tokenizer.json: ByteLevel");
      fields.read("add_prefix_space", adds_space).read("use_regex", uses_pattern);
      if (adds_space) fields.fail("add_prefix_space is not supported");
      status = fields.status();
      if (status.ok() && uses_pattern) status = add_split(kByteLevelPattern, file);
    } else {
      status = storage_error("the pre-tokenizer " + in_quotes(type) + " is not supported, only Split and ByteLevel");
    }
    if (!status.ok()) return status;
  }
  return has_bytes ? Status() : storage_error("the pre-tokenizer has no ByteLevel");
}

// What changes neither the ids nor the text of byte-level BPE.
Status check_rest(const Json& json) {
  const Json post = json.value("post_processor", Json());
  if (!post.is_null() && type_of(post) != "ByteLevel") {
    return storage_error("the post-processor " + in_quotes(type_of(post)) + " is not supported, only ByteLevel");
  }
  const Json decoder = json.value("decoder", Json());
  if (type_of(decoder) != "ByteLevel") {
    return storage_error("the decoder " + in_quotes(type_of(decoder)) + " is not supported, only ByteLevel");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (!json.value(key, Json()).is_null()) return storage_error(std::string(key) + " is not supported");
  }
  return Status();
}

}  // namespace

std::string bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const size_t length = utf8_length(spelling[at]);
    const auto first = static_cast<uint32_t>(static_cast<unsigned char>(spelling[at]));
    uint32_t character = first;
    if (length == 2) character = (first & 0x1F) << 6 | (static_cast<unsigned char>(spelling[at + 1]) & 0x3F);
    if (length > 2 || character >= kByteOfCharacter.size() || kByteOfCharacter[character] < 0) {
      return std::string(spelling);
    }
    bytes += static_cast<char>(kByteOfCharacter[character]);
    at += length;
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    const uint16_t character = kCharacterOfByte[static_cast<unsigned char>(c)];
    if (character < 0x80) {
      spelling += static_cast<char>(character);
    } else {
      spelling += static_cast<char>(0xC0 | character >> 6);
      spelling += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return spelling;
}

Result<TokenizerFile> TokenizerFile::parse(std::string_view text) {
  Builder builder;
  auto parsed = builder.build(text, "tokenizer.json");
  if (!parsed.ok()) return parsed.status();
  const Json& json = parsed.value();
  JsonFields fields(json, "tokenizer.json");
  fields.require("model");
  if (!fields.status().ok()) return fields.status();
  TokenizerFile file;
  Status status = read_model(fields.at("model"), builder, file);
  if (status.ok()) status = read_added(fields.at("added_tokens"), file);
  if (status.ok()) status = read_normalizer(fields.at("normalizer"), file);
  if (status.ok()) status = read_pre_tokenizer(fields.at("pre_tokenizer"), file);
  if (status.ok()) status = check_rest(json);
  if (!status.ok()) return status;
  return file;
}

}  // namespace hetero::qwen3
