// Typed recorders and kernels of pointwise operators that make new tensors.

#include "operator_headers/pointwise.h"
#include "ops/convolution/images.h"
#include "ops/dispatch/typed_rows.h"

namespace hetero::ops {

void add_pointwise_rows(torch::Library& library) {
#define HETERO_POINTWISE_ROWS
#include "ops/table/op_table.def"
}

}  // namespace hetero::ops
