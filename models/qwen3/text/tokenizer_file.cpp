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

Result<int32_t> read_id(const Json& id, const std::string& token) {
  if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(kMostIds)) return id.get<int32_t>();
  return storage_error("the token " + in_quotes(token) + " has no id below " + std::to_string(kMostIds));
}

// Notes a token. False if its id or its spelling is taken by another one.
bool add_token(TokenizerFile& file, const std::string& token, int32_t id) {
  const auto [entry, is_new] = file.ids.try_emplace(token, id);
  if (!is_new) return entry->second == id;
  if (static_cast<size_t>(id) >= file.bytes.size()) file.bytes.resize(static_cast<size_t>(id) + 1);
  if (!file.bytes[static_cast<size_t>(id)].empty()) return false;
  file.bytes[static_cast<size_t>(id)] = bytes_of_spelling(token);
  return true;
}

Status read_vocabulary(const Json& vocabulary, TokenizerFile& file) {
  if (!vocabulary.is_object()) return storage_error("the model has no vocab");
  file.ids.reserve(vocabulary.size() + 64);
  file.bytes.reserve(vocabulary.size() + 64);
  for (const auto& [token, number] : vocabulary.items()) {
    const auto id = read_id(number, token);
    if (!id.ok()) return id.status();
    if (token.empty()) return storage_error("the vocabulary has an empty token");
    if (!add_token(file, token, id.value())) {
      return storage_error("the token " + in_quotes(token) + " has the id of another one, " +
                           std::to_string(id.value()));
    }
  }
  return Status();
}

// The two sides of a merge, in either spelling: "a b" or ["a", "b"].
bool read_sides(const Json& merge, std::string& left, std::string& right) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    left = merge[0].get_ref<const std::string&>();
    right = merge[1].get_ref<const std::string&>();
    return true;
  }
  if (!merge.is_string()) return false;
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return false;
  left.assign(text, 0, space);
  right.assign(text, space + 1);
  return true;
}

Status read_merges(const Json& merges, TokenizerFile& file) {
  if (!merges.is_array()) return storage_error("the model has no merges");
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = file.ids.find(spelling_of_bytes(std::string(1, static_cast<char>(byte))));
    if (found == file.ids.end())
      return storage_error("the vocabulary has no token for the byte " + std::to_string(byte));
    byte_ids[static_cast<size_t>(byte)] = found->second;
  }
  std::vector<BytePairs::Merge> pairs;
  pairs.reserve(merges.size());
  std::string left;
  std::string right;
  const auto what = [&] { return "the merge " + std::to_string(pairs.size()); };
  for (const Json& merge : merges) {
    if (!read_sides(merge, left, right)) return storage_error(what() + " is no pair of tokens");
    std::array<int32_t, 3> ids{};
    const std::string joined = left + right;
    const std::array<const std::string*, 3> tokens{&left, &right, &joined};
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = file.ids.find(*tokens[i]);
      if (found == file.ids.end()) {
        return storage_error(what() + " needs the token " + in_quotes(*tokens[i]) + ", which the vocabulary lacks");
      }
      ids[i] = found->second;
    }
    pairs.push_back({ids[0], ids[1], ids[2]});
  }
  file.pairs = BytePairs(byte_ids, pairs);
  return Status();
}

Status read_model(const Json& json, TokenizerFile& file) {
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
  if (Status status = read_vocabulary(fields.at("vocab"), file); !status.ok()) return status;
  return read_merges(fields.at("merges"), file);
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
  auto parsed = parse_json(text, "tokenizer.json");
  if (!parsed.ok()) return parsed.status();
  const Json& json = parsed.value();
  JsonFields fields(json, "tokenizer.json");
  fields.require("model");
  if (!fields.status().ok()) return fields.status();
  TokenizerFile file;
  Status status = read_model(fields.at("model"), file);
  if (status.ok()) status = read_added(fields.at("added_tokens"), file);
  if (status.ok()) status = read_normalizer(fields.at("normalizer"), file);
  if (status.ok()) status = read_pre_tokenizer(fields.at("pre_tokenizer"), file);
  if (status.ok()) status = check_rest(json);
  if (!status.ok()) return status;
  return file;
}

}  // namespace hetero::qwen3
