// Usage: who uses which bytes when, as the verifier finds it on its walk through a program.

#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

using Clock = std::array<uint32_t, kMaxQueues>;  // per queue: position + 1

inline Status violation(std::string message) { return Status(ErrorClass::kInternal, std::move(message)); }
inline std::string name(const char* prefix, uint64_t index) { return prefix + std::to_string(index); }

struct ByteRange {
  int64_t first;
  int64_t last;
  bool overlaps(const ByteRange& other) const { return first < other.last && other.first < last; }
  bool holds(const ByteRange& other) const { return first <= other.first && other.last <= last; }
};

inline constexpr uint32_t kNoNode = UINT32_MAX;

struct Touch {
  uint32_t position;
  QueueId queue;
  bool writes;
  ByteRange range;
  uint32_t node;  // kNoNode for a copy
  bool brings;    // the kernel may bring the memory here
};

// A place is a residence, by its index, or behind those a return of a value to the arena.
struct Usage {
  const Graph& graph;
  const Plan& plan;
  // Per place, in program order: of its bytes, and by nodes, of values with and without bytes.
  std::vector<std::vector<Touch>> touches{};
  std::vector<std::vector<Touch>> accesses{};
  std::vector<Clock> clocks{};  // per instruction: what its queue knows to have run

  bool survives(BufferId b) const { return graph.buffers[b].escapes || graph.buffers[b].valid_on != 0; }
  const Residence& stay_at(size_t place) const {
    const size_t residences = plan.residences.size();
    return place < residences ? plan.residences[place] : plan.returns[place - residences].residence;
  }
  BufferId buffer_at(size_t place) const {
    const size_t residences = plan.residences.size();
    return place < residences ? static_cast<BufferId>(place / plan.device_count)
                              : plan.returns[place - residences].buffer;
  }
  backend::DeviceIndex device_at(size_t place) const {
    const size_t residences = plan.residences.size();
    return place < residences ? static_cast<backend::DeviceIndex>(place % plan.device_count)
                              : plan.returns[place - residences].device;
  }
};

// Whether residences and returns have legal homes, values that share bytes of an arena are not in
// use at the same time, and the memories of accelerators hold all of them.
Status verify_memory(const Usage& usage, const PlanOptions& options);

}  // namespace hetero::graph
