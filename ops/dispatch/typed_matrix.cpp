// Typed recorders and kernels of matrix products, reductions, softmax and indexing.

#include "ops/dispatch/typed.h"

#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/all_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/amin_ops.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/argmin_ops.h>
#include <ATen/ops/argsort_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/norm_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/repeat_ops.h>
#include <ATen/ops/roll_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/sort_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/topk_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>

#include "ops/kernels/growth.h"
#include "ops/kernels/linear.h"
#include "ops/dispatch/op_table.h"

namespace hetero::ops {

void add_matrix_rows(torch::Library& library) {
  using graph::OpClass;
#define HETERO_MATRIX_ROWS
#define OUT(name, out, op_class) add_typed_row<at::_ops::name, at::_ops::out>(library, OpClass::op_class);
#define NEW(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#define INPLACE(name, op_class) add_typed_row<at::_ops::name>(library, OpClass::op_class);
#include "ops/dispatch/op_table.def"
}

}  // namespace hetero::ops
