#include "tests/graph/program.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "backend/cpu/cpu_device.h"
#include "backend/registry.h"
#include "backend/sim/sim_device.h"

namespace hetero::graph::testing {

using backend::Block;
using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;

namespace {

float input_value(BufferId buffer, int64_t i) {
  return static_cast<float>(buffer) + 0.125f * static_cast<float>(i % 97);
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

}  // namespace

Block allocate(backend::Device& device, size_t bytes) {
  Result<Block> block = device.allocate(bytes);
  if (!block.ok()) require(block.status());
  return std::move(block.value());
}

void copy(backend::Device& accelerator, QueueKind direction, void* to, const void* from, size_t bytes) {
  require(accelerator.queue(direction).copy(to, from, bytes));
  require(accelerator.queue(direction).synchronize());
}

namespace {

std::string accelerator_name() {
  const char* const name = std::getenv("HETERO_ACCELERATOR");
  return name == nullptr ? "sim" : name;
}

// Null where there is none.
backend::Device* make_accelerator(Status& status) {
  if (accelerator_name() == "sim") {
    Result<std::unique_ptr<backend::SimDevice>> sim = backend::SimDevice::create();
    status = sim.ok() ? Status() : sim.status();
    return sim.ok() ? sim.value().release() : nullptr;
  }
  status = backend::choose_accelerator(accelerator_name());
  if (!status.ok() && status.error_class() == ErrorClass::kUsage) require(status);
  return backend::accelerator();
}

// Why there is no accelerator; ok where there is one, or is to be none.
Status& accelerator_status() {
  static Status status;
  return status;
}

// Says at the end of the program how many tests did not run.
struct Skipped {
  ~Skipped() {
    if (count > 0)
      std::printf("%d tests skipped: %s\n", count,
                  accelerator_status().ok() ? "they need an accelerator" : accelerator_status().message().c_str());
  }
  int count = 0;
};

}  // namespace

const Devices& test_devices() {
  static const Devices devices{new backend::CpuDevice, make_accelerator(accelerator_status())};
  return devices;
}

bool is_accelerator_missing(bool needs_one) {
  const bool is_there = test_devices()[kAccelerator] != nullptr;
  if (accelerator_status().ok() && (is_there || !needs_one)) return false;
  static Skipped skipped;
  ++skipped.count;
  return true;
}

PlanOptions options_for(const Devices& devices) {
  PlanOptions options;
  options.cpu = devices[kCpu]->capabilities();
  options.own_block_bytes = 512;
  options.least_own_block_bytes = 512;
  if (devices[kAccelerator] != nullptr) {
    options.has_accelerator = true;
    options.accelerator = devices[kAccelerator]->capabilities();
    options.accelerator_device = devices[kAccelerator];
  }
  return options;
}
PlanOptions cpu_options() { return options_for({test_devices()[kCpu], nullptr}); }
PlanOptions fused_options() {
  PlanOptions options = cpu_options();
  options.fusion = true;
  return options;
}
PlanOptions both_options() { return options_for(test_devices()); }
PlanOptions mixed_options() {
  PlanOptions options = both_options();
  options.policy = Policy::kMixed;
  return options;
}
PlanOptions remote_options() {
  PlanOptions options = both_options();
  options.policy = Policy::kAccelerator;
  return options;
}

BufferId Program::input(int64_t count, uint8_t valid_on) {
  graph.buffers.push_back(
      {.bytes = static_cast<uint64_t>(count) * sizeof(float), .valid_on = valid_on, .escapes = false});
  return static_cast<BufferId>(graph.buffers.size() - 1);
}

BufferId Program::empty(int64_t count) { return input(count, 0); }

Operand Program::operand(BufferId buffer, Access access) {
  const auto count = static_cast<int64_t>(graph.buffers[buffer].bytes / sizeof(float));
  return operand(buffer, access, {count}, {1}, 0);
}

Operand Program::operand(BufferId buffer, Access access, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                         int64_t offset) {
  const DType f32 = parse_dtype("f32");
  return {.buffer = buffer, .window = windows.intern(f32, sizes, strides, offset), .access = access, .bits = 0};
}

void Program::add(OpId op, std::vector<Operand> operands, Preference preference, float constant) {
  Node node{};
  node.op = op;
  node.first_operand = static_cast<uint32_t>(graph.operands.size());
  node.operand_count = static_cast<uint16_t>(operands.size());
  for (const Operand& operand : operands) node.output_count += operand.access == Access::kDefine;
  node.attribute_offset = static_cast<uint32_t>(graph.attributes.size());
  node.attribute_bytes = sizeof(float);
  node.sequence = static_cast<uint32_t>(graph.nodes.size());
  node.preference = preference;
  graph.operands.insert(graph.operands.end(), operands.begin(), operands.end());
  graph.attributes.resize(graph.attributes.size() + sizeof(float));
  std::memcpy(graph.attributes.data() + node.attribute_offset, &constant, sizeof(float));
  graph.nodes.push_back(node);
}

BufferId Program::define(OpId op, int64_t count, std::vector<Operand> inputs, Preference preference, float constant) {
  const BufferId output = empty(count);
  inputs.push_back(operand(output, Access::kDefine));
  add(op, std::move(inputs), preference, constant);
  return output;
}

std::vector<Binding> Program::bind(const Devices& devices) const {
  std::vector<Binding> bindings(graph.buffers.size());
  for (BufferId b = 0; b < bindings.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (buffer.valid_on == 0) continue;
    Block host = allocate(*devices[kCpu], buffer.bytes);
    for (size_t i = 0; i < buffer.bytes / sizeof(float); ++i) {
      static_cast<float*>(host.data())[i] = input_value(b, static_cast<int64_t>(i));
    }
    if (buffer.valid_on >> kAccelerator & 1) {
      Block remote = allocate(*devices[kAccelerator], buffer.bytes);
      copy(*devices[kAccelerator], QueueKind::kHostToDevice, remote.data(), host.data(), buffer.bytes);
      bindings[b].blocks[kAccelerator] = std::move(remote);
    }
    if (buffer.valid_on >> kCpu & 1) bindings[b].blocks[kCpu] = std::move(host);
    bindings[b].valid_on = buffer.valid_on;
  }
  return bindings;
}

std::vector<Binding*> Program::pointers(std::vector<Binding>& bindings) const {
  std::vector<Binding*> pointers(bindings.size(), nullptr);
  for (BufferId b = 0; b < bindings.size(); ++b) {
    if (graph.buffers[b].escapes || graph.buffers[b].valid_on != 0) pointers[b] = &bindings[b];
  }
  return pointers;
}

bool same_values(const Program& program, const Results& a, const Results& b) {
  for (BufferId id = 0; id < program.graph.buffers.size(); ++id) {
    if (!program.graph.buffers[id].escapes) continue;
    if (a.values[id].has_value() != b.values[id].has_value()) return false;
    if (!a.values[id].has_value()) continue;
    const std::vector<float>& x = *a.values[id];
    const std::vector<float>& y = *b.values[id];
    if (x.size() != y.size()) return false;
    if (!x.empty() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace hetero::graph::testing
