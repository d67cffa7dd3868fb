// Typed recorders and kernels of neural network layers.

#include "operator_headers/network.h"
#include "ops/convolution/convolution.h"
#include "ops/convolution/images.h"
#include "ops/dispatch/typed_rows.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/embedding_bags.h"

namespace hetero::ops {

void add_network_rows(torch::Library& library) {
#define HETERO_NETWORK_ROWS
#include "ops/table/op_table.def"
}

}  // namespace hetero::ops
