// Scaled dot product attention: out = softmax(scale * q k^T + mask) v for each batch and head, and
// its gradients.
//
// The scores are never stored as a whole. A tile of queries is multiplied with a block of keys,
// what comes out becomes weights while it is in the first-level cache, and the weights are
// multiplied with the block's values; sums and the largest score of a row go on from block to block
// (the online softmax of FlashAttention, Dao et al. 2022). Gradients compute the weights again from
// `logsumexp`. With eight queries or fewer (16 of 2-byte floats), as in decoding, keys and values
// are read where they are, by the kernels of matvec.h; else they are packed once for many queries.
//
// Several heads of queries may share one of keys and values (grouped-query attention). It is read
// or packed once for all of them, as if their queries were more queries of one head, and its
// gradients are the sums of theirs.
//
// Sums are kept in float32. Results do not depend on the number of threads; they depend on the
// instruction set in their last bits. A query whose scores are all -inf has 0 as result, as
// logsumexp and in its gradients. exp of what gives a denormal is 0. If the processor is
// faster with its instruction for pairs of bfloat16, weights are rounded to bfloat16 for many
// queries of bfloat16, as in PyTorch's own kernel.
//
// Thread safety: any thread; calls share nothing. Each thread keeps scratch memory: about a
// megabyte with a head size of 128, and after gradients as much as those of the queries of one head
// of keys.

#pragma once

#include "backend/cpu/kernels/attention_call.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// Writes `out` and `logsumexp`. REQUIRES: they overlap nothing else; heads is a multiple of
// kv_heads.
void attention_forward(const Attention& call);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
void attention_forward(const Attention& call, InstructionSet set);

// Writes the gradients of q, k and v. REQUIRES: as for attention_forward.
void attention_backward(const AttentionBackward& backward);
void attention_backward(const AttentionBackward& backward, InstructionSet set);

}  // namespace hetero::backend
