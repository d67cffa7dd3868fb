// Fusion: which nodes run as one fused kernel.
//
// A greedy walk in program order over a set of open groups, after the loop fusion of array
// compilers (Kennedy & McKinley 1993):
//   1. A group runs at the place of its last member. So it stays open as long as no node outside
//      conflicts with a member: such a node would have to come between. Open groups never conflict
//      with each other.
//   2. A node that can be lowered joins a group it conflicts with (reads what a member writes,
//      mostly) if the group's builder accepts it: same space, same window on shared bytes, same
//      row. Where it conflicts with several groups that accept it and that fit together, they
//      become one. Groups that it conflicts with and does not join are closed.
//   3. If it conflicts with none, it joins an open group that reads the same bytes, if that accepts
//      it. A scalar, which is a node of one point that touches small buffers only, joins the latest
//      open group of such nodes: it costs less than a kernel of its own, and many of an optimizer's
//      nodes are such. Otherwise it opens a group of its own.
//   4. A node that cannot be lowered closes all groups that it conflicts with.
//   5. A node of which only the tail can be lowered (a product with a bias) runs its body at its
//      own place, so nothing may wait for it: it closes all groups that it conflicts with, and its
//      tail opens a new one. If nobody joins that, the node runs as a whole.
//   6. A group of one runs as before, unless it is a plain pointwise operator: a fused kernel
//      starts faster than the stock one.
//   7. Where there are two devices, groups are made before anything is placed, and are the same
//      wherever they are placed then; a body is placed by itself. Nodes that may not run on the
//      same devices do not join. Where the accelerator cannot run a group, its nodes that check
//      what they read run alone, or, where none does, all of them.
//   8. A sweep from the last instruction to the first, as in dead_values.cpp, says which values are
//      needed after their group. Only these are stored; the others get no memory.
// The result depends on structure, windows and small buffers' sizes alone, so the same trace gives
// the same groups.

#include <algorithm>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
// A group that had no new member for so many nodes is closed: it would keep its inputs for too
// long.
constexpr uint32_t kPatience = 1024;
// Bytes that may stay alive for longer.
constexpr uint64_t kSmall = 256;
// So many scalars begin a group at most. What follows each of them joins as well, and a kernel of a
// GPU has no more than 64 operands.
constexpr int kMostChains = 8;
// So many groups that read the same bytes are asked.
constexpr int kNeighbours = 2;

class Fuser {
 public:
  Fuser(const Graph& graph, const PlanOptions* placed, Plan& plan, Scratch& scratch)
      : graph_(graph), placed_(placed), plan_(plan), scratch_(scratch), own_(scratch.fusion) {}

  void run() {
    own_.refused.assign(graph_.nodes.size(), 0);
    const std::vector<Instruction> runs = placed_ != nullptr ? plan_.program : std::vector<Instruction>();
    while (!run_once()) plan_.program = runs;
  }

 private:
  // False where groups turned out that cannot run everywhere: their nodes are marked.
  bool run_once() {
    own_.group_count = 0;
    scalars_ = kNone;
    own_.group_of.assign(graph_.nodes.size(), kNone);
    own_.links.clear();
    own_.writers.assign(graph_.buffers.size(), kNone);
    own_.readers.assign(graph_.buffers.size(), kNone);
    own_.last_writer.assign(graph_.buffers.size(), kNone);
    plan_.fusion.assign(graph_.nodes.size(), FusionNote::kAlone);
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (plan_.live[n]) visit(n);
    }
    if (plan_.dead_nodes == graph_.nodes.size()) plan_.fusion.clear();
    write_program();
    finish_groups();
    if (placed_ == nullptr) return true;
    bool all_run = true;
    for (const FusedGroup& made : plan_.groups) {
      if (runs_where_allowed(made)) continue;
      refuse(made.members);
      all_run = false;
    }
    return all_run;
  }

  // On each accelerator on which its last member may run.
  bool runs_where_allowed(const FusedGroup& made) const {
    const backend::DeviceSet allowed = devices_of(made.members.back());
    for (backend::DeviceIndex d = 1; d < placed_->machine.size(); ++d) {
      const backend::Device* const there = placed_->machine[d].device;
      if (!backend::contains(allowed, d)) continue;
      if (!made.prepared || (there != nullptr && !there->can_fuse(made.kernel))) return false;
    }
    return true;
  }

  OpenGroup& group(uint32_t g) { return *own_.groups[g]; }

  void refuse(const std::vector<uint32_t>& members) {
    const bool any_checks = std::ranges::any_of(members, [this](uint32_t n) { return checks_inputs(n); });
    for (const uint32_t n : members) own_.refused[n] |= !any_checks || checks_inputs(n);
  }

  bool checks_inputs(uint32_t n) {
    return lower_node(graph_, graph_.nodes[n], own_.lowering) && !own_.lowering.checks.empty();
  }

  backend::DeviceSet devices_of(uint32_t n) const {
    return placed_ == nullptr ? backend::only(backend::kCpu) : allowed_devices(graph_.nodes[n], *placed_).devices;
  }

  void visit(uint32_t n) {
    const Node& node = graph_.nodes[n];
    FusionNote note = FusionNote::kNoLowering;
    devices_ = devices_of(n);
    if (!op_table()[node.op].side_effects && !own_.refused[n] && lower_node(graph_, node, own_.lowering)) {
      note = measure(graph_, node, own_.lowering, own_.footprint);
    }
    const bool fusable = note == FusionNote::kJoined;
    find_conflicts(n);
    uint32_t joined = kNone;
    if (fusable && is_tail(graph_, n)) {
      note = FusionNote::kAlone;
      joined = open(n, note);
    } else if (fusable) {
      joined = join_conflicting(n, note);
      if (joined == kNone && own_.touched.empty()) joined = join_neighbour(n);
      if (joined == kNone && is_scalar(n)) joined = join_scalars(n);
      if (joined == kNone) joined = open(n, note);
    }
    for (const uint32_t g : own_.touched) {
      if (g != joined) group(g).open = false;
    }
    plan_.fusion[n] = note;
    if (joined != kNone) enter(n, joined);
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      if (operands[i].writes()) own_.last_writer[operands[i].buffer] = n;
    }
  }

  // Fills `touched`, the largest group first.
  void find_conflicts(uint32_t n) {
    own_.touched.clear();
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      follow(own_.writers[operands[i].buffer], operands[i]);
      if (operands[i].writes()) follow(own_.readers[operands[i].buffer], operands[i]);
    }
    if (own_.touched.size() > 1) {
      std::ranges::sort(own_.touched, [this](uint32_t a, uint32_t b) {
        const size_t size_a = group(a).builder.members().size();
        const size_t size_b = group(b).builder.members().size();
        return size_a != size_b ? size_a > size_b : a < b;
      });
    }
  }

  // Walks a buffer's list; forgets closed groups.
  void follow(uint32_t& head, const Operand& operand) {
    for (uint32_t* link = &head; *link != kNone;) {
      GroupLink& entry = own_.links[*link];
      if (!group(entry.group).open) {
        *link = entry.next;
        continue;
      }
      if (std::ranges::find(own_.touched, entry.group) == own_.touched.end() &&
          group(entry.group).builder.conflicts(operand)) {
        own_.touched.push_back(entry.group);
      }
      link = &entry.next;
    }
  }

  bool is_patient(uint32_t g, uint32_t n) { return n - group(g).last <= kPatience; }

  // Joins one of the groups that the node conflicts with, after merging others into it. `note`: why
  // not.
  uint32_t join_conflicting(uint32_t n, FusionNote& note) {
    uint32_t chosen = kNone;
    note = own_.touched.empty() ? note_alone(n) : FusionNote::kOtherShape;
    bool noted = false;
    for (const uint32_t g : own_.touched) {
      if (!is_patient(g, n)) continue;
      if (group(g).devices != devices_) {
        if (!noted) note = FusionNote::kOtherDevice;
        noted = true;
        continue;
      }
      const FusionNote answer = group(g).builder.check(n, own_.lowering, own_.footprint);
      if (answer != FusionNote::kJoined) {
        if (!noted) note = answer;
        noted = true;
        continue;
      }
      if (chosen == kNone) {
        chosen = g;
      } else if ((is_wider(g, chosen) || group(chosen).builder.fits(group(g).builder)) &&
                 group(chosen).builder.take_over(group(g).builder)) {
        absorb(g, chosen);
      } else if (is_wider(chosen, g) && group(g).builder.take_over(group(chosen).builder)) {
        absorb(chosen, g);
        chosen = g;
      }
    }
    if (chosen == kNone) return kNone;
    const FusionNote answer = group(chosen).builder.add(n, own_.lowering, own_.footprint);
    note = answer;
    return answer == FusionNote::kJoined ? chosen : kNone;
  }

  FusionNote note_alone(uint32_t n) const {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const uint32_t writer = own_.last_writer[operands[i].buffer];
      if (operands[i].reads() && writer != kNone && own_.group_of[writer] != kNone) return FusionNote::kClosed;
    }
    return FusionNote::kAlone;
  }

  // Whether the members of `a` could be wide members of `b`.
  bool is_wider(uint32_t a, uint32_t b) { return group(a).builder.numel() > group(b).builder.numel(); }

  // The members of `from` have become members of `into`.
  void absorb(uint32_t from, uint32_t into) {
    OpenGroup& source = group(from);
    OpenGroup& target = group(into);
    for (const uint32_t n : source.builder.members()) {
      own_.group_of[n] = into;
      link(n, into);
    }
    target.last = std::max(target.last, source.last);
    target.scalars = target.scalars && source.scalars;
    target.chains += source.chains;
    source.open = false;
    source.builder.begin(graph_);
  }

  uint32_t join_neighbour(uint32_t n) {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    int asked = 0;
    for (int i = 0; i < node.operand_count; ++i) {
      if (!operands[i].reads()) continue;
      for (uint32_t l = own_.readers[operands[i].buffer]; l != kNone && asked < kNeighbours; l = own_.links[l].next) {
        const uint32_t g = own_.links[l].group;
        const int64_t points = own_.footprint.numel / own_.lowering.pieces;
        if (!group(g).open || group(g).devices != devices_ || !is_patient(g, n) || group(g).builder.numel() != points)
          continue;
        ++asked;
        if (group(g).builder.add(n, own_.lowering, own_.footprint) == FusionNote::kJoined) return g;
      }
    }
    return kNone;
  }

  bool is_scalar(uint32_t n) const {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    return own_.footprint.numel == 1 &&
           std::all_of(operands, operands + node.operand_count,
                       [this](const Operand& one) { return graph_.buffers[one.buffer].bytes <= kSmall; });
  }

  // The latest group of scalars, if it takes the node.
  uint32_t join_scalars(uint32_t n) {
    const uint32_t g = scalars_;
    if (g == kNone || !group(g).open || !group(g).scalars || group(g).chains >= kMostChains) return kNone;
    if (group(g).devices != devices_ || !is_patient(g, n)) return kNone;
    if (group(g).builder.add(n, own_.lowering, own_.footprint) != FusionNote::kJoined) return kNone;
    ++group(g).chains;
    return g;
  }

  uint32_t open(uint32_t n, FusionNote& note) {
    const uint32_t g = own_.group_count;
    if (g == own_.groups.size()) own_.groups.push_back(std::make_unique<OpenGroup>());
    OpenGroup& opened = group(g);
    opened.builder.begin(graph_);
    const FusionNote answer = opened.builder.add(n, own_.lowering, own_.footprint);
    if (answer != FusionNote::kJoined) {
      note = answer;
      return kNone;
    }
    opened.open = true;
    opened.scalars = true;
    opened.chains = 1;
    opened.devices = devices_;
    opened.last = n;
    ++own_.group_count;
    return g;
  }

  void enter(uint32_t n, uint32_t g) {
    own_.group_of[n] = g;
    group(g).last = n;
    group(g).scalars = group(g).scalars && is_scalar(n);
    if (group(g).scalars) scalars_ = g;
    link(n, g);
  }

  void link(uint32_t n, uint32_t g) {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      uint32_t& head = (operands[i].writes() ? own_.writers : own_.readers)[operands[i].buffer];
      if (head != kNone && own_.links[head].group == g) continue;
      own_.links.push_back({g, head});
      head = static_cast<uint32_t>(own_.links.size() - 1);
    }
  }

  // Fused groups at the places of their last members; the rest as it was.
  void write_program() {
    scratch_.program.clear();
    uint32_t count = 0;
    for (const Instruction& instruction : plan_.program) {
      const uint32_t n = instruction.index;
      const uint32_t g = own_.group_of[n];
      if (g == kNone || !is_kept(g)) {
        scratch_.program.push_back(instruction);
        continue;
      }
      if (is_tail(graph_, n)) {
        scratch_.program.push_back(Instruction::body(instruction.queue, n));
        plan_.fusion[n] = FusionNote::kTailJoined;
      } else if (group(g).builder.members().size() > 1) {
        plan_.fusion[n] = FusionNote::kJoined;
      }
      if (group(g).last != n) continue;
      group(g).number = count++;
      scratch_.program.push_back(Instruction::fused(kHostQueue, g));
    }
    plan_.program.swap(scratch_.program);
    plan_.groups.resize(count);
  }

  // A group whose last member is a tail has lost the node that it was made for.
  bool is_kept(uint32_t g) {
    const std::vector<uint32_t>& members = group(g).builder.members();
    if (is_tail(graph_, members.back())) return false;
    return members.size() > 1 || op_table()[graph_.nodes[members[0]].op].op_class == OpClass::kPointwise;
  }

  void finish_groups() {
    std::vector<uint8_t>& needed = scratch_.needed;
    for (size_t b = 0; b < needed.size(); ++b) needed[b] = graph_.buffers[b].escapes;
    for (size_t p = plan_.program.size(); p-- > 0;) {
      Instruction& instruction = plan_.program[p];
      if (!instruction.is_group()) {
        pass_over(instruction.index, needed);
        pass_reads(instruction.index, needed);
        continue;
      }
      OpenGroup& opened = group(instruction.index);
      FusedGroup& fused = plan_.groups[opened.number];
      instruction.index = opened.number;
      fused.members = opened.builder.members();
      opened.builder.finish(needed, fused);
      fused.prepared = backend::prepare_fused(fused.kernel, fused.space, fused.launch).ok();
      for (const uint32_t n : fused.members) forget_unstored(n, needed);
      for (const uint32_t n : fused.members) pass_over(n, needed);
      opened.builder.mark_reads(needed);
    }
  }

  // A dying buffer whose last value is not stored holds something old.
  void forget_unstored(uint32_t n, const std::vector<uint8_t>& needed) {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const BufferId buffer = operands[i].buffer;
      if (operands[i].writes() && !needed[buffer] && !graph_.buffers[buffer].escapes) plan_.valid_after[buffer] = 0;
    }
  }

  void pass_over(uint32_t n, std::vector<uint8_t>& needed) const {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const BufferId buffer = operands[i].buffer;
      if (operands[i].writes() && overwrites(*graph_.windows, operands[i], graph_.buffers[buffer])) needed[buffer] = 0;
    }
  }

  void pass_reads(uint32_t n, std::vector<uint8_t>& needed) const {
    const Node& node = graph_.nodes[n];
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      if (operands[i].reads()) needed[operands[i].buffer] = 1;
    }
  }

  const Graph& graph_;
  const PlanOptions* const placed_;
  Plan& plan_;
  Scratch& scratch_;
  FusionScratch& own_;
  backend::DeviceSet devices_ = 0;  // of the node at hand
  uint32_t scalars_ = kNone;        // the group of scalars that took one last
};

}  // namespace

void fuse_nodes(const Graph& graph, const PlanOptions* placed, Plan& plan, Scratch& scratch) {
  Fuser(graph, placed, plan, scratch).run();
}

}  // namespace hetero::graph
