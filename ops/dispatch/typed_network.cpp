// Typed recorders and kernels of neural network layers.

#include "ops/dispatch/typed.h"

#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/binary_cross_entropy_with_logits_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/smooth_l1_loss_ops.h>

#include "ops/kernels/attention.h"
#include "ops/kernels/convolution.h"
#include "ops/dispatch/op_table.h"

namespace hetero::ops {

// In training, batch norm updates the running statistics, which its schema does not say.
template <>
struct HiddenWrites<at::_ops::native_batch_norm> {
  static constexpr bool kSome = true;
  template <typename X, typename T>
  static uint32_t mask(const X&, const T&, const T&, const T&, const T&, bool training, double, double) {
    return training ? 1u << 3 | 1u << 4 : 0;
  }
};

void add_network_rows(torch::Library& library) {
  using graph::OpClass;
#define HETERO_NETWORK_ROWS
#define OUT(name, out, op_class) add_typed_row<at::_ops::name, at::_ops::out>(library, OpClass::op_class);
#define NEW(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#define INPLACE(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#include "ops/dispatch/op_table.def"
}

}  // namespace hetero::ops
