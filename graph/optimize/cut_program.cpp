// 1. Nodes that nobody needs are left out. For each buffer: the first and the last node that
//    touches it, and the first that writes it.
// 2. Dynamic programming over the places where a cut may be, which is not between two nodes that
//    touch one state: `least_[k][j]` is the time of the slowest stage when the first j nodes are
//    cut into k stages. It takes so many steps as there are pairs of places, times stages. (The
//    linear partition problem; Skiena, "The Algorithm Design Manual", 10.7. Here a stage's time is
//    not a sum only: what crosses counts too.)
// 3. The nodes of each range, their buffers, windows, attributes, weights and draws are copied into
//    a program of their own.

#include "graph/optimize/cut_program.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "graph/cost/cost.h"
#include "graph/ir/liveness.h"

namespace hetero::graph {
namespace {

using backend::Block;
using backend::DeviceIndex;
using backend::kCpu;

constexpr size_t kNone = SIZE_MAX;
constexpr double kImpossible = std::numeric_limits<double>::infinity();

// How a buffer is used, by positions among the nodes that run.
struct Use {
  size_t first = kNone;
  size_t last = kNone;
  size_t first_write = kNone;
  bool is_input = false;
  bool is_output = false;
  bool is_constant = false;

  bool is_state() const { return is_constant && first_write != kNone; }
};

// The device that will run it, as far as that can be said of one node.
double seconds_of(const Graph& graph, const Node& node, const PlanOptions& options, const CostModel& costs) {
  const double here = costs.node_seconds(graph, node, kCpu);
  const bool asked = node.preference != Preference::kAuto;
  const DeviceIndex device = asked ? device_of(node.preference) : options.searched;
  if (device == kCpu || !runs_on(op_table()[node.op], options, device)) return here;
  const double there = costs.node_seconds(graph, node, device);
  if (asked || options.policy == Policy::kAccelerator) return there;
  return options.policy == Policy::kCpu ? here : std::min(here, there);
}

// One stage's program.
class StageBuilder {
 public:
  explicit StageBuilder(const std::shared_ptr<const SavedProgram>& whole)
      : whole_(whole), local_(whole->graph.buffers.size(), kNoBuffer) {
    stage_.program = std::make_unique<SavedProgram>();
  }

  BufferId buffer(BufferId of_whole) {
    if (local_[of_whole] != kNoBuffer) return local_[of_whole];
    Buffer buffer = whole_->graph.buffers[of_whole];
    buffer.valid_on = 0;
    buffer.escapes = false;
    graph().buffers.push_back(buffer);
    stage_.buffers.push_back(of_whole);
    return local_[of_whole] = static_cast<BufferId>(graph().buffers.size() - 1);
  }

  void add_node(uint32_t index) {
    const Node& of_whole = whole_->graph.nodes[index];
    const Operand* const operands = whole_->graph.operands_of(of_whole);
    Node node = of_whole;
    node.first_operand = static_cast<uint32_t>(graph().operands.size());
    for (int i = 0; i < node.operand_count; ++i) {
      Operand operand = operands[i];
      operand.buffer = buffer(operand.buffer);
      operand.window = window(operand.window);
      graph().operands.push_back(operand);
    }
    copy_attributes(of_whole, node);
    graph().nodes.push_back(node);
  }

  void add_input(BufferId of_whole) {
    const BufferId local = buffer(of_whole);
    graph().buffers[local].valid_on = 1u << kCpu;
    stage_.program->inputs.push_back(value(local));
  }

  void add_output(BufferId of_whole) {
    const BufferId local = buffer(of_whole);
    graph().buffers[local].escapes = true;
    stage_.program->outputs.push_back(value(local));
  }

  void add_constants() {
    for (const ProgramConstant& constant : whole_->constants) {
      const BufferId local = local_[constant.buffer];
      if (local == kNoBuffer) continue;
      graph().buffers[local].valid_on = 1u << kCpu;
      stage_.program->constants.push_back(
          {constant.name, local, window(constant.window), share(constant.bytes), constant.mapped});
    }
  }

  // In the order of the whole program's.
  ProgramStage finish(double seconds) {
    std::ranges::sort(draws_);
    for (const auto& [index, place] : draws_) {
      stage_.draws.push_back(index);
      stage_.program->draws.push_back(place);
    }
    stage_.seconds = seconds;
    return std::move(stage_);
  }

 private:
  Graph& graph() { return stage_.program->graph; }

  WindowId window(WindowId of_whole) {
    const Window& window = whole_->windows[of_whole];
    return stage_.program->windows.intern(window.dtype, window.sizes(), window.strides(), window.offset);
  }

  ProgramValue value(BufferId local) {
    const auto bytes = static_cast<int64_t>(graph().buffers[local].bytes);
    return {.name = 'b' + std::to_string(stage_.buffers[local]),
            .buffer = local,
            .window = stage_.program->windows.intern_contiguous(parse_dtype("u8"), {{bytes}})};
  }

  void copy_attributes(const Node& of_whole, Node& node) {
    std::vector<std::byte>& to = graph().attributes;
    node.attribute_offset = static_cast<uint32_t>(to.size());
    const std::byte* const bytes = whole_->graph.attributes.data() + of_whole.attribute_offset;
    to.insert(to.end(), bytes, bytes + node.attribute_bytes);
    for (size_t d = 0; d < whole_->draws.size(); ++d) {
      const uint64_t draw = whole_->draws[d];
      if (of_whole.has_attribute(draw))
        draws_.emplace_back(d, node.attribute_offset + (draw - of_whole.attribute_offset));
    }
  }

  Block share(const Block& bytes) const {
    if (!bytes) return {};
    using Owner = std::shared_ptr<const SavedProgram>;
    const auto release = [](void* owner, void*, size_t) { delete static_cast<Owner*>(owner); };
    return Block::adopt(bytes.data(), bytes.bytes(), release, new Owner(whole_));
  }

  const std::shared_ptr<const SavedProgram>& whole_;
  ProgramStage stage_;
  std::vector<BufferId> local_;  // per buffer of the whole
  // Which of the whole, and where in the stage's attributes.
  std::vector<std::pair<size_t, uint64_t>> draws_;
};

class Cutter {
 public:
  Cutter(const std::shared_ptr<const SavedProgram>& program, std::span<const PlanOptions> stages)
      : program_(program), graph_(program->graph), stages_(stages) {}

  Result<std::vector<ProgramStage>> run() {
    find_nodes();
    find_uses();
    find_cuts();
    predict();
    if (!choose()) {
      return Status(ErrorClass::kUsage, "the program cannot be cut into " + std::to_string(stages_.size()) +
                                            " stages: it has " + std::to_string(nodes_.size()) +
                                            " nodes that run, some of which states may keep together; use fewer");
    }
    std::vector<ProgramStage> made;
    size_t end = nodes_.size();
    for (size_t k = stages_.size(); k-- > 0;) {
      const Choice& choice = choices_[(k + 1) * places() + end];
      made.push_back(build(choice.begin, end, choice.seconds));
      end = choice.begin;
    }
    std::ranges::reverse(made);
    return made;
  }

 private:
  // The last stage, where the first nodes are cut into so many.
  struct Choice {
    size_t begin = 0;
    double seconds = 0;
  };

  size_t places() const { return nodes_.size() + 1; }

  void find_nodes() {
    std::vector<uint8_t> needed(graph_.buffers.size());
    for (BufferId b = 0; b < needed.size(); ++b) {
      needed[b] = graph_.buffers[b].escapes || graph_.buffers[b].valid_on != 0;
    }
    std::vector<uint8_t> live(graph_.nodes.size());
    find_live(graph_, needed, live);
    for (uint32_t n = 0; n < live.size(); ++n) {
      if (live[n] != 0) nodes_.push_back(n);
    }
  }

  template <typename Function>
  void for_operands(size_t position, Function function) const {
    const Node& node = graph_.nodes[nodes_[position]];
    for (int i = 0; i < node.operand_count; ++i) function(graph_.operands_of(node)[i]);
  }

  void find_uses() {
    uses_.resize(graph_.buffers.size());
    for (const ProgramValue& input : program_->inputs) uses_[input.buffer].is_input = true;
    for (const ProgramValue& output : program_->outputs) uses_[output.buffer].is_output = true;
    for (const ProgramConstant& constant : program_->constants) uses_[constant.buffer].is_constant = true;
    for (size_t p = 0; p < nodes_.size(); ++p) {
      for_operands(p, [&](const Operand& operand) {
        Use& use = uses_[operand.buffer];
        if (use.first == kNone) use.first = p;
        use.last = p;
        if (operand.writes() && use.first_write == kNone) use.first_write = p;
      });
    }
  }

  void find_cuts() {
    may_cut_.assign(places(), 1);
    for (const Use& use : uses_) {
      if (!use.is_state()) continue;
      std::fill(may_cut_.begin() + static_cast<ptrdiff_t>(use.first) + 1,
                may_cut_.begin() + static_cast<ptrdiff_t>(use.last) + 1, 0);
    }
  }

  // For each stage: the time of all nodes before a place, if it had them.
  void predict() {
    for (const PlanOptions& options : stages_) {
      const CostModel& costs = costs_.emplace_back(options);
      std::vector<double>& seconds = before_.emplace_back(places(), 0.0);
      for (size_t p = 0; p < nodes_.size(); ++p) {
        seconds[p + 1] = seconds[p] + seconds_of(graph_, graph_.nodes[nodes_[p]], options, costs);
      }
    }
  }

  bool choose() {
    least_.assign((stages_.size() + 1) * places(), kImpossible);
    choices_.resize(least_.size());
    least_[0] = 0;
    if (nodes_.empty() && stages_.size() == 1) least_.back() = 0;
    for (size_t begin = 0; begin < nodes_.size(); ++begin) {
      if (may_cut_[begin] != 0) try_from(begin);
    }
    return least_.back() < kImpossible;
  }

  // Stages that begin here, of every length.
  void try_from(size_t begin) {
    std::vector<uint8_t> seen(uses_.size(), 0);
    std::vector<uint8_t> leaves(uses_.size(), 0);
    double in = 0;
    double out = 0;
    for (size_t end = begin + 1; end < places(); ++end) {
      for_operands(end - 1, [&](const Operand& operand) {
        const BufferId b = operand.buffer;
        const Use& use = uses_[b];
        if (use.is_constant) return;
        const auto bytes = static_cast<double>(graph_.buffers[b].bytes);
        if (seen[b] == 0 && use.first_write < begin) in += bytes;
        seen[b] = 1;
        const bool crosses = (leaves[b] != 0 || operand.writes()) && use.last >= end;
        if (crosses != (leaves[b] != 0)) out += crosses ? bytes : -bytes;
        leaves[b] = crosses;
      });
      if (may_cut_[end] != 0) try_stage(begin, end, in, out);
    }
  }

  void try_stage(size_t begin, size_t end, double in, double out) {
    for (size_t k = 0; k < stages_.size(); ++k) {
      const double earlier = least_[k * places() + begin];
      if (earlier == kImpossible) continue;
      const CostModel& costs = costs_[k];
      const DeviceIndex device = stages_[k].searched;
      const double seconds = before_[k][end] - before_[k][begin] + costs.copy_seconds(in, kCpu, device) +
                             costs.copy_seconds(out, device, kCpu);
      double& least = least_[(k + 1) * places() + end];
      if (std::max(earlier, seconds) >= least) continue;
      least = std::max(earlier, seconds);
      choices_[(k + 1) * places() + end] = {begin, seconds};
    }
  }

  ProgramStage build(size_t begin, size_t end, double seconds) const {
    StageBuilder builder(program_);
    for (size_t p = begin; p < end; ++p) builder.add_node(nodes_[p]);
    std::vector<uint8_t> touched(uses_.size(), 0);
    std::vector<uint8_t> written(uses_.size(), 0);
    for (size_t p = begin; p < end; ++p) {
      for_operands(p, [&](const Operand& operand) {
        touched[operand.buffer] = 1;
        written[operand.buffer] |= operand.writes();
      });
    }
    for (BufferId b = 0; b < uses_.size(); ++b) {
      const Use& use = uses_[b];
      // A weight, or a state, that is a result comes out of the last stage that has it.
      const bool ends_here = use.last == kNone ? end == nodes_.size() : begin <= use.last && use.last < end;
      if (use.is_constant) {
        if (use.is_output && ends_here) builder.add_output(b);
        continue;
      }
      if (touched[b] != 0 && (use.is_input || use.first < begin)) builder.add_input(b);
      if (written[b] != 0 && (use.is_output || use.last >= end)) builder.add_output(b);
    }
    builder.add_constants();
    return builder.finish(seconds);
  }

  const std::shared_ptr<const SavedProgram>& program_;
  const Graph& graph_;
  const std::span<const PlanOptions> stages_;
  std::vector<uint32_t> nodes_;              // those that run
  std::vector<Use> uses_;                    // per buffer
  std::vector<uint8_t> may_cut_;             // per place: before the node of that position
  std::vector<CostModel> costs_;             // per stage
  std::vector<std::vector<double>> before_;  // per stage and place
  std::vector<double> least_;                // per number of stages and place
  std::vector<Choice> choices_;              // the same
};

}  // namespace

Result<std::vector<ProgramStage>> cut_program(const std::shared_ptr<const SavedProgram>& program,
                                              std::span<const PlanOptions> stages) {
  if (stages.empty()) return Status(ErrorClass::kUsage, "a program is cut into one stage at least");
  return Cutter(program, stages).run();
}

}  // namespace hetero::graph
