#include "ops/settings/errors.h"

#include <c10/util/Exception.h>

namespace hetero::ops {

void raise(const Status& status) {
  if (status.cause()) std::rethrow_exception(status.cause());
  if (status.error_class() == ErrorClass::kResource) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
  }
  TORCH_CHECK(false, "hetero: ", status.message());
}

}  // namespace hetero::ops
