#include "ops/dispatch/traits.h"

#include "ops/fused/lower.h"
#include "ops/kernels/device_kernel.h"
#include "ops/record/op_info.h"
#include "ops/shapes/node_check.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {

graph::OpTraits traits_of(const std::string& name) {
  graph::OpTraits traits;
  traits.name = name;
  const OperatorRow row = describe_operator(name);
  traits.op_class = row.op_class;
  traits.brings_memory = true;
  traits.is_foreign = !is_own(name) && !name.starts_with("hetero::");
  traits.check = &check_node;
  traits.has_draw = &has_draw;
  traits.lower = lowering_of(name);
  traits.has_tail = row.tail;
  traits.grows = row.grows;
  traits.host_task = row.host_task;
  traits.keeps_layout = row.keeps_layout;
  traits.leads = row.leads;
  add_device_kernel(traits);
  return traits;
}

}  // namespace hetero::ops
