#include "ops/record/encoder.h"

namespace hetero::ops {

template class Encoder<Call>;

}  // namespace hetero::ops
