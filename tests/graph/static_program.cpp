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

std::unique_ptr<SavedProgram> save(Program& program, const std::set<BufferId>& constants) {
  auto saved = std::make_unique<SavedProgram>();
  Result<Graph> graph = parse_graph(to_string(program.graph), saved->windows);
  REQUIRE(graph.ok());
  saved->graph = std::move(graph.value());
  std::vector<Binding> bindings = program.bind({test_devices()[backend::kCpu], nullptr});
  for (BufferId b = 0; b < saved->graph.buffers.size(); ++b) {
    const Buffer& buffer = saved->graph.buffers[b];
    const auto count = static_cast<int64_t>(buffer.bytes / sizeof(float));
    const WindowId window = saved->windows.intern_contiguous(parse_dtype("f32"), {{count}});
    if (constants.count(b) != 0) {
      saved->constants.push_back({name_of(b), b, window, std::move(bindings[b].blocks[backend::kCpu])});
    } else if (buffer.valid_on != 0) {
      saved->inputs.push_back({.name = name_of(b), .buffer = b, .window = window});
    }
    if (buffer.escapes) saved->outputs.push_back({.name = name_of(b), .buffer = b, .window = window});
  }
  return saved;
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
    const Status status = executor.SetInput(input.name, view_of(values), slot);
    INFO((status.ok() ? "" : status.message()));
    REQUIRE(status.ok());
  }
}

bool has_values(GraphExecutor& executor, const Results& expected, size_t slot) {
  for (const ProgramValue& output : executor.outputs()) {
    if (!expected.values[output.buffer].has_value()) continue;
    const std::vector<float>& wanted = *expected.values[output.buffer];
    std::vector<float> found(wanted.size());
    const Status status = executor.GetOutput(output.name, view_of(found), slot);
    INFO((status.ok() ? "" : status.message()));
    REQUIRE(status.ok());
    if (!wanted.empty() && std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace hetero::graph::testing
