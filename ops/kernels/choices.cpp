#include "ops/kernels/choices.h"

#include <torch/version.h>

#include "backend/cpu/vector/instruction_set.h"

namespace hetero::ops {

const std::string& machine_text() {
  static const auto* machine =
      new std::string("torch " TORCH_VERSION ", " + std::string(to_string(backend::instruction_set())) + "," +
                      backend::processor_model());
  return *machine;
}

}  // namespace hetero::ops
