#include "graph/serve/model.h"

#include <algorithm>
#include <utility>

#include "graph/program/archive.h"
#include "graph/program/verify_program.h"

namespace hetero {

using backend::Block;
using graph::BufferId;

Model::Model(std::unique_ptr<graph::SavedProgram> program)
    : program_(std::move(program)),
      inputs_(*program_, program_->inputs, "input"),
      outputs_(*program_, program_->outputs, "output"),
      host_(program_->graph.buffers.size(), nullptr),
      is_constant_(program_->graph.buffers.size(), 0),
      is_written_(program_->graph.buffers.size(), 0),
      bindings_(program_->graph.buffers.size()) {
  for (const graph::Operand& operand : program_->graph.operands) {
    if (operand.writes()) is_written_[operand.buffer] = 1;
  }
  for (const graph::ProgramConstant& constant : program_->constants) {
    is_constant_[constant.buffer] = 1;
    if (constant.bytes) host_[constant.buffer] = constant.bytes.data();
    if (is_written_[constant.buffer] == 0 && bindings_[constant.buffer] == nullptr) {
      bindings_[constant.buffer] = std::make_unique<graph::Binding>();
      bindings_[constant.buffer]->mapped = constant.mapped;
    }
  }
}

Result<std::shared_ptr<Model>> Model::load(const std::string& path) {
  Result<std::unique_ptr<graph::SavedProgram>> program = graph::load_program(path);
  if (!program.ok()) return program.status();
  return std::shared_ptr<Model>(new Model(std::move(program.value())));
}

Result<std::shared_ptr<Model>> Model::create(std::unique_ptr<graph::SavedProgram> program) {
  if (Status status = graph::verify_program(*program); !status.ok()) return status;
  return std::shared_ptr<Model>(new Model(std::move(program)));
}

std::vector<graph::Binding*> Model::bindings() {
  std::vector<graph::Binding*> pointers;
  for (const auto& binding : bindings_) pointers.push_back(binding.get());
  return pointers;
}

Model::DeviceBytes Model::find_copy(BufferId buffer, const backend::Device& device) const {
  const auto copy =
      std::ranges::find_if(on_device_, [&](const Copy& one) { return one.buffer == buffer && one.device == &device; });
  return copy == on_device_.end() ? nullptr : copy->block.lock();
}

bool Model::is_on_device(BufferId buffer, const backend::Device& device) {
  const std::lock_guard lock(mutex_);
  return find_copy(buffer, device) != nullptr;
}

Result<Model::DeviceBytes> Model::device_bytes(BufferId buffer, backend::Device& device) {
  const std::lock_guard lock(mutex_);
  if (DeviceBytes copy = find_copy(buffer, device)) return copy;
  const size_t bytes = program_->graph.buffers[buffer].bytes;
  Result<Block> block = device.allocate(bytes);
  if (!block.ok()) return block.status();
  backend::Queue& queue = device.queue(backend::QueueKind::kHostToDevice);
  Status status = queue.copy(block.value().data(), host_[buffer], bytes);
  if (status.ok()) status = queue.synchronize();
  if (!status.ok()) return status;
  DeviceBytes made = std::make_shared<Block>(std::move(block.value()));
  std::erase_if(on_device_, [](const Copy& one) { return one.block.expired(); });
  on_device_.push_back({buffer, &device, made});
  return made;
}

}  // namespace hetero
