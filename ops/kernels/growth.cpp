#include "ops/kernels/growth.h"

#include "ops/kernels/kernel.h"
#include "ops/kernels/own_kernel.h"

namespace hetero::ops {

bool grow_in_place(const graph::Invocation& invocation) {
  const int result = invocation.node->operand_count - 1;
  if (invocation.data[0] != invocation.data[result]) return false;
  run_as_operator(OwnKernel::kGrowth, invocation, [&] {
    const Isolated isolated;
    KernelTensors tensors(invocation);
    const at::Tensor& grown = tensors.operand(result);
    const at::Tensor& first = tensors.operand(0);
    int64_t dimension = 0;
    while (first.size(dimension) == grown.size(dimension)) ++dimension;
    int64_t at = first.size(dimension);
    for (int i = 1; i < result; ++i) {
      const at::Tensor& added = tensors.operand(i);
      if (added.numel() == 0) continue;  // [0] may be any rank
      grown.narrow(dimension, at, added.size(dimension)).copy_(added);
      at += added.size(dimension);
    }
  });
  return true;
}

}  // namespace hetero::ops
