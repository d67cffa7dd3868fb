#include "ops/program/fold_norms.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/optimize/channels_last.h"
#include "graph/optimize/fold_constants.h"
#include "graph/optimize/merge_repeated.h"
#include "graph/optimize/rewrite.h"
#include "ops/kernels/kernel.h"
#include "ops/memory/storage_memory.h"
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

void skip_list(Decoder& decoder) {
  const Tag tag = decoder.next();
  for (auto left = decoder.get<uint32_t>(); left > 0; --left) {
    (void)(tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
  }
}

class Folder {
 public:
  explicit Folder(graph::SavedProgram& program) : program_(program), graph_(program.graph) {}

  size_t run() {
    const graph::OpId convolution = graph::op_table().find("aten::convolution");
    const graph::OpId norm = graph::op_table().find("aten::native_batch_norm");
    if (convolution == graph::kNoOp || norm == graph::kNoOp) return 0;
    find_uses();
    gone_.assign(graph_.nodes.size(), 0);
    size_t folded = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op == norm && fold(n, convolution)) ++folded;
    }
    if (folded > 0) graph::remove_nodes(program_, gone_);
    return folded;
  }

 private:
  struct Uses {
    size_t reads = 0;
    size_t writes = 0;
    size_t first_write = 0;  // a node
  };

  const Operand& operand(const Node& node, int i) const { return graph_.operands[node.first_operand + i]; }
  const graph::Window& window_of(const Operand& operand) const { return program_.windows[operand.window]; }

  void find_uses() {
    uses_.assign(graph_.buffers.size(), Uses());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (int i = 0; i < graph_.nodes[n].operand_count; ++i) {
        const Operand& it = operand(graph_.nodes[n], i);
        Uses& uses = uses_[it.buffer];
        uses.reads += it.reads() ? 1 : 0;
        if (it.writes() && uses.writes++ == 0) uses.first_write = n;
      }
    }
  }

  // The value of a weight that nothing writes; undefined for another operand.
  at::Tensor constant(const Node& node, int i) const {
    const Operand& it = operand(node, i);
    const graph::Window& window = window_of(it);
    const auto dtype = static_cast<at::ScalarType>(window.dtype);
    if (it.bits != 0 || uses_[it.buffer].writes > 0 || (dtype != at::kFloat && dtype != at::kDouble)) return {};
    const auto found = std::ranges::find_if(program_.constants, [&](const graph::ProgramConstant& other) {
      return other.buffer == it.buffer && other.bytes;
    });
    if (found == program_.constants.end()) return {};
    const auto rank = static_cast<size_t>(window.rank);
    const int64_t item = graph::dtype_bytes(window.dtype);
    return bytes_at(found->bytes.data(), static_cast<int64_t>(found->bytes.bytes()), at::kCPU)
        .view(dtype)
        .as_strided({window.sizes().data(), rank}, {window.strides().data(), rank}, window.offset)
        .to(at::kDouble, /*non_blocking=*/false, /*copy=*/item > 0);
  }

  bool is_temporary(BufferId buffer) const {
    return graph_.buffers[buffer].valid_on == 0 && !graph_.buffers[buffer].escapes;
  }

  // The convolution whose whole result the norm reads, and nothing else does; null for none.
  Node* convolution_before(const Node& norm, graph::OpId convolution) {
    const Operand& input = operand(norm, 0);
    const Uses& uses = uses_[input.buffer];
    if (!is_temporary(input.buffer) || uses.reads != 1 || uses.writes != 1 || input.bits != 0) return nullptr;
    Node& before = graph_.nodes[uses.first_write];
    if (before.op != convolution || before.output_count != 1) return nullptr;
    const Operand& output = operand(before, before.operand_count - 1);
    return output.buffer == input.buffer && output.window == input.window && output.bits == 0 ? &before : nullptr;
  }

  bool fold(size_t n, graph::OpId convolution) {
    const Node& norm = graph_.nodes[n];
    Decoder of_norm(graph_.attributes.data() + norm.attribute_offset, norm.attribute_bytes);
    const Tensors norms = read_tensors(of_norm, 5);
    if (!norms.complete || norms.operand[0] != 0 || norms.operand[3] < 0 || norms.operand[4] < 0) return false;
    if (of_norm.next() != Tag::kBoolean || of_norm.get<uint8_t>() != 0) return false;
    if (const Tag momentum = of_norm.next(); momentum == Tag::kReal || momentum == Tag::kShapeReal) {
      (void)of_norm.real(momentum);
    } else {
      return false;
    }
    const Tag epsilon_tag = of_norm.next();
    if (epsilon_tag != Tag::kReal && epsilon_tag != Tag::kShapeReal) return false;
    const double epsilon = of_norm.real(epsilon_tag);

    const int result = norm.operand_count - norm.output_count;
    const BufferId made = operand(norm, result).buffer;
    if (uses_[made].first_write != n || operand(norm, result).reads()) return false;
    for (int i = result + 1; i < norm.operand_count; ++i) {
      if (uses_[operand(norm, i).buffer].reads > 0 || !is_temporary(operand(norm, i).buffer)) return false;
    }

    Node* const before = convolution_before(norm, convolution);
    if (before == nullptr || before->preference != norm.preference) return false;
    Decoder of_convolution(graph_.attributes.data() + before->attribute_offset, before->attribute_bytes);
    const Tensors convolved = read_tensors(of_convolution, 3);
    if (!convolved.complete || convolved.operand[0] != 0 || convolved.operand[1] != 1) return false;
    for (int i = 0; i < 3; ++i) skip_list(of_convolution);
    if (of_convolution.next() != Tag::kBoolean || of_convolution.get<uint8_t>() != 0) return false;

    at::Tensor weight = constant(*before, 1);
    const at::Tensor mean = constant(norm, norms.operand[3]), variance = constant(norm, norms.operand[4]);
    if (!weight.defined() || !mean.defined() || !variance.defined()) return false;
    at::Tensor scale = at::rsqrt(variance + epsilon), shift = at::zeros_like(mean);
    const auto optional = [&](const Node& node, int i, at::Tensor& value) {
      if (i >= 0) value = constant(node, i);
      return i < 0 || value.defined();
    };
    at::Tensor factor, summand;
    if (!optional(norm, norms.operand[1], factor) || !optional(norm, norms.operand[2], summand) ||
        !optional(*before, convolved.operand[2], shift)) {
      return false;
    }
    if (factor.defined()) scale = scale * factor;
    shift = (shift - mean) * scale;
    if (summand.defined()) shift = shift + summand;
    std::vector<int64_t> along(static_cast<size_t>(weight.dim()), 1);
    along[0] = -1;
    weight = weight * scale.view(along);

    replace(*before, convolved.operand[2] >= 0, weight, shift, operand(norm, result));
    gone_[n] = 1;
    return true;
  }

  // The convolution has these weights from now on, and writes where the norm wrote.
  void replace(Node& convolution, bool has_bias, const at::Tensor& weight, const at::Tensor& bias, Operand output) {
    std::vector<Operand> operands{operand(convolution, 0), add_constant(operand(convolution, 1), weight)};
    operands.push_back(add_constant(operand(convolution, 1), bias));
    operands.push_back(output);
    // How the output follows from the sizes of inputs.
    for (graph::DynamicSizes::OperandWindow& dynamic : program_.dynamic.operands) {
      if (&graph_.nodes[dynamic.node] == &convolution && dynamic.operand == convolution.operand_count - 1u) {
        dynamic.operand = 3;
      }
    }
    convolution.first_operand = static_cast<uint32_t>(graph_.operands.size());
    convolution.operand_count = 4;
    graph_.operands.insert(graph_.operands.end(), operands.begin(), operands.end());
    constexpr size_t kBias = 2;  // the third argument; none of the three has more than its tag
    if (!has_bias) {
      graph_.attributes[convolution.attribute_offset + sizeof(AttributeHeader) + kBias] =
          std::byte{static_cast<uint8_t>(Tag::kTensor)};
    }
    uses_[output.buffer].first_write = static_cast<size_t>(&convolution - graph_.nodes.data());
  }

  // A weight of the program with this value, in the dtype of `like`, row-major.
  Operand add_constant(const Operand& like, const at::Tensor& value) {
    const graph::DType dtype = window_of(like).dtype;
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
  std::vector<Uses> uses_;     // per buffer
  std::vector<uint8_t> gone_;  // per node
  size_t numbered_ = 0;
};

}  // namespace

size_t fold_batch_norms(graph::SavedProgram& program) {
  const Isolated isolated;
  return Folder(program).run();
}

Status optimize_program(graph::SavedProgram& program) {
  if (Status status = graph::fold_constants(program); !status.ok()) return status;
  const bool may_vary = last_bits_may_vary();
  if (may_vary) fold_batch_norms(program);
  graph::merge_repeated(program);
  if (may_vary) graph::use_channels_last(program);
  return Status();
}

}  // namespace hetero::ops
