#include "ops/shapes/node_check.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/kernels/boxed.h"
#include "ops/record/call.h"
#include "ops/record/op_info.h"
#include "ops/shapes/meta.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {
namespace {

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void malformed(const std::string& what) { throw Malformed(what); }

// A part of the attributes, read from front to back and not beyond.
class Part {
 public:
  Part(const std::byte* data, uint64_t bytes) : data_(data), left_(bytes) {}
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  const std::byte* take(uint64_t bytes) {
    if (bytes > left_) malformed("its attributes end too early");
    const std::byte* const here = data_;
    data_ += bytes;
    left_ -= bytes;
    return here;
  }
  bool at_end() const { return left_ == 0; }

 private:
  const std::byte* data_;
  uint64_t left_;
};

// The arguments of a node, as the schema declares them, with hetero tensors without bytes for its
// operands.
class ArgumentReader {
 public:
  ArgumentReader(const graph::Graph& graph, const graph::Node& node)
      : graph_(graph), node_(node), structure_(nullptr, 0), sizes_(nullptr, 0), values_(nullptr, 0) {
    const std::byte* const attributes = graph.attributes.data() + node.attribute_offset;
    AttributeHeader header;
    if (node.attribute_bytes < sizeof(header)) malformed("its attributes end too early");
    std::memcpy(&header, attributes, sizeof(header));
    const uint64_t bytes = node.attribute_bytes - sizeof(header);
    if (header.structure_bytes > bytes || header.size_bytes > bytes - header.structure_bytes) {
      malformed("its attributes end too early");
    }
    structure_ = Part(attributes + sizeof(header), header.structure_bytes);
    sizes_ = Part(attributes + sizeof(header) + header.structure_bytes, header.size_bytes);
    const uint64_t before = uint64_t{header.structure_bytes} + header.size_bytes;
    values_ = Part(attributes + sizeof(header) + before, bytes - before);
  }

  torch::jit::Stack read(const OpInfo& info) {
    torch::jit::Stack stack;
    typed_ = info.typed;
    const auto& arguments = info.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      access_ = info.access[i];
      is_size_ = info.is_size[i];
      stack.push_back(value(arguments[i].type()));
    }
    if (info.seeded && get_tag() != Tag::kGenerator) malformed("it has no random state");
    if (info.seeded) values_.take(sizeof(RandomState));
    if (!structure_.at_end() || !sizes_.at_end() || !values_.at_end())
      malformed("it has more attributes than arguments");
    if (next_operand_ != inputs()) malformed("it has more operands than arguments");
    if (says_it_reads_ && !makes_no_hidden_writes(info, stack)) malformed("it writes an operand that it says it reads");
    return stack;
  }

  int inputs() const { return node_.operand_count - node_.output_count; }

 private:
  Tag get_tag() {
    const auto tag = structure_.get<uint8_t>();
    if (tag > static_cast<uint8_t>(Tag::kGenerator)) malformed("an attribute is of no known kind");
    return static_cast<Tag>(tag);
  }

  c10::IValue value(const c10::TypePtr& declared) {
    if (const auto optional = declared->cast<c10::OptionalType>()) {
      const auto& element = *optional->getElementType();
      const Tag tag = get_tag();
      // Without a generator, a random operator has a state all the same.
      return tag == Tag::kNone ? c10::IValue() : value_of(element, tag);
    }
    return value_of(*declared, get_tag());
  }

  c10::IValue value_of(const c10::Type& type, Tag tag) {
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return tensor(tag);
      case c10::TypeKind::NumberType:
        return scalar(tag);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return integer(tag);
      case c10::TypeKind::FloatType:
        return real(tag);
      case c10::TypeKind::BoolType:
        expect(tag == Tag::kBoolean, "a boolean");
        return structure_.get<uint8_t>() != 0;
      case c10::TypeKind::StringType: {
        expect(tag == Tag::kString, "a string");
        const auto length = structure_.get<uint32_t>();
        return std::string(reinterpret_cast<const char*>(structure_.take(length)), length);
      }
      case c10::TypeKind::DeviceObjType:
        expect(tag == Tag::kDevice, "a device");
        return c10::Device(kHetero, 0);
      case c10::TypeKind::GeneratorType:
        expect(tag == Tag::kGenerator, "a random state");
        values_.take(sizeof(RandomState));
        return {};
      case c10::TypeKind::ListType:
        return list(type, tag);
      default:
        malformed("its schema has an argument of type " + type.str() + ", which cannot be recorded");
    }
  }

  static void expect(bool holds, const char* what) {
    if (!holds) malformed(std::string("an argument is not ") + what);
  }

  c10::IValue tensor(Tag tag) {
    if (tag == Tag::kUndefined) return at::Tensor();
    if (tag == Tag::kConstant) return constant();
    expect(tag == Tag::kTensor, "a tensor");
    if (next_operand_ >= inputs()) malformed("it has fewer operands than arguments");
    const graph::Operand& operand = graph_.operands_of(node_)[next_operand_++];
    says_it_reads_ |= access_ != graph::Access::kRead && !operand.writes();
    const graph::Window& window = (*graph_.windows)[operand.window];
    const auto rank = static_cast<size_t>(window.rank);
    at::Tensor view = make_view(storage_of_buffer(operand.buffer), static_cast<at::ScalarType>(window.dtype),
                                {window.sizes().data(), rank}, {window.strides().data(), rank}, window.offset);
    c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
    if ((operand.bits & graph::kConjugate) != 0) impl->_set_conj(true);
    if ((operand.bits & graph::kNegative) != 0) impl->_set_neg(true);
    if ((operand.bits & graph::kWrappedNumber) != 0) impl->set_wrapped_number(true);
    return view;
  }

  c10::Storage storage_of_buffer(graph::BufferId buffer) {
    for (const auto& [known, storage] : storages_) {
      if (known == buffer) return storage;
    }
    return storages_.emplace_back(buffer, make_storage(graph_.buffers[buffer].bytes)).second;
  }

  c10::IValue constant() {
    const auto dtype = structure_.get<int8_t>();
    expect(dtype >= 0 && dtype < static_cast<int8_t>(at::ScalarType::NumOptions), "a number of a known dtype");
    expect(graph::dtype_bytes(dtype) <= 16, "a number of a known dtype");
    const auto bits = structure_.get<uint8_t>();
    values_.take(16);
    const at::Tensor number = at::detail::empty_cpu({}, static_cast<at::ScalarType>(dtype), std::nullopt, std::nullopt,
                                                    std::nullopt, std::nullopt);
    number.zero_();
    if ((bits & graph::kWrappedNumber) != 0) number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }

  c10::IValue scalar(Tag tag) {
    expect(tag == Tag::kScalar || tag == Tag::kShapeScalar, "a number");
    Part& part = tag == Tag::kShapeScalar ? sizes_ : values_;
    enum Kind : uint8_t { kInteger, kReal, kComplex, kBoolean, kUnsigned };
    switch (structure_.get<uint8_t>()) {
      case kInteger:
        return part.get<int64_t>();
      case kReal:
        return part.get<double>();
      case kComplex:
        return part.get<c10::complex<double>>();
      case kBoolean:
        return part.get<int64_t>() != 0;
      case kUnsigned:
        return c10::IValue(at::Scalar(static_cast<uint64_t>(part.get<int64_t>())));
      default:
        malformed("a number is of no known kind");
    }
  }

  c10::IValue integer(Tag tag) {
    expect(tag == Tag::kInteger || (is_size_ && tag == Tag::kSize), "an integer");
    return tag == Tag::kSize ? sizes_.get<int64_t>() : structure_.get<int64_t>();
  }

  c10::IValue real(Tag tag) {
    expect(tag == Tag::kReal || tag == Tag::kShapeReal, "a real number");
    return tag == Tag::kShapeReal ? sizes_.get<double>() : values_.get<double>();
  }

  c10::IValue list(const c10::Type& type, Tag tag) {
    const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
    const bool of_integers = element->kind() == c10::TypeKind::IntType || element->kind() == c10::TypeKind::SymIntType;
    const auto length = structure_.get<uint32_t>();
    if (of_integers) {
      expect(tag == Tag::kIntegers || (is_size_ && tag == Tag::kSizes), "a list of integers");
      c10::List<int64_t> numbers;
      Part& part = tag == Tag::kSizes ? sizes_ : structure_;
      for (uint32_t i = 0; i < length; ++i) numbers.push_back(part.get<int64_t>());
      return numbers;
    }
    if (element->kind() == c10::TypeKind::FloatType && tag == Tag::kReals) {
      c10::List<double> numbers;
      for (uint32_t i = 0; i < length; ++i) numbers.push_back(values_.get<double>());
      return numbers;
    }
    expect(tag == Tag::kList && !(typed_ && element->kind() == c10::TypeKind::FloatType), "a list");
    auto values = c10::impl::GenericList(element);
    for (uint32_t i = 0; i < length; ++i) values.push_back(value(element));
    return values;
  }

  const graph::Graph& graph_;
  const graph::Node& node_;
  Part structure_, sizes_, values_;
  bool says_it_reads_ = false;  // of an operand that the operator may write
  // Of the argument that is read.
  graph::Access access_ = graph::Access::kRead;
  bool is_size_ = false;
  bool typed_ = false;  // the operator has a typed kernel, which reads less forgivingly
  int next_operand_ = 0;
  std::vector<std::pair<graph::BufferId, c10::Storage>> storages_;
};

// The tensors among the results that are new, in order.
std::vector<at::Tensor> fresh_results(const OpInfo& info, const MetaRun& run) {
  std::vector<at::Tensor> fresh;
  for (size_t r = 0; r < run.results.size(); ++r) {
    if (info.returns[r] == OpInfo::Return::kTensor) {
      fresh.push_back(run.results[r].toTensor());
    } else if (info.returns[r] == OpInfo::Return::kTensorList) {
      for (const at::Tensor& tensor : run.results[r].toTensorVector()) fresh.push_back(tensor);
    }
  }
  std::erase_if(fresh, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return fresh;
}

std::span<const graph::Operand> outputs_of(const graph::Graph& graph, const graph::Node& node) {
  return {graph.operands_of(node) + (node.operand_count - node.output_count), node.output_count};
}

// Kernels fill new tensors, of whatever order of dimensions.
void check_layouts(const graph::Graph& graph, const graph::Node& node) {
  for (const graph::Operand& output : outputs_of(graph, node)) {
    const graph::Window& window = (*graph.windows)[output.window];
    if (!window.dense || window.offset != 0) {
      malformed("its output is " + graph::to_string(window) + ", which is no whole tensor");
    }
  }
}

// What is wrong with the node's outputs; empty where they are those that the operator makes. They
// may be laid out otherwise: kernels write where they are told.
std::string compare_outputs(const graph::Graph& graph, const graph::Node& node,
                            const std::vector<at::Tensor>& expected) {
  if (expected.size() != node.output_count) {
    return "it has " + std::to_string(node.output_count) + " outputs in place of " + std::to_string(expected.size());
  }
  const std::span<const graph::Operand> outputs = outputs_of(graph, node);
  for (size_t i = 0; i < expected.size(); ++i) {
    const graph::Window& window = (*graph.windows)[outputs[i].window];
    const at::Tensor& tensor = expected[i];
    const bool same = window.dtype == static_cast<graph::DType>(tensor.scalar_type()) &&
                      std::ranges::equal(window.sizes(), tensor.sizes());
    if (!same) {
      return "its output is " + graph::to_string(window) + ", where the operator makes " +
             c10::str(tensor.scalar_type(), tensor.sizes());
    }
  }
  return "";
}

// Whether the Meta kernel left the operands as they were. A recorder resizes an empty `out` before
// it records the call.
bool keeps_operands(const torch::jit::Stack& arguments, const MetaRun& run) {
  bool kept = true;
  size_t index = 0;
  visit_tensors(arguments, [&](size_t, const at::Tensor& tensor) {
    if (!is_hetero(tensor)) return;
    const at::Tensor& after = run.inputs[index++];
    kept = kept && after.sizes() == tensor.sizes() && after.strides() == tensor.strides() &&
           after.storage_offset() == tensor.storage_offset();
  });
  return kept;
}

// Whether the outputs of the node are compared with what the kernel has made before anybody uses
// them, and the tensors that it writes keep their shape or the node fails. A node whose Meta kernel
// describes CUDA's kernel, and is wrong for the CPU's, may then be believed, and one that no Meta
// kernel describes. Rows have kernels that write where they are told, and fused kernels go by the
// windows. A row whose kernel looks at all arguments and brings the memory is compared, too.
bool is_compared_when_run(const OpInfo& info) {
  const graph::OpTraits& traits = graph::op_table()[info.id];
  return traits.lower == nullptr && (!info.typed || (info.row.checks_arguments && traits.brings_memory));
}

// Operators with a row are tried on zeros of no more bytes, where no rule says what they make.
constexpr uint64_t kMostTried = uint64_t{1} << 30;
// And of no more where a rule does.
constexpr uint64_t kFewTried = uint64_t{16} << 20;

uint64_t operand_bytes(const graph::Graph& graph, const graph::Node& node) {
  uint64_t bytes = 0;
  for (int i = 0; i < node.operand_count; ++i) bytes += graph.buffers[graph.operands_of(node)[i].buffer].bytes;
  return bytes;
}

// Whether trying it would take much memory, whatever its operands are.
bool makes_too_much(const OpInfo& info, const torch::jit::Stack& arguments) {
  if (info.row.result_sizes < 0) return false;
  constexpr int64_t kMost = 1 << 12;
  return std::ranges::any_of(arguments[info.row.result_sizes].toIntVector(), [](int64_t size) { return size > kMost; });
}

// By the kernel of an operator with a row or a shape rule, which computes tensors from tensors and
// does nothing else.
bool find_by_trying(const graph::Graph& graph, const graph::Node& node, const OpInfo& info,
                    const torch::jit::Stack& arguments, MetaRun& meta) {
  if (run_formula(info, arguments, meta)) return true;
  if (meta.failed || makes_too_much(info, arguments)) return false;
  const uint64_t bytes = operand_bytes(graph, node);
  if (bytes > kFewTried && run_rule(info, arguments, meta)) return true;
  return bytes <= kMostTried && run_probe(info, arguments, meta);
}

enum class Results : uint8_t { kKnown, kToBeCompared, kRefused, kUnknown };

// What the operator makes. Many Meta kernels are Python, which a C++ program does not have and
// which take a second to import: in their place an operator with a row or a shape rule is tried on
// zeros, and what the file says of others is believed where that is safe.
Results find_results(const graph::Graph& graph, const graph::Node& node, const OpInfo& info,
                     const torch::jit::Stack& arguments, MetaRun& meta) {
  const NothingRuns nothing_runs;
  if (run_meta(info, arguments, meta, MetaKernels::kWithoutPython)) return Results::kKnown;
  if (meta.failed) return Results::kRefused;
  if (meta.undescribed && is_compared_when_run(info) && info.row.checks_arguments) return Results::kToBeCompared;
  const bool tries = info.typed || info.shape_rule != ShapeRule::kNone;
  if (tries && find_by_trying(graph, node, info, arguments, meta)) return Results::kKnown;
  const bool raised = meta.failed;
  if (run_meta(info, arguments, meta)) return Results::kKnown;
  return raised || meta.failed ? Results::kRefused : Results::kUnknown;
}

const OpInfo* info_of(const std::string& name) {
  const size_t dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return handle.has_value() ? &op_info(*handle) : nullptr;
}

}  // namespace

Status check_node(const graph::Graph& graph, const graph::Node& node) {
  const OpInfo* const info = info_of(graph::op_table()[node.op].name);
  if (info == nullptr) return Status(ErrorClass::kUsage, "the operator is not known any more");
  try {
    if (!is_recorded(*info)) malformed("it is an operator that no program has");
    ArgumentReader reader(graph, node);
    const torch::jit::Stack arguments = reader.read(*info);
    MetaRun meta;
    const Results results = find_results(graph, node, *info, arguments, meta);
    if (results == Results::kRefused) malformed("the operator does not accept its arguments");
    if (results == Results::kUnknown) malformed("what it makes is not known without running it");
    check_layouts(graph, node);
    if (results == Results::kKnown) {
      if (!keeps_operands(arguments, meta)) malformed("it resizes an operand");
      const std::string wrong = compare_outputs(graph, node, fresh_results(*info, meta));
      if (!wrong.empty() && !is_compared_when_run(*info)) malformed(wrong);
    }
  } catch (const Malformed& error) {
    return Status(ErrorClass::kUsage, error.what());
  } catch (const std::exception& error) {
    return Status(ErrorClass::kUsage, std::string("its arguments cannot be: ") + error.what());
  }
  return Status();
}

bool has_draw(const graph::Graph& graph, const graph::Node& node, uint64_t place) {
  const std::byte* const attributes = graph.attributes.data() + node.attribute_offset;
  std::vector<size_t> places;
  Decoder::find_random_states(attributes, node.attribute_offset + values_offset(attributes), places);
  return std::ranges::find(places, place) != places.end();
}

void resolve_operator(const std::string& name) { (void)info_of(name); }

}  // namespace hetero::ops
