#include "graph/report/describe.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "graph/plan/slice_allocator.h"
#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kAccelerator;
using backend::kCpu;
using backend::kMaxDevices;
using Kind = Instruction::Kind;

// Builds JSON from the left to the right.
class JsonWriter {
 public:
  std::string take() { return std::move(text_); }

  void begin(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
  }
  void end(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  void key(const char* name) {
    separate();
    string(name);
    text_ += ':';
    first_ = true;
  }
  void value(double number) {
    separate();
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.9g", number);
    text_ += std::isfinite(number) ? digits : "null";
  }
  template <typename Integer>
    requires std::is_integral_v<Integer>
  void value(Integer number) {
    separate();
    if constexpr (std::is_same_v<Integer, bool>) {
      text_ += number ? "true" : "false";
    } else {
      text_ += std::to_string(number);
    }
  }
  void value(const std::string& words) {
    separate();
    string(words);
  }
  void value(const char* words) { value(std::string(words)); }
  void null() {
    separate();
    text_ += "null";
  }
  template <typename T>
  void field(const char* name, const T& content) {
    key(name);
    value(content);
  }

 private:
  void separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void string(const std::string& words) {
    text_ += '"';
    for (const char c : words) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        std::snprintf(escape, sizeof(escape), "\\u%04x", c);
        text_ += escape;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
};

class Describer {
 public:
  Describer(const Graph& graph, const Plan& plan, const Simulation& predicted, const RunTimes* times,
            const Description& about)
      : graph_(graph), plan_(plan), predicted_(predicted), times_(times), about_(about) {}

  std::string run() {
    find_instructions();
    json_.begin('{');
    json_.field("name", about_.name);
    json_.field("profile", about_.profile);
    json_.key("budget_bytes");
    about_.budget_bytes == 0 ? json_.null() : json_.value(about_.budget_bytes);
    json_.field("predicted_seconds", predicted_.seconds);
    json_.key("measured_seconds");
    times_ == nullptr ? json_.null() : json_.value(times_->seconds);
    add_counts();
    add_nodes();
    add_spans();
    add_memory();
    add_decisions();
    json_.end('}');
    return json_.take();
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void find_instructions() {
    instruction_of_.assign(graph_.nodes.size(), kNone);
    group_of_.assign(graph_.nodes.size(), kNone);
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (instruction.kind == Kind::kRun || instruction.kind == Kind::kBody) instruction_of_[instruction.index] = p;
      if (instruction.kind != Kind::kFused) continue;
      for (const uint32_t n : plan_.groups[instruction.index].members) group_of_[n] = instruction.index;
    }
  }

  void add_counts() {
    int64_t copies = 0;
    int64_t waits = 0;
    uint64_t bytes[kMaxDevices] = {};
    for (const Instruction& instruction : plan_.program) {
      waits += instruction.kind == Kind::kWait;
      if (instruction.kind != Kind::kCopy) continue;
      ++copies;
      bytes[instruction.to] += graph_.buffers[instruction.index].bytes;
    }
    json_.key("counts");
    json_.begin('{');
    json_.field("copies", copies);
    json_.field("bytes_to_accelerator", bytes[kAccelerator]);
    json_.field("bytes_to_cpu", bytes[kCpu]);
    json_.field("waits", waits);
    json_.field("dead_nodes", plan_.dead_nodes);
    json_.field("returns", plan_.returns.size());
    json_.end('}');
  }

  void add_nodes() {
    std::vector<uint32_t> writer(graph_.buffers.size(), kNone);
    json_.key("nodes");
    json_.begin('[');
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const Placement& placement = plan_.placements[n];
      json_.begin('{');
      json_.field("id", n);
      json_.field("op", op_table()[node.op].name);
      json_.field("device", device_word(placement.device));
      json_.field("reason", to_string(placement.reason));
      json_.field("predicted", static_cast<double>(placement.predicted_seconds));
      json_.key("other_device");
      placement.elsewhere_seconds > 0 ? json_.value(static_cast<double>(placement.elsewhere_seconds)) : json_.null();
      json_.key("measured");
      const uint32_t p = instruction_of_[n];
      times_ == nullptr || p == kNone ? json_.null() : json_.value(times_->spans[p].end - times_->spans[p].begin);
      json_.key("group");
      group_of_[n] == kNone ? json_.null() : json_.value(group_of_[n]);
      json_.field("live", plan_.live[n] != 0);
      add_operands(node, n, writer);
      json_.end('}');
    }
    json_.end(']');
  }

  void add_operands(const Node& node, uint32_t n, std::vector<uint32_t>& writer) {
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
    json_.field("bytes", bytes);
    json_.key("inputs");
    json_.begin('[');
    for (const uint32_t from : inputs) json_.value(from);
    json_.end(']');
    json_.key("shape");
    made == nullptr ? json_.null() : json_.value(to_string(*made));
  }

  void add_spans() {
    double free[kMaxQueues] = {};
    json_.key("spans");
    json_.begin('[');
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      const Instruction& instruction = plan_.program[p];
      if (instruction.kind == Kind::kRecord || instruction.kind == Kind::kWait) continue;
      const Span& span = predicted_.spans[p];
      json_.begin('{');
      json_.field("queue",
                  std::string(device_word(device_of(instruction.queue))) + ' ' + to_string(kind_of(instruction.queue)));
      name_span(instruction);
      json_.field("begin", span.begin);
      json_.field("end", span.end);
      json_.field("stall", span.begin - free[instruction.queue]);
      free[instruction.queue] = span.end;
      if (times_ != nullptr) {
        json_.field("measured_begin", times_->spans[p].begin);
        json_.field("measured_end", times_->spans[p].end);
      }
      json_.end('}');
    }
    json_.end(']');
  }

  void name_span(const Instruction& instruction) {
    switch (instruction.kind) {
      case Kind::kCopy:
        json_.field("kind", "copy");
        json_.field("name", "b" + std::to_string(instruction.index) + " to " + device_word(instruction.to));
        json_.field("buffer", instruction.index);
        json_.field("bytes", graph_.buffers[instruction.index].bytes);
        break;
      case Kind::kFused:
        json_.field("kind", "fused");
        json_.field("name", name_of(instruction.index));
        json_.field("node", plan_.groups[instruction.index].members.back());
        break;
      case Kind::kBatch: {
        const std::vector<Instruction>& calls = plan_.batches[instruction.index];
        json_.field("kind", "run");
        json_.field("name", std::to_string(calls.size()) + " x " + op_table()[graph_.nodes[calls[0].index].op].name);
        json_.field("node", calls[0].index);
        break;
      }
      default:
        json_.field("kind", "run");
        json_.field("name", op_table()[graph_.nodes[instruction.index].op].name);
        json_.field("node", instruction.index);
    }
  }

  // "group 3: mul, add, gelu": the first of its operators, without namespaces and overloads.
  std::string name_of(uint32_t group) const {
    constexpr size_t kNamed = 4;
    const std::vector<uint32_t>& members = plan_.groups[group].members;
    std::string name = "group " + std::to_string(group);
    for (size_t i = 0; i < std::min(kNamed, members.size()); ++i) {
      const std::string_view op = op_table()[graph_.nodes[members[i]].op].name;
      const size_t space = op.find("::");
      const size_t begin = space == std::string_view::npos ? 0 : space + 2;
      name += i == 0 ? ": " : ", ";
      name += op.substr(begin, op.find('.') - begin);
    }
    if (members.size() > kNamed) name += " and " + std::to_string(members.size() - kNamed) + " more";
    return name;
  }

  // What the accelerator holds of the program's buffers: its arena by what is live in it, and blocks of their own.
  void add_memory() {
    std::map<double, double> changes;
    double held = 0;
    const auto add_stay = [&](const Residence& residence, BufferId b) {
      const auto bytes = static_cast<double>(SliceAllocator::round_up(graph_.buffers[b].bytes));
      const bool before = (graph_.buffers[b].valid_on >> kAccelerator & 1) != 0;
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
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) add_stay(plan_.residence(b, kAccelerator), b);
    for (const Return& entry : plan_.returns) add_stay(entry.residence, entry.buffer);
    json_.key("memory");
    json_.begin('[');
    if (held > 0 || !changes.empty()) {
      json_.begin('{');
      json_.field("device", "accelerator");
      json_.key("budget");
      about_.budget_bytes == 0 ? json_.null() : json_.value(about_.budget_bytes);
      json_.key("points");
      json_.begin('[');
      add_point(0, held);
      for (const auto& [seconds, bytes] : changes) add_point(seconds, held += bytes);
      json_.end(']');
      json_.end('}');
    }
    json_.end(']');
  }

  void add_point(double seconds, double bytes) {
    json_.begin('[');
    json_.value(seconds);
    json_.value(bytes);
    json_.end(']');
  }

  void add_decisions() {
    json_.key("decisions");
    json_.begin('[');
    for (const Candidate& candidate : about_.candidates) {
      json_.begin('{');
      json_.field("candidate", candidate.name);
      json_.field("seconds", candidate.seconds);
      json_.field("chosen", candidate.chosen);
      json_.end('}');
    }
    json_.end(']');
  }

  const Graph& graph_;
  const Plan& plan_;
  const Simulation& predicted_;
  const RunTimes* times_;
  const Description& about_;
  JsonWriter json_;
  std::vector<uint32_t> instruction_of_;  // per node, that runs it alone
  std::vector<uint32_t> group_of_;        // per node
};

}  // namespace

std::string describe(const Graph& graph, const Plan& plan, const Simulation& predicted, const RunTimes* times,
                     const Description& about) {
  return Describer(graph, plan, predicted, times, about).run();
}

}  // namespace hetero::graph
