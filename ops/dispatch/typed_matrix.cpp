// Typed recorders and kernels of matrix products, reductions, softmax and indexing.

#include "operator_headers/matrix.h"
#include "ops/convolution/images.h"
#include "ops/dispatch/typed_rows.h"
#include "ops/kernels/in_place.h"
#include "ops/kernels/linear.h"

namespace hetero::ops {

void add_matrix_rows(torch::Library& library) {
#define HETERO_MATRIX_ROWS
#include "ops/table/op_table.def"
}

}  // namespace hetero::ops
