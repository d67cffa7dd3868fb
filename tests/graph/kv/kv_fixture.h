// A KV cache on ordinary memory, movers that take their time and fail, and pages whose content says
// which tokens they belong to.

#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/base/fnv.h"
#include "graph/kv/kv_cache.h"
#include "tests/catch/catch.h"

namespace hetero::graph::testing {

// Copies when it is asked whether it is done, after some rounds; fails with a probability. Until
// then the destination is poisoned, and the source must not change.
class SlowMover final : public PageMover {
 public:
  explicit SlowMover(int rounds = 0, double failures = 0, uint64_t seed = 1)
      : rounds_(rounds), failures_(failures), random_(seed) {}

  Result<Token> start(const PageCopy& copy) override {
    ++starts;
    if (fails()) return Status(ErrorClass::kDevice, "the link is down");
    std::memset(copy.destination, 0xCD, copy.bytes);
    Move move{copy, rounds_, {}, fails()};
    move.before.assign(copy.source, copy.source + copy.bytes);
    moves_.emplace(++next_, std::move(move));
    return next_;
  }
  Result<bool> finished(Token token) override {
    if (moves_.at(token).rounds-- > 0) return false;
    const Status status = wait(token);
    if (!status.ok()) return status;
    return true;
  }
  Status wait(Token token) override {
    const auto found = moves_.find(token);
    REQUIRE(found != moves_.end());
    const Move move = std::move(found->second);
    moves_.erase(found);
    source_changed |= std::memcmp(move.before.data(), move.copy.source, move.copy.bytes) != 0;
    if (move.fails) return {ErrorClass::kDevice, "the copy failed"};
    std::memcpy(move.copy.destination, move.copy.source, move.copy.bytes);
    return {};
  }
  size_t open() const { return moves_.size(); }
  void set_failures(double failures) { failures_ = failures; }

  int64_t starts = 0;
  bool source_changed = false;

 private:
  struct Move {
    PageCopy copy;
    int rounds;
    std::vector<std::byte> before;
    bool fails;
  };
  bool fails() { return failures_ > 0 && std::uniform_real_distribution<>(0, 1)(random_) < failures_; }

  int rounds_;
  double failures_;
  std::mt19937_64 random_;
  Token next_ = 0;
  std::unordered_map<Token, Move> moves_;
};

// A token's content: 8 bytes that follow from all tokens up to it, and from the group.
inline uint64_t content_of(std::span<const int32_t> tokens, int group) {
  backend::Fnv hash;
  hash.add(int64_t{group});
  hash.add(tokens.data(), tokens.size_bytes());
  return hash.value();
}

inline constexpr int64_t kPageTokens = 4;

// Pages of 64 bytes: 4 tokens, whose keys are 8 bytes each.
inline KvOptions small_options(int groups = 1) {
  KvOptions options;
  options.layout = {.element = backend::CacheElement::kFloat32,
                    .page_tokens = kPageTokens,
                    .layers = 1,
                    .kv_heads = 1,
                    .head_size = 2};
  options.groups = groups;
  options.slab_pages = 4;
  return options;
}

// Memories of so many pages, in vectors that AddressSanitizer watches.
class KvMemories {
 public:
  explicit KvMemories(std::vector<size_t> pages, size_t page_bytes = 64) {
    for (const size_t count : pages) bytes_.emplace_back(count * page_bytes);
  }
  std::vector<std::unique_ptr<backend::PageMemory>> lend() {
    std::vector<std::unique_ptr<backend::PageMemory>> memories;
    for (auto& bytes : bytes_) memories.push_back(backend::borrowed_page_memory(bytes.data(), bytes.size()));
    return memories;
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

inline std::unique_ptr<KvCache> make_cache(KvOptions options, KvMemories& memories, PageMover& mover) {
  auto made = KvCache::make(std::move(options), memories.lend(), mover);
  REQUIRE(made.ok());
  return std::move(made.value());
}

inline std::byte* token_place(KvCache& cache, int64_t slot) {
  const int64_t tokens = cache.options().layout.page_tokens;
  return cache.pages().pool(0).address(static_cast<int32_t>(slot / tokens)) + slot % tokens * 8;
}

// Writes what the sequence's tokens from its written length on are to hold, in all groups.
inline Status write_tokens(KvCache& cache, SequenceId id) {
  const int64_t first = cache.written_length(id), end = cache.length(id);
  for (int group = 0; group < cache.options().groups; ++group) {
    if (Status status = cache.acquire(id, group); !status.ok()) return status;
    std::vector<int64_t> slots(static_cast<size_t>(end - first));
    Status status = cache.slots(id, group, first, slots);
    for (size_t i = 0; status.ok() && i < slots.size(); ++i) {
      const auto tokens = cache.tokens(id).first(static_cast<size_t>(first) + i + 1);
      const uint64_t content = content_of(tokens, group);
      std::memcpy(token_place(cache, slots[i]), &content, sizeof(content));
    }
    const Status released = cache.release(id, group);
    if (!status.ok()) return status;
    if (!released.ok()) return released;
  }
  return cache.written(id, end);
}

// Whether the pages of an acquired group hold what its written tokens say. `skipped` counts tokens
// whose page is not resident.
inline bool holds_its_tokens(KvCache& cache, SequenceId id, int group, int64_t& skipped) {
  const auto table = cache.table(id, group);
  if (!table.ok()) return false;
  const auto tokens = cache.tokens(id);
  for (int64_t i = 0; i < cache.written_length(id); ++i) {
    const int64_t page_tokens = cache.options().layout.page_tokens;
    const int32_t page = table.value()[static_cast<size_t>(i / page_tokens)];
    if (page < 0) {
      ++skipped;
      continue;
    }
    uint64_t content;
    std::memcpy(&content, token_place(cache, page * page_tokens + i % page_tokens), sizeof(content));
    if (content != content_of(tokens.first(static_cast<size_t>(i) + 1), group)) return false;
  }
  return true;
}

// Reads everything that attention would read.
inline Status check_content(KvCache& cache, SequenceId id, int64_t* skipped_tokens = nullptr) {
  for (int group = 0; group < cache.options().groups; ++group) {
    if (Status status = cache.acquire(id, group); !status.ok()) return status;
    int64_t skipped = 0;
    const bool right = holds_its_tokens(cache, id, group, skipped);
    if (Status status = cache.release(id, group); !status.ok()) return status;
    if (!right) return {ErrorClass::kInternal, "a page does not hold its tokens"};
    if (skipped_tokens != nullptr) *skipped_tokens += skipped;
  }
  return {};
}

}  // namespace hetero::graph::testing
