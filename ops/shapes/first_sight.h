// First sight: what happens to a call that the meta cache does not know.
//
// PyTorch's Meta kernels check less than its CPU kernels do (above all dtypes and overlaps), and
// some predict other strides. So the first call of a kind is tried: a small one on zeros of the
// same geometry, a large one by running it. A kind is the operator with the structure, dtypes,
// ranks and layouts of its arguments, whatever the sizes. If the operator's shape rule
// (shape_rules.h) agrees with the kernel, later misses of the kind trust the rule. Otherwise, if
// Meta kernel and CPU agree, they trust the Meta kernel.
//
// Thread safety: any thread, under the locks named.

#pragma once

#include <ATen/core/stack.h>

#include <span>
#include <vector>

#include "ops/record/call.h"
#include "ops/record/meta_cache.h"
#include "ops/record/op_info.h"

namespace hetero::ops {

enum class FirstSight { kTrustRule, kTrustMeta, kProbe, kRun };

// The signature of a call's kind. REQUIRES: the recorder lock.
uint64_t signature_of(const OpInfo& info, const Call& call);
FirstSight first_sight(const OpInfo& info, const Call& call, uint64_t signature);

// What an empty argument of a call becomes: its place among the call's hetero tensors.
struct Resize {
  uint32_t tensor;
  graph::Window window;
  size_t bytes;
};
// REQUIRES: the recorder lock.
std::vector<Resize> resizes_of(const MetaEntry& entry);
// REQUIRES: the recorder lock is not held.
void resize_arguments(c10::ArrayRef<c10::IValue> arguments, std::span<const Resize> resizes);

// Meets a call. Returns true when it was run; false when the cache knows it now. REQUIRES: the
// recorder lock is not held.
bool meet(const OpInfo& info, torch::jit::Stack* stack, RandomState random, FirstSight how, uint64_t signature);

}  // namespace hetero::ops
