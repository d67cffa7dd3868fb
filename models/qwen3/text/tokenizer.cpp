#include "qwen3/text/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "qwen3/checkpoint/json.h"
#include "qwen3/text/added_tokens.h"
#include "qwen3/text/byte_pairs.h"
#include "qwen3/text/tokenizer_file.h"
#include "qwen3/text/unicode.h"

namespace hetero::qwen3 {
namespace {

constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;
constexpr size_t kMostText = size_t{1} << 30;

// The tokens of words that were seen before. Long words are rare, so they are not kept.
class WordCache {
 public:
  // Null if the word is not there.
  const std::vector<int32_t>* find(std::string_view word) const {
    const auto found = words_.find(word);
    return found == words_.end() ? nullptr : &found->second;
  }

  void insert(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMostBytes) return;
    if (words_.size() >= kMostWords) words_.clear();
    words_.emplace(word, std::vector<int32_t>(ids.begin(), ids.end()));
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  static constexpr size_t kMostBytes = 256;
  static constexpr size_t kMostWords = 65536;

  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words_;
};

// What one encode() at a time works with.
struct Workspace {
  WordCache cache;
  BytePairs::Workspace pairs;
  Pattern::Matcher matcher;
};

}  // namespace

struct Tokenizer::State {
  TokenizerFile file;
  AddedTokens raw;         // found before the text is normalized
  AddedTokens normalized;  // found behind
  std::vector<bool> is_special;
  std::mutex mutex;  // guards `workspace`
  Workspace workspace;

  void encode_word(std::string_view word, Workspace& work, std::vector<int32_t>& ids) const;
  Status encode_words(std::string_view text, size_t split, Workspace& work, std::vector<int32_t>& ids) const;
  Status encode(std::string_view text, bool parse_special, Workspace& work, std::vector<int32_t>& ids) const;
};

void Tokenizer::State::encode_word(std::string_view word, Workspace& work, std::vector<int32_t>& ids) const {
  if (const std::vector<int32_t>* known = work.cache.find(word)) {
    ids.insert(ids.end(), known->begin(), known->end());
    return;
  }
  const size_t before = ids.size();
  const auto whole = file.ignores_merges ? file.ids.find(spelling_of_bytes(word)) : file.ids.end();
  if (whole != file.ids.end()) {
    ids.push_back(whole->second);
  } else {
    file.pairs.encode(word, work.pairs, ids);
  }
  work.cache.insert(word, std::span(ids).subspan(before));
}

// Cuts by the split of this number and those behind it: matches and what is between them are words.
Status Tokenizer::State::encode_words(std::string_view text, size_t split, Workspace& work,
                                      std::vector<int32_t>& ids) const {
  if (split == file.splits.size()) {
    encode_word(text, work, ids);
    return Status();
  }
  size_t taken = 0;
  for (size_t from = 0; from < text.size();) {
    const auto match = file.splits[split].find(text, from, work.matcher);
    if (!match.ok()) return match.status();
    const auto [begin, end] = match.value();
    if (begin == std::string_view::npos) break;
    if (begin == end) {
      // An empty match cuts nothing.
      from = begin < text.size() ? begin + utf8_length(text[begin]) : text.size();
      continue;
    }
    Status status;
    if (taken < begin) status = encode_words(text.substr(taken, begin - taken), split + 1, work, ids);
    if (status.ok()) status = encode_words(text.substr(begin, end - begin), split + 1, work, ids);
    if (!status.ok()) return status;
    taken = from = end;
  }
  return taken < text.size() ? encode_words(text.substr(taken), split + 1, work, ids) : Status();
}

Status Tokenizer::State::encode(std::string_view text, bool parse_special, Workspace& work,
                                std::vector<int32_t>& ids) const {
  std::vector<AddedTokens::Piece> pieces;
  if (Status status = raw.split(text, parse_special, pieces); !status.ok()) return status;
  std::vector<AddedTokens::Piece> inner;
  for (const AddedTokens::Piece& piece : pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
      continue;
    }
    std::string changed;
    std::string_view plain = piece.text;
    if (file.is_normalized && !is_clearly_nfc(plain)) plain = changed = to_nfc(plain);
    inner.clear();
    if (Status status = normalized.split(plain, parse_special, inner); !status.ok()) return status;
    for (const AddedTokens::Piece& word : inner) {
      if (word.id >= 0) {
        ids.push_back(word.id);
      } else if (Status status = encode_words(word.text, 0, work, ids); !status.ok()) {
        return status;
      }
    }
  }
  return Status();
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::read(const std::filesystem::path& folder) {
  auto text = read_text(folder / "tokenizer.json", kMostFileBytes);
  if (!text.ok()) return text.status();
  return parse(text.value());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  auto file = TokenizerFile::parse(json);
  if (!file.ok()) return file.status();
  auto state = std::make_unique<State>();
  state->file = std::move(file.value());
  state->is_special.resize(state->file.bytes.size());
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (AddedToken token : state->file.added) {
    if (token.is_special) state->is_special[static_cast<size_t>(token.id)] = true;
    if (token.is_normalized && state->file.is_normalized) token.content = to_nfc(token.content);
    (token.is_normalized ? normalized : raw).push_back(std::move(token));
  }
  auto first = AddedTokens::make(std::move(raw));
  if (!first.ok()) return first.status();
  auto second = AddedTokens::make(std::move(normalized));
  if (!second.ok()) return second.status();
  state->raw = std::move(first.value());
  state->normalized = std::move(second.value());
  return Tokenizer(std::move(state));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (text.size() > kMostText) {
    return Status(ErrorClass::kUsage, "the text has " + std::to_string(text.size()) + " bytes, and at most " +
                                          std::to_string(kMostText) + " are encoded at once");
  }
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    return Status(ErrorClass::kUsage, "the text is not UTF-8: the byte at " + std::to_string(at) + " is wrong");
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  Status status;
  if (const std::unique_lock lock(state_->mutex, std::try_to_lock); lock.owns_lock()) {
    status = state_->encode(text, parse_special, state_->workspace, ids);
  } else {
    Workspace own;  // another thread uses the cache
    status = state_->encode(text, parse_special, own, ids);
  }
  if (!status.ok()) return status;
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string pending;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) pending += bytes(id);
  }
  if (find_invalid_utf8(pending) == std::string_view::npos) return pending;
  std::string text;
  take_utf8(pending, text, true);
  return text;
}

const std::string& Tokenizer::bytes(int32_t id) const {
  static const std::string* const none = new std::string;  // leaked: used until the process ends
  return id >= 0 && id < size() ? state_->file.bytes[static_cast<size_t>(id)] : *none;
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const auto found = state_->file.ids.find(std::string(token));
  return found == state_->file.ids.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && state_->is_special[static_cast<size_t>(id)];
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(state_->file.bytes.size()); }

Status Tokenizer::check_fits(int64_t vocab_size) const {
  if (size() <= vocab_size) return Status();
  return Status(ErrorClass::kStorage, "tokenizer.json has the token id " + std::to_string(size() - 1) +
                                          ", and the model has only " + std::to_string(vocab_size) + " embeddings");
}

}  // namespace hetero::qwen3
