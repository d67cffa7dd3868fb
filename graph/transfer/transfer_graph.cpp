#include "graph/transfer/transfer_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <utility>

namespace hetero::graph {
namespace {

struct Route {
  const char* name;
  Tier from;
  Tier to;
};

constexpr std::array<Route, kTransferTypes> kRoutes{{
    {"H2D", Tier::kHost, Tier::kDevice},
    {"D2H", Tier::kDevice, Tier::kHost},
    {"DISK2H", Tier::kDisk, Tier::kHost},
    {"H2DISK", Tier::kHost, Tier::kDisk},
    {"REMOTE2H", Tier::kRemote, Tier::kHost},
    {"H2REMOTE", Tier::kHost, Tier::kRemote},
    {"DISK2D", Tier::kDisk, Tier::kDevice},
    {"D2DISK", Tier::kDevice, Tier::kDisk},
    {"PEER2H", Tier::kPeer, Tier::kHost},
    {"H2PEER", Tier::kHost, Tier::kPeer},
}};

const Route& route_of(TransferType type) { return kRoutes[static_cast<size_t>(type)]; }

Status broken(std::string message) { return Status(ErrorClass::kInternal, std::move(message)); }

std::string name_of(const TransferOp& op) { return std::to_string(op.op_id) + " (" + to_string(op.type) + ")"; }

bool has(const std::vector<uint64_t>& set, uint32_t number) { return (set[number / 64] >> (number % 64) & 1) != 0; }

}  // namespace

TransferState state_of(const TransferOp& op) {
  return std::atomic_ref(const_cast<TransferState&>(op.state)).load(std::memory_order_acquire);
}

void append_records(std::vector<TransferRecord>& records, const std::vector<TransferOp>& ops) {
  for (const TransferOp& op : ops) {
    if (state_of(op) != TransferState::kCompleted) continue;
    records.push_back({op.graph_id, op.op_id, op.type, op.position, block_count(op.source), op.layer_id,
                       op.layer_granularity, op.bytes, op.started, op.ended});
  }
}

const char* to_string(Tier tier) {
  constexpr std::array<const char*, kTiers> kNames{"device", "host", "disk", "remote", "peer"};
  return kNames[static_cast<size_t>(tier)];
}

const char* to_string(TransferType type) { return route_of(type).name; }
Tier source_tier(TransferType type) { return route_of(type).from; }
Tier destination_tier(TransferType type) { return route_of(type).to; }

const char* to_string(TransferState state) {
  constexpr std::array<const char*, 6> kNames{"PENDING", "READY", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"};
  return kNames[static_cast<size_t>(state)];
}

void append_block(BlockExtents& extents, int64_t block) {
  if (!extents.empty() && extents.back().first + extents.back().count == block) {
    ++extents.back().count;
  } else {
    extents.push_back({block, 1});
  }
}

std::vector<int64_t> list_blocks(const BlockExtents& extents) {
  std::vector<int64_t> blocks;
  for (const BlockExtent& extent : extents) {
    for (int64_t i = 0; i < extent.count; ++i) blocks.push_back(extent.first + i);
  }
  return blocks;
}

int64_t block_count(const BlockExtents& extents) {
  int64_t count = 0;
  for (const BlockExtent& extent : extents) count += extent.count;
  return count;
}

bool share_layers(const TransferOp& a, const TransferOp& b) {
  if (a.layer_granularity == 0 || b.layer_granularity == 0) return true;
  return a.layer_id < b.layer_id + b.layer_granularity && b.layer_id < a.layer_id + a.layer_granularity;
}

uint32_t TransferOpGraph::add_op(TransferOp op) {
  op.op_id = static_cast<uint32_t>(ops_.size());
  op.state = TransferState::kPending;
  ops_.push_back(std::move(op));
  return ops_.back().op_id;
}

void TransferOpGraph::add_dependency(uint32_t before, uint32_t after) {
  std::vector<uint32_t>& successors = ops_[before].successors;
  if (std::ranges::find(successors, after) != successors.end()) return;
  successors.push_back(after);
  ops_[after].predecessors.push_back(before);
}

Status TransferOpGraph::verify() const {
  for (const TransferOp& op : ops_) {
    if (Status status = check_extents(op); !status.ok()) return status;
  }
  std::vector<size_t> waits;
  std::vector<uint32_t> order;
  for (const TransferOp& op : ops_) {
    waits.push_back(op.predecessors.size());
    if (op.predecessors.empty()) order.push_back(op.op_id);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const uint32_t next : ops_[order[i]].successors) {
      if (--waits[next] == 0) order.push_back(next);
    }
  }
  if (order.size() != ops_.size()) return broken("the transfer graph has a cycle");
  return check_hazards(find_descendants(order));
}

Status TransferOpGraph::check_extents(const TransferOp& op) const {
  for (const BlockExtents* extents : {&op.source, &op.destination}) {
    for (const BlockExtent& extent : *extents) {
      if (extent.first < 0 || extent.count <= 0) {
        return broken("transfer " + name_of(op) + " has an extent of " + std::to_string(extent.count) +
                      " blocks from " + std::to_string(extent.first));
      }
    }
  }
  const int64_t from = block_count(op.source), to = block_count(op.destination);
  if (from == to && from > 0 && op.layer_id >= 0 && op.layer_granularity >= 0) return Status();
  return broken("transfer " + name_of(op) + " takes " + std::to_string(from) + " blocks to " + std::to_string(to) +
                ", layers " + std::to_string(op.layer_id) + " + " + std::to_string(op.layer_granularity));
}

std::vector<std::vector<uint64_t>> TransferOpGraph::find_descendants(const std::vector<uint32_t>& order) const {
  std::vector<std::vector<uint64_t>> sets(ops_.size(), std::vector<uint64_t>(ops_.size() / 64 + 1));
  for (size_t i = order.size(); i-- > 0;) {
    std::vector<uint64_t>& set = sets[order[i]];
    for (const uint32_t next : ops_[order[i]].successors) {
      set[next / 64] |= uint64_t{1} << (next % 64);
      for (size_t word = 0; word < set.size(); ++word) set[word] |= sets[next][word];
    }
  }
  return sets;
}

// 1. List the ops that touch each block of each tier.
// 2. If two share layers and one of them writes, one must descend from the other.
Status TransferOpGraph::check_hazards(const std::vector<std::vector<uint64_t>>& descendants) const {
  struct Use {
    uint32_t op;
    bool writes;
  };
  std::map<std::pair<Tier, int64_t>, std::vector<Use>> uses;
  for (const TransferOp& op : ops_) {
    for_each_block(op, [&](Tier tier, int64_t block, bool writes) {
      uses[{tier, block}].push_back({op.op_id, writes});
    });
  }
  for (const auto& [place, list] : uses) {
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Use &a = list[i], &b = list[j];
        if (!a.writes && !b.writes) continue;
        if (a.op != b.op &&
            (!share_layers(ops_[a.op], ops_[b.op]) || has(descendants[a.op], b.op) || has(descendants[b.op], a.op))) {
          continue;
        }
        return broken("transfers " + name_of(ops_[b.op]) + " and " + name_of(ops_[a.op]) + " touch block " +
                      std::to_string(place.second) + " of the " + to_string(place.first) +
                      " tier, one writes it, and neither waits for the other");
      }
    }
  }
  return Status();
}

int64_t TransferOpGraph::blocks() const {
  int64_t end = 0;
  for (const TransferOp& op : ops_) {
    if (delivers(op)) end = std::max(end, op.position + block_count(op.destination));
  }
  return end;
}

int64_t TransferOpGraph::usable_prefix() const {
  int64_t end = blocks();
  for (const TransferOp& op : ops_) {
    if (!delivers(op) || state_of(op) == TransferState::kCompleted) continue;
    end = std::min(end, op.position);
  }
  return end;
}

std::string TransferOpGraph::dump() const {
  std::string text = "digraph transfers {\n";
  const auto list = [](const BlockExtents& extents) {
    std::string names;
    for (const BlockExtent& extent : extents) {
      if (!names.empty()) names += ' ';
      names += std::to_string(extent.first);
      if (extent.count > 1) names.append("-").append(std::to_string(extent.first + extent.count - 1));
    }
    return names;
  };
  for (const TransferOp& op : ops_) {
    text += "  " + std::to_string(op.op_id) + " [label=\"" + to_string(op.type) + " " + list(op.source) + " to " +
            list(op.destination);
    if (op.layer_granularity > 0) {
      text += "\\nlayers " + std::to_string(op.layer_id) + "-" + std::to_string(op.layer_id + op.layer_granularity - 1);
    }
    text += std::string("\\n") + to_string(state_of(op)) + "\"];\n";
    for (const uint32_t next : op.successors) {
      text += "  " + std::to_string(op.op_id) + " -> " + std::to_string(next) + ";\n";
    }
  }
  return text + "}\n";
}

}  // namespace hetero::graph
