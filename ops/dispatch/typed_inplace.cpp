// Typed recorders and kernels of in-place operators.

#include "operator_headers/inplace.h"
#include "ops/dispatch/typed_rows.h"

namespace hetero::ops {

void add_inplace_rows(torch::Library& library) {
#define HETERO_INPLACE_ROWS
#include "ops/table/op_table.def"
}

}  // namespace hetero::ops
