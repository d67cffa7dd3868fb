// Tokenizer: text to token ids and back, as the `tokenizers` package does with the same
// tokenizer.json.
//
// It reads byte-level BPE as Qwen has it: added tokens, NFC, a Split by a regular expression, BPE
// over bytes. A file with another kind of model, normalizer or pre-tokenizer is refused in one
// sentence. encode() works in this order:
//
//   1. Added tokens that are not `normalized` are found in the text. Of several at one place, the
//      longest counts.
//   2. The text between them is normalized, and the `normalized` added tokens are found in it.
//   3. What is left is cut into words by the regular expression.
//   4. Each word is encoded by merges (byte_pairs.h). Words that were seen come from a cache.
//
// Special tokens in a text are recognized wherever the text is from. Give text of strangers with
// `parse_special = false`.
//
// Thread safety: any thread may call any function. One encode() at a time uses the cache.
// Ownership: values; what is returned by reference lives as long as the tokenizer.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"

namespace hetero::qwen3 {

class Tokenizer {
 public:
  // Reads tokenizer.json of a folder. Errors: kStorage.
  static Result<Tokenizer> read(const std::filesystem::path& folder);
  // From the text of tokenizer.json.
  static Result<Tokenizer> parse(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Errors: kUsage for text that is not UTF-8, with the position of the first wrong byte.
  // Without `parse_special`, special tokens are encoded as the text that they look like.
  Result<std::vector<int32_t>> encode(std::string_view text, bool parse_special = true) const;

  // Bytes that are no UTF-8 become U+FFFD. Ids without a token give nothing: models have more
  // embeddings than there are tokens. TextStream (text_stream.h) decodes piece by piece.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of a token; empty for an id that has none.
  const std::string& bytes(int32_t id) const;
  // Of an added token or of the vocabulary, as tokenizer.json spells it ("<|im_end|>", "Ġthe").
  std::optional<int32_t> id(std::string_view token) const;
  bool is_special(int32_t id) const;

  // One more than the highest id.
  int32_t size() const;
  // Whether all ids are below the vocab_size of a model. Errors: kStorage.
  Status check_fits(int64_t vocab_size) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace hetero::qwen3
