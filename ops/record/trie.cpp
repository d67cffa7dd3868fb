#include "ops/record/trie.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "graph/ir/compare.h"
#include "ops/record/plan_cache.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {
namespace {

// A few words: a loop is faster than memcmp.
bool same_bytes(const void* a, const void* b, size_t count) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  uint64_t difference = 0;
  for (; count >= 8; count -= 8, x += 8, y += 8) {
    uint64_t p, q;
    std::memcpy(&p, x, 8);
    std::memcpy(&q, y, 8);
    difference |= p ^ q;
  }
  for (; count > 0; --count) difference |= static_cast<uint64_t>(*x++ ^ *y++);
  return difference == 0;
}

// Siblings are tried in the order in which they were last taken; programs that fork more often than
// this are not worth a search.
constexpr int kMaxTries = 16;

}  // namespace

TrieNode::TrieNode() = default;
TrieNode::~TrieNode() = default;

PlanSet& TrieNode::plans() {
  if (plans_ == nullptr) plans_ = std::make_unique<PlanSet>();
  return *plans_;
}

PlanSet* plans_for(const PlanRequest& request) {
  if (!request.keeps) return nullptr;
  return request.own_plans != nullptr || request.end == nullptr ? request.own_plans : &request.end->plans();
}

const char* to_string(Difference difference) {
  switch (difference) {
    case Difference::kOperator:
      return "another operator";
    case Difference::kArguments:
      return "other arguments";
    case Difference::kTensors:
      return "other tensors";
    case Difference::kShapes:
      return "another kind of shape";
    case Difference::kSizes:
      return "other sizes";
  }
  return "?";
}

Difference TrieNode::difference(const CallView& call, const graph::WindowTable& windows) const {
  if (op_ != call.op) return Difference::kOperator;
  if (!same_structure(call)) return Difference::kArguments;
  if (resembles(call, windows)) return Difference::kSizes;
  for (uint32_t i = 0; i < input_count_; ++i) {
    if (operands_[i].buffer != call.inputs[i].buffer) return Difference::kTensors;
  }
  return Difference::kShapes;
}

bool TrieNode::same_structure(const CallView& call) const {
  return op_ == call.op && input_count_ == call.inputs.size() && structure_bytes_ == call.structure.size() &&
         size_bytes_ == call.sizes.size() && preference_ == call.preference && default_dtype_ == call.default_dtype &&
         same_bytes(attributes_.get(), call.structure.data(), structure_bytes_);
}

bool TrieNode::equals(const CallView& call) const {
  return same_structure(call) && same_bytes(attributes_.get() + structure_bytes_, call.sizes.data(), size_bytes_) &&
         same_bytes(operands_.get(), call.inputs.data(), input_count_ * sizeof(graph::Operand));
}

bool TrieNode::resembles(const CallView& call, const graph::WindowTable& windows) const {
  if (!same_structure(call)) return false;
  for (uint32_t i = 0; i < input_count_; ++i) {
    const graph::Operand& a = operands_[i];
    const graph::Operand& b = call.inputs[i];
    if (!graph::same_but_window(a, b)) return false;
    if (a.window != b.window && !graph::same_kind(windows[a.window], windows[b.window])) return false;
  }
  return true;
}

TrieNode* Trie::search(TrieNode* at, const CallView& call, const graph::WindowTable& windows, TrieNode*& similar) {
  std::unique_ptr<TrieNode>* link = &at->child_;
  for (int tries = 0; *link != nullptr && tries < kMaxTries; ++tries, link = &(*link)->sibling_) {
    TrieNode* const node = link->get();
    if (node->equals(call)) {
      // To the front.
      std::unique_ptr<TrieNode> taken = std::move(*link);
      *link = std::move(taken->sibling_);
      taken->sibling_ = std::move(at->child_);
      at->child_ = std::move(taken);
      node->used_ = clock_;
      return node;
    }
    if (similar == nullptr && node->resembles(call, windows)) similar = node;
  }
  if (similar != nullptr) similar->used_ = clock_;
  return nullptr;
}

TrieNode* Trie::insert(TrieNode* at, const CallView& call, std::shared_ptr<const MetaEntry> entry) {
  std::unique_ptr<TrieNode> node(new TrieNode);
  node->op_ = call.op;
  node->preference_ = call.preference;
  node->default_dtype_ = call.default_dtype;
  node->input_count_ = static_cast<uint32_t>(call.inputs.size());
  node->structure_bytes_ = static_cast<uint32_t>(call.structure.size());
  node->size_bytes_ = static_cast<uint32_t>(call.sizes.size());
  node->value_bytes_ = call.value_bytes;
  node->version_ = ++version_;
  node->operands_ = std::make_unique_for_overwrite<graph::Operand[]>(call.inputs.size());
  std::copy(call.inputs.begin(), call.inputs.end(), node->operands_.get());
  node->attributes_ = std::make_unique_for_overwrite<std::byte[]>(call.structure.size() + call.sizes.size());
  std::copy(call.structure.begin(), call.structure.end(), node->attributes_.get());
  std::copy(call.sizes.begin(), call.sizes.end(), node->attributes_.get() + call.structure.size());
  node->entry_ = std::move(entry);
  node->used_ = clock_;
  node->sibling_ = std::move(at->child_);
  bytes_ += bytes_of(*node);
  at->child_ = std::move(node);
  return at->child_.get();
}

void Trie::renew(TrieNode* node, const CallView& call, std::shared_ptr<const MetaEntry> entry) {
  std::copy(call.inputs.begin(), call.inputs.end(), node->operands_.get());
  std::copy(call.sizes.begin(), call.sizes.end(), node->attributes_.get() + node->structure_bytes_);
  node->entry_ = std::move(entry);
  node->version_ = ++version_;
}

size_t Trie::bytes_of(const TrieNode& node) {
  constexpr size_t kOverhead = 48;  // of the heap, for three blocks
  return sizeof(TrieNode) + node.input_count_ * sizeof(graph::Operand) + node.structure_bytes_ + node.size_bytes_ +
         kOverhead;
}

// A path may be longer than the stack is deep, so no recursion.
void Trie::destroy(std::unique_ptr<TrieNode> node) {
  std::vector<std::unique_ptr<TrieNode>> left;
  left.push_back(std::move(node));
  while (!left.empty()) {
    std::unique_ptr<TrieNode> next = std::move(left.back());
    left.pop_back();
    if (next == nullptr) continue;
    bytes_ -= bytes_of(*next);
    left.push_back(std::move(next->child_));
    left.push_back(std::move(next->sibling_));
  }
}

void Trie::clear() { destroy(std::move(root_.child_)); }

void Trie::trim(size_t limit) {
  // Plans count with the node that has them.
  std::vector<TrieNode*> nodes;
  std::vector<TrieNode*> left{&root_};
  std::vector<std::pair<uint32_t, size_t>> ages;
  size_t total = 0;
  while (!left.empty()) {
    TrieNode* const node = left.back();
    left.pop_back();
    for (TrieNode* child = node->child_.get(); child != nullptr; child = child->sibling_.get()) {
      const size_t bytes = bytes_of(*child) + (child->plans_ == nullptr ? 0 : child->plans_->bytes());
      ages.emplace_back(child->used_, bytes);
      total += bytes;
      nodes.push_back(child);
      left.push_back(child);
    }
  }
  if (total <= limit) return;
  // A node is on a path whenever a descendant is, so cutting by age cuts off whole subtrees. Down
  // to half, so that this is rare.
  std::sort(ages.begin(), ages.end());
  uint32_t oldest = 0;
  for (size_t i = 0; i < ages.size() && total > limit / 2; ++i) {
    total -= ages[i].second;
    oldest = ages[i].first + 1;
  }
  left.push_back(&root_);
  while (!left.empty()) {
    TrieNode* const node = left.back();
    left.pop_back();
    std::unique_ptr<TrieNode>* link = &node->child_;
    while (*link != nullptr) {
      if ((*link)->used_ < oldest) {
        std::unique_ptr<TrieNode> dropped = std::move(*link);
        *link = std::move(dropped->sibling_);
        destroy(std::move(dropped));
      } else {
        left.push_back(link->get());
        link = &(*link)->sibling_;
      }
    }
  }
}

}  // namespace hetero::ops
