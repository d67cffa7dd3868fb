#include "ops/program/fold_norms.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/optimize/channels_last.h"
#include "graph/optimize/fold_constants.h"
#include "graph/optimize/merge_repeated.h"
#include "graph/optimize/rewrite.h"
#include "ops/convolution/convolution.h"
#include "ops/convolution/filter.h"
#include "ops/kernels/kernel.h"
#include "ops/memory/storage_memory.h"
#include "ops/program/graph_tensors.h"
#include "ops/record/call.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using graph::BufferId;
using graph::Node;
using graph::Operand;

// The first arguments of both operators: tensors, or none.
constexpr int kMostTensors = 5;
struct Tensors {
  int operand[kMostTensors] = {-1, -1, -1, -1, -1};  // of the node
  bool complete = false;
};

Tensors read_tensors(Decoder& decoder, int count) {
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    const Tag tag = decoder.next();
    if (tag == Tag::kTensor) {
      tensors.operand[i] = decoder.operand();
    } else if (tag != Tag::kNone && tag != Tag::kUndefined) {
      return tensors;
    }
  }
  tensors.complete = true;
  return tensors;
}

class Folder {
 public:
  explicit Folder(graph::SavedProgram& program) : program_(program), graph_(program.graph) {}

  size_t run() {
    // a name: what takes a norm
    const graph::OpId convolution = graph::op_table().find("aten::convolution");
    // a name: what is taken
    const graph::OpId norm = graph::op_table().find("aten::native_batch_norm");
    if (norm == graph::kNoOp) return 0;
    uses_ = graph::find_uses(graph_);
    gone_.assign(graph_.nodes.size(), 0);
    size_t changed = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op != norm) continue;
      const std::optional<Norm> read = read_norm(n);
      if (!read) continue;
      if (fold_into_convolution(n, *read, convolution)) ++changed;
    }
    if (changed > 0) graph::remove_nodes(program_, gone_);
    return changed;
  }

 private:
  const Operand& operand(const Node& node, int i) const { return graph_.operands[node.first_operand + i]; }
  const graph::Window& window_of(const Operand& operand) const { return program_.windows[operand.window]; }

  // The value of a weight that nothing writes; undefined for another operand.
  at::Tensor constant(const Node& node, int i) const {
    const Operand& it = operand(node, i);
    const graph::Window& window = window_of(it);
    const auto dtype = static_cast<at::ScalarType>(window.dtype);
    if (it.bits != 0 || uses_[it.buffer].writes > 0 || !at::isFloatingType(dtype)) return {};
    const auto found = std::ranges::find_if(program_.constants, [&](const graph::ProgramConstant& other) {
      return other.buffer == it.buffer && other.bytes;
    });
    if (found == program_.constants.end()) return {};
    const auto rank = static_cast<size_t>(window.rank);
    const auto bytes = static_cast<int64_t>(found->bytes.bytes());
    return bytes_at(found->bytes.data(), bytes - bytes % graph::dtype_bytes(window.dtype), at::kCPU)
        .view(dtype)
        .as_strided({window.sizes().data(), rank}, {window.strides().data(), rank}, window.offset)
        .to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }

  bool is_temporary(BufferId buffer) const {
    return graph_.buffers[buffer].valid_on == 0 && !graph_.buffers[buffer].escapes;
  }

  // The convolution whose whole result the norm reads, and nothing else does; null for none.
  Node* convolution_before(const Node& norm, graph::OpId convolution) {
    const Operand& input = operand(norm, 0);
    const graph::BufferUses& uses = uses_[input.buffer];
    if (!is_temporary(input.buffer) || uses.reads != 1 || uses.writes != 1 || input.bits != 0) return nullptr;
    Node& before = graph_.nodes[uses.first_write];
    if (before.op != convolution || before.output_count != 1) return nullptr;
    const Operand& output = operand(before, before.operand_count - 1);
    return output.buffer == input.buffer && output.window == input.window && output.bits == 0 ? &before : nullptr;
  }

  // y = x * scale + shift for each channel; of float64.
  struct Norm {
    at::Tensor scale, shift;
    int result = 0;  // an operand
  };

  // Nothing for a norm that is more than that.
  std::optional<Norm> read_norm(size_t n) const {
    const Node& node = graph_.nodes[n];
    Decoder decoder(graph_.attributes.data() + node.attribute_offset, node.attribute_bytes);
    const Tensors tensors = read_tensors(decoder, 5);
    if (!tensors.complete || tensors.operand[0] != 0 || tensors.operand[3] < 0 || tensors.operand[4] < 0) return {};
    if (decoder.next() != Tag::kBoolean || decoder.get<uint8_t>() != 0) return {};
    double numbers[2];  // momentum, epsilon
    for (double& number : numbers) {
      const Tag tag = decoder.next();
      if (tag != Tag::kReal && tag != Tag::kShapeReal) return {};
      number = decoder.real(tag);
    }
    Norm norm{.scale = {}, .shift = {}, .result = node.operand_count - node.output_count};
    const Operand& made = operand(node, norm.result);
    if (uses_[made.buffer].first_write != n || made.reads() || operand(node, 0).bits != 0) return {};
    for (int i = norm.result + 1; i < node.operand_count; ++i) {
      if (uses_[operand(node, i).buffer].reads > 0 || !is_temporary(operand(node, i).buffer)) return {};
    }
    at::Tensor values[kMostTensors];  // but for the first
    for (int i = 1; i < kMostTensors; ++i) {
      if (tensors.operand[i] < 0) continue;
      values[i] = constant(node, tensors.operand[i]);
      if (!values[i].defined()) return {};
    }
    auto [scale, shift] = affine_norm(values[1], values[2], values[3], values[4], numbers[1]);
    norm.scale = std::move(scale);
    norm.shift = std::move(shift);
    // Infinite ones would make sums over a window NaN.
    if (!is_finite(norm.scale) || !is_finite(norm.shift)) return {};
    return norm;
  }

  bool fold_into_convolution(size_t n, const Norm& norm, graph::OpId convolution) {
    Node* const before = convolution_before(graph_.nodes[n], convolution);
    if (before == nullptr || before->preference != graph_.nodes[n].preference) return false;
    Decoder decoder(graph_.attributes.data() + before->attribute_offset, before->attribute_bytes);
    const Tensors tensors = read_tensors(decoder, 3);
    if (!tensors.complete || tensors.operand[0] != 0 || tensors.operand[1] != 1) return false;
    for (int i = 0; i < 3; ++i) decoder.skip_list();
    if (decoder.next() != Tag::kBoolean || decoder.get<uint8_t>() != 0) return false;  // transposed
    const at::Tensor weight = constant(*before, 1);
    const bool has_bias = tensors.operand[2] >= 0;
    const at::Tensor bias = has_bias ? constant(*before, tensors.operand[2]) : at::zeros_like(norm.shift);
    if (!weight.defined() || !bias.defined()) return false;
    std::vector<int64_t> along(static_cast<size_t>(weight.dim()), 1);
    along[0] = -1;
    // As the program will have them. Float16 has too few exponents for products with a scale.
    const graph::DType dtype = window_of(operand(*before, 1)).dtype;
    const auto type = static_cast<at::ScalarType>(dtype);
    const at::Tensor folded = (weight * norm.scale.view(along)).to(type);
    const at::Tensor shifted = (bias * norm.scale + norm.shift).to(type);
    if (type == at::kHalf || !is_finite(folded) || !is_finite(shifted)) return false;

    const Operand output = operand(graph_.nodes[n], norm.result);
    // How the output follows from the sizes of inputs.
    move_dynamic(static_cast<size_t>(before - graph_.nodes.data()), {{0, 0}, {before->operand_count - 1, 3}});
    set_operands(*before, {operand(*before, 0), add_constant(dtype, folded), add_constant(dtype, shifted), output});
    constexpr size_t kBias = 2;  // the third argument; none of the three has more than its tag
    graph_.attributes[before->attribute_offset + sizeof(AttributeHeader) + kBias] =
        std::byte{static_cast<uint8_t>(Tag::kTensor)};
    uses_[output.buffer].first_write = static_cast<size_t>(before - graph_.nodes.data());
    gone_[n] = 1;
    return true;
  }

  // The node has these operands from now on, of which the last is its result.
  void set_operands(Node& node, const std::vector<Operand>& operands) {
    node.first_operand = static_cast<uint32_t>(graph_.operands.size());
    node.operand_count = static_cast<uint16_t>(operands.size());
    node.output_count = 1;
    graph_.operands.insert(graph_.operands.end(), operands.begin(), operands.end());
  }

  // Operands of the node that follow from the sizes of inputs, by their places before and from now
  // on.
  void move_dynamic(size_t node, const std::map<uint32_t, uint32_t>& places) {
    std::erase_if(program_.dynamic.operands, [&](graph::DynamicSizes::OperandWindow& dynamic) {
      if (dynamic.node != node) return false;
      const auto place = places.find(dynamic.operand);
      if (place != places.end()) dynamic.operand = place->second;
      return place == places.end();
    });
  }

  // A weight of the program with this value, row-major.
  Operand add_constant(graph::DType dtype, const at::Tensor& value) {
    at::Tensor cast = value.to(static_cast<at::ScalarType>(dtype)).contiguous();
    const auto buffer = static_cast<BufferId>(graph_.buffers.size());
    const graph::WindowId window =
        program_.windows.intern_contiguous(dtype, {cast.sizes().data(), cast.sizes().size()});
    graph_.buffers.push_back({.bytes = cast.nbytes(), .valid_on = 1u << backend::kCpu, .escapes = false});
    std::string name;
    const auto is_taken = [&](const graph::ProgramConstant& other) { return other.name == name; };
    do name = "norm." + std::to_string(numbered_++);
    while (std::ranges::any_of(program_.constants, is_taken));
    c10::Storage storage = cast.storage();
    cast.reset();
    program_.constants.push_back({std::move(name), buffer, window, adopt_cpu_storage(std::move(storage))});
    uses_.emplace_back();
    return {.buffer = buffer, .window = window, .access = graph::Access::kRead, .bits = 0};
  }

  graph::SavedProgram& program_;
  graph::Graph& graph_;
  std::vector<graph::BufferUses> uses_;  // per buffer
  std::vector<uint8_t> gone_;            // per node
  size_t numbered_ = 0;
};

}  // namespace

size_t fold_batch_norms(graph::SavedProgram& program) {
  const Isolated isolated;
  return Folder(program).run();
}

Status optimize_program(graph::SavedProgram& program) {
  if (Status status = graph::fold_constants(program); !status.ok()) return status;
  // Weights that hold a norm are new constants, so what is the same is found before.
  graph::merge_repeated(program);
  return prepare_convolutions(program);
}

Status prepare_convolutions(graph::SavedProgram& program) {
  if (!last_bits_may_vary()) return Status();
  if (Status status = caught([&] { fold_batch_norms(program); }); !status.ok()) return status;
  // Other kernels than the CPU's were not measured on either layout.
  const backend::Device* const accelerator = backend::accelerator();
  const bool by_host_kernels = accelerator == nullptr || accelerator->runs_host_kernels();
  if (by_host_kernels) graph::use_channels_last(program);
  return Status();
}

}  // namespace hetero::ops
