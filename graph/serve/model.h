// Model: a saved program with its weights in memory, shared by all executors that run it.
//
// A constant that the program only reads exists once on the host, and once on an accelerator if
// some executor's plan keeps it there. A state, a constant that the program writes, belongs to each
// executor and starts with the saved bytes.
//
//   Result<std::shared_ptr<Model>> model = Model::load("minilm.hetero");
//   auto executor = GraphExecutor::Init(model.value(), {});
//
// Thread safety: any thread.
// Ownership: executors share the model; it frees its memory with the last of them.

#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/binding.h"
#include "graph/program/ports.h"
#include "graph/program/saved_program.h"

namespace hetero {

class Model {
 public:
  // Reads a file (archive.h). Errors: kStorage for a damaged or foreign file, kUsage for an illegal
  // program.
  static Result<std::shared_ptr<Model>> load(const std::string& path);
  // Errors: kUsage for an illegal program.
  static Result<std::shared_ptr<Model>> create(std::unique_ptr<graph::SavedProgram> program);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const graph::SavedProgram& program() const { return *program_; }
  const Ports& inputs() const { return inputs_; }
  const Ports& outputs() const { return outputs_; }

  // Per buffer of the graph: its constant's bytes on the host; null if it is no constant.
  const void* host_bytes(graph::BufferId buffer) const { return host_[buffer]; }
  bool is_constant(graph::BufferId buffer) const { return is_constant_[buffer] != 0; }
  // Whether some node writes the buffer.
  bool is_written(graph::BufferId buffer) const { return is_written_[buffer] != 0; }
  // The same on a device, copied if no executor has brought them there. They stay while a result is
  // held. Errors: kResource.
  using DeviceBytes = std::shared_ptr<backend::Block>;
  Result<DeviceBytes> device_bytes(graph::BufferId buffer, backend::Device& device);
  // Whether the bytes are on the device already.
  bool is_on_device(graph::BufferId buffer, const backend::Device& device);
  // Data that CPU kernels derive from constants (Invocation::bindings), per buffer; null for
  // others.
  std::vector<graph::Binding*> bindings();

 private:
  explicit Model(std::unique_ptr<graph::SavedProgram> program);

  const std::unique_ptr<graph::SavedProgram> program_;
  const Ports inputs_;
  const Ports outputs_;
  std::vector<const void*> host_;
  std::vector<uint8_t> is_constant_;
  std::vector<uint8_t> is_written_;
  std::vector<std::unique_ptr<graph::Binding>> bindings_;
  std::mutex mutex_;  // guards `on_device_`
  struct Copy {
    graph::BufferId buffer;
    backend::Device* device;
    std::weak_ptr<backend::Block> block;
  };
  // Null if there is none. REQUIRES: the mutex is held.
  DeviceBytes find_copy(graph::BufferId buffer, const backend::Device& device) const;
  std::vector<Copy> on_device_;
};

}  // namespace hetero
