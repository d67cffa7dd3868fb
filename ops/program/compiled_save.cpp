// CompiledProgram::save: what was captured, as a program that needs neither the recorder nor the
// tensors it was captured with.

#include <algorithm>
#include <set>
#include <string>

#include "ops/memory/storage_memory.h"
#include "ops/program/compiled.h"
#include "ops/program/compiled_variant.h"
#include "ops/run/overlap.h"
#include "ops/run/sync.h"

namespace hetero::ops {
namespace {

using Kind = CompiledVariant::Source::Kind;
using graph::BufferId;
using graph::WindowId;

graph::WindowId window_of(const at::Tensor& tensor, graph::WindowTable& windows) {
  return windows.intern(static_cast<graph::DType>(tensor.scalar_type()), {tensor.sizes().data(), tensor.sizes().size()},
                        {tensor.strides().data(), tensor.strides().size()}, tensor.storage_offset());
}

class Saver {
 public:
  Saver(const CompiledProgram& program, const CompiledVariant& variant, const graph::WindowTable& windows,
        const ProgramNames& names)
      : program_(program),
        variant_(variant),
        windows_(windows),
        names_(names),
        saved_(std::make_unique<graph::SavedProgram>()) {}

  std::unique_ptr<graph::SavedProgram> run() {
    TORCH_CHECK(variant_.default_dtype == at::kFloat,
                "hetero: a program is saved under the default dtype float32, not ", variant_.default_dtype);
    copy_graph();
    add_inputs();
    add_constants();
    add_outputs();
    find_draws();
    return std::move(saved_);
  }

 private:
  WindowId moved(WindowId id) {
    const graph::Window& window = windows_[id];
    return saved_->windows.intern(window.dtype, window.sizes(), window.strides(), window.offset);
  }

  void copy_graph() {
    saved_->graph = variant_.graph;
    saved_->graph.windows = &saved_->windows;
    for (graph::Operand& operand : saved_->graph.operands) operand.window = moved(operand.window);
    for (BufferId b = 0; b < variant_.sources.size(); ++b) {
      graph::Buffer& buffer = saved_->graph.buffers[b];
      const Kind kind = variant_.sources[b].kind;
      buffer = {.bytes = buffer.bytes,
                .valid_on = kind == Kind::kArgument || kind == Kind::kConstant ? uint8_t{1} : uint8_t{0},
                .escapes = false};
    }
    // The numbers, which a graph that is planned often keeps apart.
    std::vector<uint8_t> changed;
    put_numbers({variant_.numbers.data(), variant_.numbers.size()}, saved_->graph, changed);
  }

  // The buffer that is this; one of `bytes` where no node touches it.
  BufferId buffer_of(CompiledVariant::Source source, uint64_t bytes) {
    for (BufferId b = 0; b < variant_.sources.size(); ++b) {
      if (variant_.sources[b].kind == source.kind && variant_.sources[b].index == source.index) return b;
    }
    for (const auto& [known, buffer] : untouched_) {
      if (known.kind == source.kind && known.index == source.index) return buffer;
    }
    const bool given = source.kind != Kind::kResult;
    saved_->graph.buffers.push_back({.bytes = bytes, .valid_on = given ? uint8_t{1} : uint8_t{0}, .escapes = false});
    untouched_.emplace_back(source, static_cast<BufferId>(saved_->graph.buffers.size() - 1));
    return untouched_.back().second;
  }

  void add_inputs() {
    size_t next = 0;
    for (const auto& argument : variant_.arguments) {
      TORCH_CHECK(argument.window != graph::kNoWindow, "hetero: the inputs of a saved program are tensors");
      const BufferId buffer = buffer_of({Kind::kArgument, argument.storage}, variant_.storage_bytes[argument.storage]);
      saved_->inputs.push_back({names_.inputs.at(next++), buffer, moved(argument.window), argument.bits});
    }
  }

  void add_constants() {
    for (uint32_t c = 0; c < variant_.constants.size(); ++c) {
      const c10::Storage& storage = variant_.constants[c];
      const BufferId buffer = buffer_of({Kind::kConstant, c}, storage.nbytes());
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      const at::Tensor flat = make_view(storage, at::kByte, {bytes}, {1}, 0);
      // The alias keeps the bytes where they are.
      const at::Tensor host = host_alias(flat, SyncReason::kCompiled, false);
      backend::Block block = adopt_cpu_storage(host.storage());
      const size_t before = saved_->constants.size();
      for (const auto& [name, tensor] : names_.constants) {
        if (tensor.storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) continue;
        saved_->constants.push_back({name, buffer, window_of(tensor, saved_->windows), {}});
      }
      if (saved_->constants.size() == before) {
        saved_->constants.push_back({"constant." + std::to_string(c), buffer, window_of(flat, saved_->windows), {}});
      }
      saved_->constants[before].bytes = std::move(block);
    }
  }

  void add_outputs() {
    size_t next = 0;
    for (const auto& result : variant_.results) {
      TORCH_CHECK(result.source.kind != Kind::kNumber, "hetero: the outputs of a saved program are tensors");
      const uint64_t bytes = result.source.kind == Kind::kResult ? variant_.result_bytes[result.source.index] : 0;
      add_output(names_.outputs.at(next++), buffer_of(result.source, bytes), moved(result.window), result.bits);
    }
    for (const size_t index : program_.updated_arguments()) {
      const graph::ProgramValue& input = saved_->inputs[index];
      add_output(names_.outputs.at(next++), input.buffer, input.window, input.bits);
    }
  }

  void add_output(const std::string& name, BufferId buffer, WindowId window, uint8_t bits) {
    saved_->graph.buffers[buffer].escapes = true;
    saved_->outputs.push_back({name, buffer, window, bits});
  }

  void find_draws() {
    for (const graph::Node& node : saved_->graph.nodes) {
      std::vector<size_t> places;
      const std::byte* const attributes = saved_->graph.attributes.data() + node.attribute_offset;
      Decoder::find_random_states(attributes, node.attribute_offset + values_offset(attributes), places);
      saved_->draws.insert(saved_->draws.end(), places.begin(), places.end());
    }
  }

  const CompiledProgram& program_;
  const CompiledVariant& variant_;
  const graph::WindowTable& windows_;
  const ProgramNames& names_;
  std::unique_ptr<graph::SavedProgram> saved_;
  std::vector<std::pair<CompiledVariant::Source, BufferId>> untouched_;
};

}  // namespace

std::vector<size_t> CompiledProgram::updated_arguments() const {
  std::vector<size_t> updated;
  const Variant& variant = *variants_.entries().front();
  for (size_t i = 0; i < variant.arguments.size(); ++i) {
    const uint32_t storage = variant.arguments[i].storage;
    if (storage != ArgumentStorages::kNone && variant.written[storage] != 0) updated.push_back(i);
  }
  return updated;
}

std::unique_ptr<graph::SavedProgram> CompiledProgram::save(const ProgramNames& names) {
  const Executing executing;
  TORCH_CHECK(!variants_.empty(), "hetero: the program was not captured, so there is nothing to save");
  std::unique_ptr<graph::SavedProgram> saved = Saver(*this, *variants_.entries().front(), windows_, names).run();
  saved->looked_at = looked_at_;
  return saved;
}

}  // namespace hetero::ops
