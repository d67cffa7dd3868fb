// Operators that the catch-all records and a kernel of ours runs.

#include <string>
#include <unordered_map>

#include "ops/convolution/convolution.h"
#include "ops/convolution/images.h"
#include "ops/dispatch/quantized.h"
#include "ops/dispatch/registration.h"
#include "ops/dispatch/typed_rows.h"
#include "ops/host/decode_jpeg.h"
#include "ops/kernels/boxed.h"
#include "ops/recurrent/layer_kernel.h"

namespace hetero::ops {
namespace {

// What a row says that is code.
struct BoxedCode {
  graph::KernelFunction kernel;
  RowCode<> rest;
};

template <bool (*own)(const graph::Invocation&)>
BoxedCode code_of(const RowCode<own>& code) {
  return {&own_or_stock<own, &boxed_kernel>,
          {code.prepare, code.run_together, code.shared_operand, code.takes_memory, code.called}};
}

std::unordered_map<std::string, BoxedCode> read_rows() {
  std::unordered_map<std::string, BoxedCode> rows;
#define HETERO_BOXED_ROWS
#define BOXED(name, op_class, ...) rows.emplace(name, code_of(RowCode<> {} __VA_ARGS__));
#include "ops/table/op_table.def"
  return rows;
}

}  // namespace

void add_boxed_kernel(graph::OpTraits& traits) {
  static const auto* const rows = new std::unordered_map<std::string, BoxedCode>(read_rows());
  traits.kernel = &boxed_kernel;
  const auto found = rows->find(traits.name);
  if (found == rows->end()) return;
  const BoxedCode& code = found->second;
  traits.kernel = code.kernel;
  traits.brings_memory = !code.rest.takes_memory;
  traits.prepare = code.rest.prepare;
  traits.run_together = code.rest.run_together;
  traits.shared_operand = code.rest.shared_operand;
}

}  // namespace hetero::ops
