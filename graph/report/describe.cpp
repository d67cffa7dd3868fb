#include "graph/report/describe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/ir/text.h"
#include "graph/plan/slice_allocator.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

using Json = nlohmann::ordered_json;  // keeps the order in which fields are written

std::string label_of_group(const Graph& graph, const Plan& plan, uint32_t group) {
  constexpr size_t kNamed = 4;
  const std::vector<uint32_t>& members = plan.groups[group].members;
  std::string name = "group " + std::to_string(group);
  for (size_t i = 0; i < std::min(kNamed, members.size()); ++i) {
    const std::string_view op = op_table()[graph.nodes[members[i]].op].name;
    const size_t space = op.find("::");
    const size_t begin = space == std::string_view::npos ? 0 : space + 2;
    name += i == 0 ? ": " : ", ";
    name += op.substr(begin, op.find('.') - begin);
  }
  if (members.size() > kNamed) name += " and " + std::to_string(members.size() - kNamed) + " more";
  return name;
}

Json or_null(bool known, Json value) { return known ? std::move(value) : Json(); }

class Describer {
 public:
  Describer(const Graph& graph, const Plan& plan, const Simulation& predicted, const RunTimes* times,
            const Description& about)
      : graph_(graph), plan_(plan), predicted_(predicted), times_(times), about_(about) {}

  std::string run() {
    find_instructions();
    const Json json = {{"name", about_.name},
                       {"profile", about_.profile},
                       {"budget_bytes", budget()},
                       {"predicted_seconds", predicted_.seconds},
                       {"measured_seconds", times_ == nullptr ? Json() : Json(times_->seconds)},
                       {"counts", counts()},
                       {"nodes", nodes()},
                       {"spans", spans()},
                       {"memory", memory()},
                       {"decisions", decisions()}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void find_instructions() {
    instruction_of_.assign(graph_.nodes.size(), kNone);
    group_of_.assign(graph_.nodes.size(), kNone);
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (instruction.is_call()) instruction_of_[instruction.index] = p;
      if (!instruction.is_group()) continue;
      for_each_node(plan_, instruction, [&](uint32_t n) { group_of_[n] = instruction.index; });
    }
  }

  Json budget() const { return or_null(about_.budget_bytes != 0, about_.budget_bytes); }

  Json counts() const {
    int64_t copies = 0;
    int64_t waits = 0;
    uint64_t to_cpu = 0;
    uint64_t to_accelerators = 0;
    for (const Instruction& instruction : plan_.program) {
      waits += instruction.is_wait();
      if (!instruction.is_copy()) continue;
      ++copies;
      (instruction.to == backend::kCpu ? to_cpu : to_accelerators) += graph_.buffers[instruction.index].bytes;
    }
    return {{"copies", copies}, {"bytes_to_accelerator", to_accelerators}, {"bytes_to_cpu", to_cpu},
            {"waits", waits},   {"dead_nodes", plan_.dead_nodes},          {"returns", plan_.returns.size()}};
  }

  Json nodes() const {
    std::vector<uint32_t> writer(graph_.buffers.size(), kNone);
    Json list = Json::array();
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const Placement& placement = plan_.placements[n];
      const uint32_t p = instruction_of_[n];
      Json& json = list.emplace_back(Json{
          {"id", n},
          {"op", op_table()[node.op].name},
          {"device", device_word(placement.device)},
          {"reason", to_string(placement.reason)},
          {"predicted", placement.predicted_seconds},
          {"other_device", or_null(placement.elsewhere_seconds > 0, placement.elsewhere_seconds)},
          {"measured", times_ == nullptr || p == kNone ? Json() : Json(times_->spans[p].end - times_->spans[p].begin)},
          {"group", or_null(group_of_[n] != kNone, group_of_[n])},
          {"live", plan_.live[n] != 0}});
      add_operands(node, n, writer, json);
    }
    return list;
  }

  void add_operands(const Node& node, uint32_t n, std::vector<uint32_t>& writer, Json& json) const {
    double bytes = 0;
    std::vector<uint32_t> inputs;
    const Window* made = nullptr;
    for (const Operand *o = graph_.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      const Window& window = (*graph_.windows)[o->window];
      bytes += bytes_seen(window);
      if (o->writes() && made == nullptr) made = &window;
      const uint32_t from = writer[o->buffer];
      if (o->reads() && from != kNone && std::ranges::find(inputs, from) == inputs.end()) inputs.push_back(from);
    }
    for (const Operand *o = graph_.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      if (o->writes()) writer[o->buffer] = n;
    }
    json["bytes"] = std::llround(bytes);
    json["inputs"] = inputs;
    json["shape"] = made == nullptr ? Json() : Json(to_string(*made));
  }

  Json spans() const {
    double free[kMaxQueues] = {};
    Json list = Json::array();
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (row_of(instruction).reported.empty()) continue;
      const Span& span = predicted_.spans[p];
      Json& json = list.emplace_back(Json{{"queue", queue_word(instruction.queue)}});
      name_span(instruction, json);
      json["begin"] = span.begin;
      json["end"] = span.end;
      json["stall"] = span.begin - free[instruction.queue];
      free[instruction.queue] = span.end;
      if (times_ == nullptr) continue;
      json["measured_begin"] = times_->spans[p].begin;
      json["measured_end"] = times_->spans[p].end;
    }
    return list;
  }

  void name_span(const Instruction& instruction, Json& json) const {
    json["kind"] = row_of(instruction).reported;
    json["name"] = label_of(graph_, plan_, instruction);
    if (instruction.is_copy()) {
      json["buffer"] = instruction.index;
      json["bytes"] = graph_.buffers[instruction.index].bytes;
      return;
    }
    json["node"] = node_of(plan_, instruction);
  }

  // What each accelerator holds of the program's buffers.
  Json memory() const {
    Json list = Json::array();
    for (DeviceIndex d = 1; d < plan_.device_count; ++d) {
      Json points = memory_points(d);
      if (!points.empty()) {
        list.push_back({{"device", device_word(d)}, {"budget", budget()}, {"points", std::move(points)}});
      }
    }
    return list;
  }

  // Its arena by what is live in it, and blocks of their own.
  Json memory_points(DeviceIndex device) const {
    std::map<double, int64_t> changes;
    int64_t held = 0;
    const auto add_stay = [&](const Residence& residence, BufferId b) {
      const auto bytes = static_cast<int64_t>(SliceAllocator::round_up(graph_.buffers[b].bytes));
      const bool before = backend::contains(graph_.buffers[b].valid_on, device);
      if (residence.home == Home::kNone) {
        held += before ? bytes : 0;
        return;
      }
      if (residence.home == Home::kBound && before) {
        held += bytes;
      } else {
        changes[predicted_.spans[residence.first].begin] += bytes;
      }
      if (residence.home == Home::kArena) changes[predicted_.spans[residence.last].end] -= bytes;
    };
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) add_stay(plan_.residence(b, device), b);
    for (const Return& entry : plan_.returns) {
      if (entry.device == device) add_stay(entry.residence, entry.buffer);
    }
    if (held == 0 && changes.empty()) return Json::array();
    Json points = Json::array({Json::array({0.0, held})});
    for (const auto& [seconds, bytes] : changes) points.push_back(Json::array({seconds, held += bytes}));
    return points;
  }

  Json decisions() const {
    Json list = Json::array();
    for (const Candidate& candidate : about_.candidates) {
      list.push_back({{"candidate", candidate.name}, {"seconds", candidate.seconds}, {"chosen", candidate.chosen}});
    }
    return list;
  }

  const Graph& graph_;
  const Plan& plan_;
  const Simulation& predicted_;
  const RunTimes* times_;
  const Description& about_;
  std::vector<uint32_t> instruction_of_;  // per node, that runs it alone
  std::vector<uint32_t> group_of_;        // per node
};

}  // namespace

std::string label_of(const Graph& graph, const Plan& plan, const Instruction& instruction) {
  if (instruction.is_copy()) {
    return std::string("b").append(std::to_string(instruction.index)) + " to " + device_word(instruction.to);
  }
  if (instruction.is_group()) return label_of_group(graph, plan, instruction.index);
  const std::string& op = op_table()[graph.nodes[node_of(plan, instruction)].op].name;
  if (instruction.is_batch()) return std::to_string(plan.batches[instruction.index].size()) + " x " + op;
  return op;
}

std::string describe(const Graph& graph, const Plan& plan, const Simulation& predicted, const RunTimes* times,
                     const Description& about) {
  return Describer(graph, plan, predicted, times, about).run();
}

}  // namespace hetero::graph
