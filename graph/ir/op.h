// OpTraits and OpTable: what the graph layer knows about an operator, and the kernel that runs it.
//
// graph/ never sees an operator's definition. ops/ registers each operator once with its traits and
// gets an OpId, which nodes carry. Tests register their own. The traits answer planning's
// questions: the class of the work, the owner of the outputs' memory, and whether the node may be
// dropped.
//
// Thread safety: any thread.
// Ownership: the table keeps its entries for ever, because plans hold ids.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/window.h"

namespace hetero::backend {
class Follower;
}

namespace hetero::graph {

using OpId = uint32_t;
inline constexpr OpId kNoOp = UINT32_MAX;

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

// The part of its operator that a kernel computes: see OpTraits::has_tail.
enum class Part : uint8_t { kWhole, kBody, kTail };

struct Binding;
struct Graph;
struct Node;
struct Operand;
struct OpTraits;
struct LowerRequest;
class Lowering;

// One call of a kernel. `data[i]` is the address of the first byte of operand i's *buffer*; the
// operand's window applies on top. It is null for an output whose memory the kernel allocates. The
// kernel then stores a Block in `brought[i]`, laid out as the operand's window says. `bindings[b]`
// is the binding of buffer b if its bytes existed before the graph and no node writes them. The
// kernel may then use and set Binding::derived. It is null for every other buffer. `bindings`
// itself is null if nothing may be kept.
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
  bool by_device = false;  // for OpTraits::device_kernel
  bool leads = false;      // what comes next could be its follower, see OpTraits::leads
  // Null, or what the kernel may run on parts of its output: see OpTraits::leads.
  backend::Follower* follower = nullptr;
};

// Runs on the thread of the device's compute queue. May throw; the executor turns that into a
// Status.
using KernelFunction = void (*)(const Invocation& invocation);

// The most calls that are made together.
inline constexpr size_t kMaxBatch = 8;

struct OpTraits {
  std::string name;  // "aten::add.Tensor"
  OpClass op_class = OpClass::kOther;
  // The kernel brings its outputs' memory (on a host-accessible device; elsewhere it is always
  // given memory).
  bool brings_memory = false;
  // Must run even if its outputs have no readers.
  bool side_effects = false;
  // Custom operator: may have side effects. None of its calls is made ahead of time or replaced by
  // another.
  bool is_foreign = false;
  // The output begins with the first operand and grows in one dimension, so it may take that one's
  // memory: see ops/record/layouts.h.
  bool grows = false;
  // Runs as well on images with their channels last, and makes such: see channels_last.h. Pointwise
  // operators need not say so.
  bool keeps_layout = false;
  // Runs on the accelerator; otherwise on the CPU always.
  bool on_accelerator = true;
  // A host task: long, single, not worth fusing, and without a kernel for accelerators, such as
  // decoding or reading a file. The CPU's worker queue may run it while other work goes on, and
  // several may run on a thread each. Its kernel uses one thread.
  bool host_task = false;
  KernelFunction kernel = nullptr;
  // What `kernel` does in advance where calls are known ahead of time; null if there is nothing. It
  // chooses an implementation and derives what the kernel keeps of weights (Binding::derived),
  // which first runs would do otherwise. Addresses are set. Only operands with a binding have their
  // values, and none is written. What it throws is passed over: such a call says so when it runs.
  KernelFunction prepare = nullptr;
  // The kernel for devices that do not run the CPU's kernels (Device::runs_host_kernels); null if
  // there is none. It always gets its memory.
  KernelFunction device_kernel = nullptr;
  // How a fused kernel computes it; null if it cannot be fused. See lowering.h.
  bool (*lower)(const LowerRequest& request, Lowering& lowering) = nullptr;
  // `lower` describes only what is done last, the tail: a pointwise program that reads the output
  // as the rest of the work, the body, has left it there. A fused kernel may then compute the tail,
  // and what follows it, after the operator's kernel has run the body. The kernel can run the
  // whole, the body and the tail. A bias that is added to a product is such a tail.
  bool has_tail = false;
  // The kernel can run the fused kernel that comes next on parts of its output, its last operand,
  // as they are made (Invocation::follower).
  bool leads = false;
  // This function may make several calls at once, if their operators have it too and they read the
  // same operand, each as its operand `shared_operand`. The calls write their outputs only, and
  // nothing that another reads. If it throws, they are made again one by one.
  void (*run_together)(const Invocation* calls, size_t count) = nullptr;
  int shared_operand = 0;
  // Whether a node from a file is one that a recorder would have written, so that the kernel may
  // trust it. Null if the kernel trusts nothing.
  Status (*check)(const Graph& graph, const Node& node) = nullptr;
  // Whether the state of a random operator is at this place in Graph::attributes: see
  // SavedProgram::draws. REQUIRES: check(). Null: anywhere in the attributes of an operator of
  // class kRandom.
  bool (*has_draw)(const Graph& graph, const Node& node, uint64_t place) = nullptr;
  // The owner's data, for `kernel` and for `device_kernel`.
  const void* self = nullptr;
  const void* device_self = nullptr;
};

// Calls the kernel that the invocation is for.
inline void call_kernel(const Invocation& invocation) {
  (invocation.by_device ? invocation.traits->device_kernel : invocation.traits->kernel)(invocation);
}

class OpTable {
 public:
  // The id of the new entry. An earlier one of the same name keeps its id; the name leads to the
  // new one.
  OpId add(OpTraits traits);
  const OpTraits& operator[](OpId id) const {
    return chunks_[id >> kChunkBits].load(std::memory_order_acquire)[id & kChunkMask];
  }
  size_t size() const { return size_.load(std::memory_order_acquire); }
  // The id of that name, if it was added; otherwise kNoOp.
  OpId find(std::string_view name) const;
  // Finds an operator by name, and asks the resolver for names that were not added.
  OpId resolve(std::string_view name);
  // A resolver adds the operator of this name on demand, if there is one.
  void set_resolver(void (*resolver)(const std::string& name)) { resolver_.store(resolver); }

 private:
  static constexpr int kChunkBits = 10;
  static constexpr OpId kChunkMask = (1u << kChunkBits) - 1;
  static constexpr size_t kMaxChunks = 256;

  mutable std::mutex mutex_;
  std::array<std::atomic<OpTraits*>, kMaxChunks> chunks_{};
  std::atomic<size_t> size_{0};
  std::unordered_map<std::string, OpId> by_name_;
  std::atomic<void (*)(const std::string& name)> resolver_{nullptr};
};

// The table of this process. Leaked on purpose: plans may be run while the process exits.
OpTable& op_table();

}  // namespace hetero::graph
