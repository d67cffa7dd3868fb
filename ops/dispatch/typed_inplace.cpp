// Typed recorders and kernels of in-place operators.

#include "ops/dispatch/typed.h"

#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_copy_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_ops.h>
#include <ATen/ops/zero_ops.h>

#include "ops/dispatch/op_table.h"

namespace hetero::ops {

void add_inplace_rows(torch::Library& library) {
  using graph::OpClass;
#define HETERO_INPLACE_ROWS
#define OUT(name, out, op_class) add_typed_row<at::_ops::name, at::_ops::out>(library, OpClass::op_class);
#define NEW(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#define INPLACE(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#include "ops/dispatch/op_table.def"
}

}  // namespace hetero::ops
