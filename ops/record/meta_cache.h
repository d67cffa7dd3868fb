// MetaCache: the windows of an operator's outputs, by operator, operands and attributes.
//
// The key is made of words: the operator, the structure and the sizes of the call (call.h). For
// each operand it has the window, its bits, and the earlier operand that shares its storage. It is
// compared in full; a hash only finds the candidate. A miss costs one run of the Meta kernel
// (meta.h). The answer is kept, also if it is "cannot be recorded". Repeated programs do not come
// here: the trie (trie.h) knows the answer.
//
// Thread safety: the recorder's lock. Bounded: trim() drops the least recently used entries.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/ir/op.h"
#include "ops/record/call.h"
#include "ops/settings/counters.h"

namespace hetero::ops {

struct MetaOutput {
  graph::WindowId window = graph::kNoWindow;  // kNoWindow: an undefined tensor
  uint64_t storage_bytes = 0;
};

struct MetaEntry {
  // An empty argument that the operator resizes: its place among the hetero tensors of the call,
  // and what it becomes.
  struct Resized {
    uint32_t tensor;
    MetaOutput becomes;
  };

  // Not recordable: run it at once, for this reason.
  bool straight = false;
  SyncReason reason = SyncReason::kNotRecordable;
  // Not recordable before these are resized; it is another call then.
  std::vector<Resized> resized;
  // The outputs, in the order of the returns; lists are flattened.
  std::vector<MetaOutput> outputs;
  // For each return that is a list, its length.
  std::vector<uint32_t> list_lengths;

  bool is_recorded() const { return !straight && resized.empty(); }
};

class MetaCache {
 public:
  // Turns the call into a key, kept until the next call of make_key.
  void make_key(graph::OpId op, const Call& call, at::ScalarType default_dtype);
  // The entry of the current key, or null. Valid until the next call of find, insert, trim or
  // clear, unless it is copied.
  const std::shared_ptr<const MetaEntry>* find();
  // Keeps `entry` under the current key.
  const MetaEntry* insert(MetaEntry entry);
  size_t size() const { return count_; }
  size_t bytes() const { return bytes_; }
  // Drops the entries that were not found for longest until no more than `limit` bytes are left.
  void trim(size_t limit);
  void clear();

 private:
  struct Slot {
    uint64_t hash = 0;
    std::unique_ptr<uint64_t[]> key;
    uint32_t key_words = 0;
    uint64_t found_at = 0;
    std::shared_ptr<const MetaEntry> entry;
    size_t bytes() const;
  };
  void rehash(size_t slots);

  uint64_t clock_ = 0;
  size_t bytes_ = 0;

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t count_ = 0;
  std::vector<uint64_t> key_ = std::vector<uint64_t>(64);  // of which key_words_ are used
  size_t key_words_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace hetero::ops
