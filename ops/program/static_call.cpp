#include "ops/program/static_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/program/program_sizes.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/generator.h"
#include "ops/run/overlap.h"
#include "ops/run/plan_options.h"
#include "ops/run/profile.h"
#include "ops/run/program_log.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

// Lends or copies.
void give(GraphExecutor& executor, size_t input, const at::Tensor& tensor, size_t slot) {
  const TensorView view = view_of(tensor);
  const auto owner = std::make_shared<at::Tensor>(tensor);
  if (executor.SetInputZeroCopy(input, view, slot, owner).ok()) return;
  check(executor.SetInput(input, view, slot));
}

// Adds the run to the log; what it took, nobody has looked.
void log_run(const GraphExecutor& executor) {
  const Executing executing;
  ProgramLog& log = program_log();
  const graph::StaticPlan& plan = executor.plan();
  const graph::PlanOptions options = static_plan_options();
  log.plan_text = plan_text(plan.graph, plan.plan, options);
  log_program(log, {.graph = plan.graph, .plan = plan.plan, .options = options, .times = nullptr, .candidates = {}},
              "saved program, call " + std::to_string(++log.saved_runs));
}

// Whether a result is a value of its own, so that the caller may keep it.
// For a profiler, a run is one operator.
void run(GraphExecutor& executor, size_t slot) {
  static const std::string name = "hetero::program";
  RECORD_FUNCTION(name.c_str(), std::vector<c10::IValue>());
  const ProfiledCall profiled(name);
  {
    KernelScope scope;
    choose_thread_count();
    check(executor.Run(slot));
  }
  check(executor.Wait(slot));
}

bool is_made(const GraphExecutor& executor, const graph::ProgramValue& output) {
  const graph::SavedProgram& program = executor.program();
  const auto same = [&](const auto& other) { return other.buffer == output.buffer; };
  return std::ranges::none_of(program.inputs, same) && std::ranges::none_of(program.constants, same);
}

}  // namespace

TensorView view_of(const at::Tensor& tensor) {
  return {.data = tensor.data_ptr(),
          .dtype = static_cast<graph::DType>(tensor.scalar_type()),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

at::Tensor empty_output(const TensorShape& shape) {
  return at::detail::empty_strided_cpu(shape.sizes, shape.strides, static_cast<at::ScalarType>(shape.dtype));
}

void mark_output(const graph::SavedProgram& program, size_t output, const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if ((program.outputs[output].bits & graph::kConjugate) != 0) impl->_set_conj(true);
  if ((program.outputs[output].bits & graph::kNegative) != 0) impl->_set_neg(true);
}

graph::PlanOptions static_plan_options() {
  graph::PlanOptions options = configured_plan_options();
  options.fixed_memory = true;
  return options;
}

GraphExecutor::Options executor_options(graph::PlanOptions plan) {
  GraphExecutor::Options options;
  options.plan = std::make_unique<graph::PlanOptions>(std::move(plan));
  options.draw = [] {
    const RandomState state = draw_random_state(std::nullopt);
    return std::pair(state.seed, state.offset);
  };
  return options;
}

void check(const Status& status) {
  if (status.ok()) return;
  TORCH_CHECK_VALUE(status.error_class() != ErrorClass::kUsage, "hetero: ", status.message());
  if (!status.cause()) return raise(status);
  try {
    std::rethrow_exception(status.cause());
  } catch (c10::Error& error) {
    // The exception that eager would have raised, and where.
    error.add_context("hetero: in " + status.message().substr(0, status.message().find(": ")));
    throw;
  }
}

std::vector<at::Tensor> call(GraphExecutor& executor, const std::vector<at::Tensor>& inputs, size_t slot) {
  const size_t count = executor.inputs().size();
  TORCH_CHECK_VALUE(inputs.size() == count, "hetero: the program has ", count, " inputs, and ", inputs.size(),
                    " were given");
  if (!executor.dimensions().empty()) {
    std::vector<TensorView> views;
    for (const at::Tensor& input : inputs) views.push_back(view_of(input));
    check(executor.SetSizesOf(views));
  }
  const graph::SavedProgram& program = executor.program();
  for (size_t i = 0; i < inputs.size(); ++i) give(executor, i, inputs[i], slot);
  const Result<std::vector<TensorShape>> shapes = graph::output_shapes(executor.model().program(), executor.sizes());
  check(shapes.status());
  std::vector<at::Tensor> outputs;
  std::vector<bool> lent;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    outputs.push_back(empty_output(shapes.value()[o]));
    lent.push_back(is_made(executor, program.outputs[o]) &&
                   executor.SetOutputZeroCopy(o, view_of(outputs.back()), slot).ok());
  }
  run(executor, slot);
  if (config().keep_plans.load(std::memory_order_relaxed)) log_run(executor);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!lent[o]) check(executor.GetOutput(o, view_of(outputs[o]), slot));
    mark_output(program, o, outputs[o]);
  }
  return outputs;
}

}  // namespace hetero::ops
