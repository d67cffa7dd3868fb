#include "tests/graph/static_program.h"

#include <cstring>

#include "tests/graph/catch.h"

namespace hetero::graph::testing {
namespace {

std::vector<float> numbers_of(const Program& program, BufferId buffer) {
  const std::vector<Binding> bindings = program.bind({test_devices()[backend::kCpu], nullptr});
  const auto* const begin = static_cast<const float*>(bindings[buffer].blocks[backend::kCpu].data());
  return {begin, begin + program.graph.buffers[buffer].bytes / sizeof(float)};
}

}  // namespace

void require(const Status& status) {
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
}

bool contains(const Status& status, const std::string& words) {
  return !status.ok() && status.message().find(words) != std::string::npos;
}

std::shared_ptr<Model> model_of(std::unique_ptr<SavedProgram> program) {
  Result<std::shared_ptr<Model>> model = Model::create(std::move(program));
  require(model.status());
  return model.value();
}

std::unique_ptr<GraphExecutor> executor_of(std::shared_ptr<Model> model, GraphExecutor::Options options) {
  Result<std::unique_ptr<GraphExecutor>> executor = GraphExecutor::Init(std::move(model), std::move(options));
  require(executor.status());
  return std::move(executor.value());
}

TensorView view_of(std::vector<float>& values) {
  return TensorView::row_major(values.data(), "f32", {static_cast<int64_t>(values.size())});
}

GraphExecutor::Options executor_options(PlanOptions plan, const Devices& devices) {
  GraphExecutor::Options options;
  options.devices = devices;
  if (!plan.has_accelerator) options.devices[backend::kAccelerator] = nullptr;
  plan.fixed_memory = true;
  options.plan = std::make_unique<PlanOptions>(std::move(plan));
  return options;
}

void set_inputs(GraphExecutor& executor, Program& program, size_t slot) {
  for (const ProgramValue& input : executor.inputs()) {
    std::vector<float> values = numbers_of(program, input.buffer);
    require(executor.SetInput(input.name, view_of(values), slot));
  }
}

bool has_values(GraphExecutor& executor, const Results& expected, size_t slot) {
  for (const ProgramValue& output : executor.outputs()) {
    if (!expected.values[output.buffer].has_value()) continue;
    const std::vector<float>& wanted = *expected.values[output.buffer];
    std::vector<float> found(wanted.size());
    require(executor.GetOutput(output.name, view_of(found), slot));
    if (!wanted.empty() && std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

std::vector<std::vector<float>> outputs_of(std::unique_ptr<SavedProgram> saved, Program& program) {
  const auto executor = executor_of(model_of(std::move(saved)), executor_options(cpu_options()));
  set_inputs(*executor, program);
  require(executor->Run());
  std::vector<std::vector<float>> values;
  for (const ProgramValue& output : executor->outputs()) {
    values.emplace_back(program.graph.buffers[output.buffer].bytes / sizeof(float));
    require(executor->GetOutput(output.name, view_of(values.back())));
  }
  return values;
}

}  // namespace hetero::graph::testing
