// A call of attention as data: operands, mask and sizes, and the same for its gradients.
// attention.h computes it.
//
// Thread safety: plain data.

#pragma once

#include <cstdint>

#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

// [batches, heads, rows, head_size], dense along the last dimension. Strides count elements.
struct AttentionOperand {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

// Added to the scaled scores: [batches, heads, queries, keys]. Any stride may be 0.
struct AttentionMask {
  Element element = Element::kFloat32;
  const void* data = nullptr;  // null for none
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 0;  // 0 or 1
};

struct Attention {
  Element element = Element::kFloat32;  // of q, k, v and out
  bool causal = false;                  // query i attends to the keys 0 to i only
  // The forward pass may multiply on the tile unit (tile_gemm.h).
  bool tiles = true;
  int64_t batches = 0;
  int64_t heads = 0;     // of q and out
  int64_t kv_heads = 0;  // of k and v: head h of q attends to head h / (heads / kv_heads)
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_size = 0;
  float scale = 1;
  AttentionOperand q;
  AttentionOperand k;
  AttentionOperand v;
  AttentionOperand out;
  AttentionMask mask;
  AttentionOperand logsumexp;  // float32 [batches, heads, queries]
};

// What a forward pass with `call` has written is read here. Gradients are of the call's element
// type.
struct AttentionBackward {
  Attention call;
  AttentionOperand grad_out;
  AttentionOperand grad_q;
  AttentionOperand grad_k;
  AttentionOperand grad_v;
};

}  // namespace hetero::backend
