#include "graph/optimize/merge_repeated.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/optimize/rewrite.h"

namespace hetero::graph {
namespace {

// Constants of so many bytes are the same where their bytes are.
constexpr uint64_t kSmall = 64;

// What is compared of a node, as bytes.
class Key {
 public:
  template <typename T>
  void add(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void add(std::string_view bytes) {
    add(bytes.size());
    bytes_.append(bytes);
  }
  void add(const SizeSum& sum) {
    add(sum.size());
    for (const SizeTerm& term : sum) {
      add(term.factor);
      add(term.variables.size());
      for (const uint16_t variable : term.variables) add(variable);
    }
  }
  void add(const DynamicWindow& window) {
    for (const auto* const sums : {&window.sizes, &window.strides}) {
      add(sums->size());
      for (const SizeSum& sum : *sums) add(sum);
    }
    add(window.offset);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Merger {
 public:
  explicit Merger(SavedProgram& program) : program_(program), graph_(program.graph) {}

  size_t run() {
    find_temporaries();
    number_constants();
    add_dynamic();
    gone_.assign(graph_.nodes.size(), 0);
    size_t merged = 0;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      redirect(node);
      if (can_merge(node)) {
        const auto [first, is_new] = known_.emplace(key_of(n), n);
        if (!is_new && merge(graph_.nodes[first->second], node)) {
          gone_[n] = 1;
          ++merged;
          continue;
        }
      }
      note_writes(node);
    }
    if (merged > 0) remove_nodes(program_, gone_);
    return merged;
  }

 private:
  std::span<Operand> operands_of(const Node& node) {
    return {graph_.operands.data() + node.first_operand, node.operand_count};
  }

  // Buffers that the program makes, each by one node that writes all of it, so that they never
  // change.
  void find_temporaries() {
    const size_t buffers = graph_.buffers.size();
    std::vector<uint32_t> writes(buffers, 0);
    is_temporary_.assign(buffers, 1);
    for (const Operand& operand : graph_.operands) {
      if (!operand.writes()) continue;
      const bool whole = overwrites(*graph_.windows, operand, graph_.buffers[operand.buffer]);
      if (!whole || ++writes[operand.buffer] > 1) is_temporary_[operand.buffer] = 0;
    }
    for (BufferId b = 0; b < buffers; ++b) {
      const Buffer& buffer = graph_.buffers[b];
      if (buffer.valid_on != 0 || writes[b] == 0) is_temporary_[b] = 0;
      if (buffer.takes != kNoBuffer) is_temporary_[b] = is_temporary_[buffer.takes] = 0;
    }
    version_.assign(buffers, 0);
    same_as_.resize(buffers);
    value_.resize(buffers);
    for (BufferId b = 0; b < buffers; ++b) same_as_[b] = value_[b] = b;
  }

  void number_constants() {
    std::vector<uint8_t> is_written(graph_.buffers.size(), 0);
    for (const Operand& operand : graph_.operands) is_written[operand.buffer] |= operand.writes();
    std::unordered_map<std::string, BufferId> known;
    for (const ProgramConstant& constant : program_.constants) {
      const Buffer& buffer = graph_.buffers[constant.buffer];
      if (!constant.bytes || buffer.bytes > kSmall || is_written[constant.buffer] != 0) continue;
      Key key;
      key.add(std::string_view(static_cast<const char*>(constant.bytes.data()), buffer.bytes));
      value_[constant.buffer] = known.emplace(key.take(), constant.buffer).first->second;
    }
  }

  // What depends on the sizes of inputs has to do so in the same way.
  void add_dynamic() {
    dynamic_of_node_.resize(graph_.nodes.size());
    dynamic_of_buffer_.resize(graph_.buffers.size());
    for (const DynamicSizes::OperandWindow& operand : program_.dynamic.operands) {
      Key key;
      key.add('w');
      key.add(operand.operand);
      key.add(operand.window);
      dynamic_of_node_[operand.node] += key.take();
    }
    for (const DynamicSizes::Number& number : program_.dynamic.numbers) {
      Key key;
      key.add('n');
      key.add(number.place);
      key.add(number.real);
      key.add(number.value);
      dynamic_of_node_[number.node] += key.take();
    }
    for (const DynamicSizes::Bytes& buffer : program_.dynamic.buffers) {
      Key key;
      key.add(buffer.bytes);
      dynamic_of_buffer_[buffer.buffer] = key.take();
    }
  }

  void redirect(const Node& node) {
    for (Operand& operand : operands_of(node)) operand.buffer = same_as_[operand.buffer];
  }

  bool can_merge(const Node& node) {
    const OpTraits& traits = op_table()[node.op];
    if (traits.side_effects || traits.is_foreign || traits.op_class == OpClass::kRandom || draws(program_, node)) {
      return false;
    }
    bool writes = false;
    for (const Operand& operand : operands_of(node)) {
      if (!operand.writes()) continue;
      if (operand.reads() || is_temporary_[operand.buffer] == 0) return false;
      writes = true;
    }
    return writes;
  }

  std::string key_of(uint32_t n) {
    const Node& node = graph_.nodes[n];
    Key key;
    key.add(node.op);
    key.add(node.preference);
    key.add(std::string_view(reinterpret_cast<const char*>(graph_.attributes.data() + node.attribute_offset),
                             node.attribute_bytes));
    key.add(node.operand_count);
    key.add(node.output_count);
    for (const Operand& operand : operands_of(node)) {
      key.add(operand.access);
      key.add(operand.window);
      key.add(operand.bits);
      if (operand.reads()) {
        key.add(value_[operand.buffer]);
        key.add(version_[operand.buffer]);
      } else {
        const Buffer& buffer = graph_.buffers[operand.buffer];
        key.add(buffer.bytes);
        key.add(buffer.layout.row_bytes);
        key.add(buffer.layout.pitch_bytes);
        key.add(std::string_view(dynamic_of_buffer_[operand.buffer]));
      }
    }
    key.add(std::string_view(dynamic_of_node_[n]));
    return key.take();
  }

  // False if something outside the program sees the later one's result.
  bool merge(const Node& first, const Node& later) {
    const std::span<Operand> kept = operands_of(first), dropped = operands_of(later);
    const auto is_seen = [&](const Operand& it) { return it.writes() && graph_.buffers[it.buffer].escapes; };
    if (std::ranges::any_of(dropped, is_seen)) return false;
    for (size_t i = 0; i < dropped.size(); ++i) {
      if (dropped[i].writes()) same_as_[dropped[i].buffer] = kept[i].buffer;
    }
    return true;
  }

  void note_writes(const Node& node) {
    for (const Operand& operand : operands_of(node)) version_[operand.buffer] += operand.writes();
  }

  SavedProgram& program_;
  Graph& graph_;
  std::vector<uint8_t> is_temporary_;  // per buffer
  std::vector<uint32_t> version_;      // per buffer: how often it was written
  std::vector<BufferId> same_as_;      // per buffer: the one that is read in its stead
  std::vector<BufferId> value_;        // per buffer: one for those that hold the same
  std::vector<std::string> dynamic_of_node_, dynamic_of_buffer_;
  std::unordered_map<std::string, uint32_t> known_;
  std::vector<uint8_t> gone_;
};

}  // namespace

size_t merge_repeated(SavedProgram& program) { return Merger(program).run(); }

}  // namespace hetero::graph
