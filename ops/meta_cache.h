// MetaCache: which windows an operator's outputs have, by operator, operands and attributes.
//
// The key is made of words: the operator, the structure of the call (call.h), and for each operand its window, its bits and which
// earlier operand shares its storage. It is compared in full; a hash only finds the candidate. A miss costs one run of the Meta
// kernel (meta.h); its answer is kept here, also when the answer is "cannot be recorded".
//
// Thread safety: the recorder's lock. Bounded: the recorder clears it when it grows past config().meta_cache_entries.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/op.h"
#include "ops/call.h"
#include "ops/counters.h"

namespace hetero::ops {

struct MetaOutput {
  graph::WindowId window = graph::kNoWindow;  // kNoWindow: an undefined tensor
  uint64_t storage_bytes = 0;
};

struct MetaEntry {
  // Not recordable: run it at once, for this reason.
  bool straight = false;
  SyncReason reason = SyncReason::kNotRecordable;
  // The outputs, in the order of the returns; lists are flattened.
  std::vector<MetaOutput> outputs;
  // For each return that is a list, its length.
  std::vector<uint32_t> list_lengths;
};

class MetaCache {
 public:
  // Turns the call into a key, kept until the next call of make_key.
  void make_key(graph::OpId op, const Call& call, at::ScalarType default_dtype);
  // The entry of the current key, or null.
  const MetaEntry* find() const;
  // Keeps `entry` under the current key.
  const MetaEntry* insert(MetaEntry entry);
  size_t size() const { return count_; }
  void clear();

 private:
  struct Slot {
    uint64_t hash = 0;
    std::unique_ptr<uint64_t[]> key;
    size_t key_words = 0;
    std::unique_ptr<MetaEntry> entry;
  };
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t count_ = 0;
  std::vector<uint64_t> key_ = std::vector<uint64_t>(64);  // of which key_words_ are used
  size_t key_words_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace hetero::ops
