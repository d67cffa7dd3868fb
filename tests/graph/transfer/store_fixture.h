// What tests of the block store share: stores of small blocks, prompts, and putting a whole prompt.

#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graph/transfer/block_store.h"
#include "tests/backend/tier/temporary_folder.h"
#include "tests/catch/catch.h"
#include "tests/graph/transfer/kv_oracle.h"

namespace hetero::graph::testing {

inline constexpr int64_t kTokens = 4;  // of a block

struct Folder : backend::testing::TemporaryFolder {
  Folder() : TemporaryFolder("kv") {}
  std::string operator/(const char* name) const { return path / name; }
};

inline BlockStoreOptions options_of(int64_t host_blocks, const std::string& disk = "", int64_t disk_blocks = 1000,
                                    const KvSpec& spec = small_spec()) {
  BlockStoreOptions options;
  options.spec = spec;
  const backend::BlockGeometry geometry = options.spec.geometry();
  options.host_bytes = host_blocks * geometry.block_bytes();
  options.disk_folder = disk;
  options.disk_bytes = disk_blocks * geometry.block_bytes();
  options.chunk_bytes = 2 * geometry.pieces * geometry.piece_bytes;  // without padding
  options.verifies_plans = true;
  options.policy = "lru";
  return options;
}

inline std::unique_ptr<BlockStore> open(const BlockStoreOptions& options) {
  Result<std::unique_ptr<BlockStore>> store = BlockStore::open(options);
  if (!store.ok()) FAIL(store.status().message());
  return std::move(store.value());
}

inline std::vector<int32_t> prompt(int64_t tokens, int seed = 0) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<int32_t> result;
  for (int64_t i = 0; i < tokens; ++i) result.push_back(static_cast<int32_t>(random() % 50000));
  return result;
}

inline std::span<const int32_t> up_to(const std::vector<int32_t>& tokens, int64_t block) {
  return std::span(tokens).first(static_cast<size_t>((block + 1) * kTokens));
}

// As a model that computes all of the prompt.
inline void compute(Memory& memory, const std::vector<int32_t>& tokens) {
  for (int64_t i = 0; i < std::ssize(tokens) / kTokens; ++i) memory.write(i, up_to(tokens, i));
}

inline std::shared_ptr<BlockRequest> put(BlockStore& store, const std::vector<int32_t>& tokens, Memory& memory) {
  compute(memory, tokens);
  auto request = store.put(tokens, memory.view, numbers(std::ssize(tokens) / kTokens));
  // Catch2's macros are for one thread, and several may call this.
  if (!request.ok()) throw std::runtime_error(request.status().message());
  return request.value();
}

}  // namespace hetero::graph::testing
