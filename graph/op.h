// OpTraits and OpTable: what the graph layer knows about an operator, and the kernel that runs it.
//
// graph/ never sees an operator's definition. ops/ registers each operator once with its traits, and gets an OpId that
// nodes carry. Tests register their own. The traits answer the only questions planning asks: what kind of work is this,
// who brings the memory of its outputs, may it be dropped.
//
// Thread safety: add() needs external locking; lookup of an id obtained earlier may happen from any thread.
// Ownership: the table keeps its entries for ever (ids are stored in plans).

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backend/device.h"
#include "graph/window.h"

namespace hetero::graph {

using OpId = uint32_t;

enum class OpClass : uint8_t {
  kPointwise,
  kReduction,
  kMatmul,
  kConvolution,
  kNormalization,
  kAttention,
  kIndexing,
  kCopy,
  kRandom,
  kOther,
};
const char* to_string(OpClass op_class);

// What a kernel is to do of its operator: see OpTraits::has_tail.
enum class Part : uint8_t { kWhole, kBody, kTail };

struct Binding;
struct Node;
struct Operand;
struct OpTraits;
struct LowerRequest;
class Lowering;

// One call of a kernel. `data[i]` is the address of the first byte of operand i's *buffer* (the operand's window applies
// on top). It is null for an output whose memory the kernel is to bring: the kernel then stores a Block in
// `brought[i]` whose bytes are laid out as the operand's window says. `bindings[b]` is the binding of buffer b where its bytes were there before
// the graph and no node of it writes them, so that the kernel may use and set Binding::derived; null for every other buffer. `bindings` itself
// is null where nothing may be kept.
struct Invocation {
  const Node* node;
  const Operand* operands;
  void* const* data;
  backend::Block* brought;
  const std::byte* attributes;
  const WindowTable* windows;
  const OpTraits* traits;
  Binding* const* bindings = nullptr;
  Part part = Part::kWhole;
};

// Runs on the thread of the device's compute queue. May throw; the executor turns that into a Status.
using KernelFunction = void (*)(const Invocation& invocation);

// So many calls are made together at most.
inline constexpr size_t kMaxBatch = 8;

struct OpTraits {
  std::string name;  // "aten::add.Tensor"
  OpClass op_class = OpClass::kOther;
  // The kernel brings its outputs' memory (on a host-accessible device; elsewhere it is always given memory).
  bool brings_memory = false;
  // Must run even when nobody reads its outputs.
  bool side_effects = false;
  // Runs on the accelerator; otherwise on the CPU always.
  bool on_accelerator = true;
  KernelFunction kernel = nullptr;
  // How a fused kernel computes it; null where it cannot be fused. See lowering.h.
  bool (*lower)(const LowerRequest& request, Lowering& lowering) = nullptr;
  // `lower` describes only what is done last, the tail: a pointwise program that reads the output as the rest of the work, the body, has left
  // it there. A fused kernel may then compute the tail, and what follows it, after the operator's kernel has run the body. The kernel can run
  // the whole, the body and the tail. A bias that is added to a product is such a tail.
  bool has_tail = false;
  // Calls of operators with the same function here that read the same operand, each as its operand `shared_operand`, may be made by it, all at
  // once. They write their outputs only, and nothing that another reads. Where it throws, they are made again one by one.
  void (*run_together)(const Invocation* calls, size_t count) = nullptr;
  int shared_operand = 0;
  // The owner's data, for `kernel`.
  const void* self = nullptr;
};

class OpTable {
 public:
  OpId add(OpTraits traits);
  const OpTraits& operator[](OpId id) const { return entries_[id]; }
  size_t size() const { return entries_.size(); }
  // The id of that name, or size() where there is none.
  OpId find(std::string_view name) const;

 private:
  std::deque<OpTraits> entries_;
  std::unordered_map<std::string, OpId> by_name_;
};

// The table of this process. Leaked on purpose: plans may be run while the process exits.
OpTable& op_table();

}  // namespace hetero::graph
