// Trie: earlier programs as a prefix tree, so that a call can be predicted from the calls before
// it.
//
// A path from the root is a trace; a node of the path is one recorded call. The recorder walks the
// trie while it records. A call is compared with the child that was taken last time. If they are
// equal, the call's outputs are known without a hash, a meta cache or a Meta kernel. At the end of
// the trace, the last node knows the plans of the whole trace (plan_cache.h). Equality is always
// checked in full.
//
//   exact:    equal in everything but values
//   similar:  equal in structure; windows and sizes may differ, but only within their kind
//             (Window::kind). Plans of the same path fit, with other sizes in them.
//
// Numbers of buffers are positions in the trace, in the order of first use. So equal programs have
// equal numbers whatever storages they use.
//
// Thread safety: the recorder's lock.
// Ownership: nodes belong to the trie. A pointer to one is valid while the recorder's trace is on
// its path.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "graph/ir/graph.h"
#include "ops/record/meta_cache.h"

namespace hetero::ops {

class PlanSet;       // plan_cache.h
struct PlanRequest;  // trace_slice.h

// What is compared: a call as it stands in the trace.
struct CallView {
  graph::OpId op;
  graph::Preference preference;
  int8_t default_dtype;
  std::span<const graph::Operand> inputs;  // without the outputs that it defines
  std::span<const std::byte> structure;
  std::span<const std::byte> sizes;
  uint32_t value_bytes;  // follows from the structure
};

// How a call differs from the one that was predicted.
enum class Difference : uint8_t { kOperator, kArguments, kTensors, kShapes, kSizes };
const char* to_string(Difference difference);

class TrieNode {
 public:
  TrieNode(const TrieNode&) = delete;
  ~TrieNode();

  // The windows of the outputs, as for the call that made the node.
  const MetaEntry& entry() const { return *entry_; }
  const std::shared_ptr<const MetaEntry>& shared_entry() const { return entry_; }
  graph::OpId op() const { return op_; }
  graph::Preference preference() const { return preference_; }
  int8_t default_dtype() const { return default_dtype_; }
  std::span<const graph::Operand> inputs() const { return {operands_.get(), input_count_}; }
  // The sizes stand behind the structure.
  const std::byte* structure() const { return attributes_.get(); }
  const std::byte* sizes() const { return attributes_.get() + structure_bytes_; }
  uint32_t structure_bytes() const { return structure_bytes_; }
  uint32_t size_bytes() const { return size_bytes_; }
  uint32_t value_bytes() const { return value_bytes_; }
  // When it became what it is, by Trie::version.
  uint64_t version() const { return version_; }
  // The plans of the traces that end here. Belongs to the executor's lock.
  PlanSet& plans();
  TrieNode* first_child() const { return child_.get(); }
  // A trace that comes here is cut here, if possible, and then this many times again, each time
  // after as many nodes as it has now; see overlap.h.
  bool is_mark() const { return cuts_ != 0; }
  int cuts() const { return cuts_; }
  void set_cuts(int cuts) { cuts_ = static_cast<int16_t>(cuts); }
  const TrieNode* sibling() const { return sibling_.get(); }
  // REQUIRES: the call is not exactly this one.
  Difference difference(const CallView& call, const graph::WindowTable& windows) const;

 private:
  friend class Trie;
  TrieNode();
  bool equals(const CallView& call) const;
  bool resembles(const CallView& call, const graph::WindowTable& windows) const;
  bool same_structure(const CallView& call) const;

  // What a call is compared with comes first, in one cache line.
  std::unique_ptr<TrieNode> child_;  // of its children, the one taken last
  std::unique_ptr<graph::Operand[]> operands_;
  std::unique_ptr<std::byte[]> attributes_;  // structure, then sizes
  graph::OpId op_ = 0;
  uint32_t input_count_ = 0;
  uint32_t structure_bytes_ = 0;
  uint32_t size_bytes_ = 0;
  uint32_t value_bytes_ = 0;
  uint32_t used_ = 0;  // when it was last on a path
  graph::Preference preference_ = graph::Preference::kAuto;
  int8_t default_dtype_ = 0;
  int16_t cuts_ = 0;
  std::shared_ptr<const MetaEntry> entry_;
  uint64_t version_ = 0;
  std::unique_ptr<TrieNode> sibling_;  // the next child of its parent
  std::unique_ptr<PlanSet> plans_;
};

class Trie {
 public:
  Trie() = default;
  ~Trie() { clear(); }

  TrieNode* root() { return &root_; }
  // The first calls of traces, the one taken last first.
  const TrieNode* first() const { return root_.first_child(); }

  // The child of `at` that is exactly this call, or null; then `similar` is a child that only has
  // other sizes, or null.
  TrieNode* find(TrieNode* at, const CallView& call, const graph::WindowTable& windows, TrieNode*& similar) {
    similar = nullptr;
    TrieNode* const first = at->child_.get();
    if (first == nullptr) return nullptr;
    if (first->equals(call)) [[likely]] {
      first->used_ = clock_;
      return first;
    }
    return search(at, call, windows, similar);
  }
  // A new child.
  TrieNode* insert(TrieNode* at, const CallView& call, std::shared_ptr<const MetaEntry> entry);

  // Makes a similar node exactly this call, so that it is predicted when the sizes stay.
  void renew(TrieNode* node, const CallView& call, std::shared_ptr<const MetaEntry> entry);

  // Grows whenever a node is made or renewed.
  uint64_t version() const { return version_; }

  // Takes note that the node is on a path.
  void use(TrieNode* node) { node->used_ = clock_; }
  // Said after each trace: nodes are as old as the traces since they were on a path.
  void tick() { ++clock_; }
  size_t bytes() const { return bytes_; }
  // Drops what was on no path for longest, until no more than `limit` bytes are left, plans
  // included. REQUIRES: the executor's lock; the caller holds no nodes.
  void trim(size_t limit);
  void clear();

 private:
  TrieNode* search(TrieNode* at, const CallView& call, const graph::WindowTable& windows, TrieNode*& similar);
  void destroy(std::unique_ptr<TrieNode> node);
  static size_t bytes_of(const TrieNode& node);

  TrieNode root_;
  uint32_t clock_ = 1;
  uint64_t version_ = 0;
  size_t bytes_ = 0;
};

// The plans that may be kept for a slice, or null. REQUIRES: the executor lock.
PlanSet* plans_for(const PlanRequest& request);

}  // namespace hetero::ops
