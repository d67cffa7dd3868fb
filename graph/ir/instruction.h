// Instruction: one step of a program, and what each kind of it means.
//
// kInstructionKinds has a row per kind: its words in the text of plans and in reports, and what its
// index counts. Visitors say what an instruction touches: calls, nodes, bytes. Passes, costs and
// reports ask these and do not compare kinds. Only what runs instructions, and the verifier, tell
// every kind apart. scripts/check_includes.py keeps the list of files that do.
//
// A new kind is a row and a case of for_each_touch() here, then its seconds (CostModel), its
// submission (run/queue_run.cpp, run/bound_program.cpp), and what the verifier asks of it.
//
// Thread safety: plain data and pure functions.

#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "graph/ir/fused_group.h"
#include "graph/ir/graph.h"
#include "graph/ir/text.h"

namespace hetero::graph {

// A queue, as a dense number: the two queues of the CPU that programs use, then those of the other
// devices.
using QueueId = uint8_t;
inline constexpr int kMaxQueues = 2 + (backend::kMostDevices - 1) * backend::kQueueKinds;
using QueueSet = std::bitset<kMaxQueues>;

// The CPU's compute queue runs on the submitting thread: its work is done before anything later is
// submitted, and a wait on it blocks later submissions.
inline constexpr QueueId kHostQueue = 0;
// The CPU's worker queue runs host tasks (OpTraits::host_task) on a thread of its own.
inline constexpr QueueId kWorkerQueue = 1;

// REQUIRES: of the CPU, the compute queue or the worker queue.
inline QueueId queue_id(backend::DeviceIndex device, backend::QueueKind kind) {
  if (device == backend::kCpu) return kind == backend::kCpuWorker ? kWorkerQueue : kHostQueue;
  return static_cast<QueueId>(2 + (device - 1) * backend::kQueueKinds + static_cast<int>(kind));
}
inline backend::DeviceIndex device_of(QueueId queue) {
  return static_cast<backend::DeviceIndex>((queue + backend::kQueueKinds - 2) / backend::kQueueKinds);
}
inline backend::QueueKind kind_of(QueueId queue) {
  if (queue <= kWorkerQueue) return queue == kHostQueue ? backend::QueueKind::kCompute : backend::kCpuWorker;
  return static_cast<backend::QueueKind>((queue - 2) % backend::kQueueKinds);
}
// Whether it is a queue of an accelerator for tasks.
inline bool runs_kernels(QueueId queue) { return queue > kWorkerQueue && backend::is_compute(kind_of(queue)); }

// Queues with smaller numbers are those of this many devices.
inline QueueId queue_count(backend::DeviceIndex devices) {
  return static_cast<QueueId>(2 + (devices - 1) * backend::kQueueKinds);
}

// "cpu compute", "cpu worker", "accelerator h2d".
std::string queue_word(QueueId queue);

struct Instruction {
  // In the order of kInstructionKinds.
  enum class Kind : uint8_t { kRun, kBody, kFused, kBatch, kCopy, kRecord, kWait };
  Kind kind = Kind::kRun;
  QueueId queue = 0;
  uint32_t index = 0;  // of what the kind's row says
  // Of a copy: the devices.
  backend::DeviceIndex from = 0;
  backend::DeviceIndex to = 0;
  // Of a copy whose bytes have been there before and come back: Plan::returns[stay - 1]. Else 0.
  uint32_t stay = 0;

  static Instruction run(QueueId queue, uint32_t node) { return {Kind::kRun, queue, node}; }
  // Without the tail, which is a member of a group that comes later.
  static Instruction body(QueueId queue, uint32_t node) { return {Kind::kBody, queue, node}; }
  static Instruction fused(QueueId queue, uint32_t group) { return {Kind::kFused, queue, group}; }
  static Instruction batch(QueueId queue, uint32_t batch) { return {Kind::kBatch, queue, batch}; }
  static Instruction copy(QueueId queue, BufferId buffer, backend::DeviceIndex from, backend::DeviceIndex to) {
    return {Kind::kCopy, queue, buffer, from, to};
  }
  static Instruction record(QueueId queue, uint32_t event) { return {Kind::kRecord, queue, event}; }
  static Instruction wait(QueueId queue, uint32_t event) { return {Kind::kWait, queue, event}; }

  // Calls one node's kernel: all of it, or the body.
  bool is_call() const { return kind <= Kind::kBody; }
  bool is_body() const { return kind == Kind::kBody; }
  bool is_group() const { return kind == Kind::kFused; }
  // Computes as one: a call or a group. A batch is several calls.
  bool is_task() const { return kind <= Kind::kFused; }
  bool is_batch() const { return kind == Kind::kBatch; }
  bool computes() const { return kind <= Kind::kBatch; }
  bool is_copy() const { return kind == Kind::kCopy; }
  bool is_record() const { return kind == Kind::kRecord; }
  bool is_wait() const { return kind == Kind::kWait; }
  // Orders queues and takes no time.
  bool is_event() const { return is_record() || is_wait(); }
  // The part of its operator that a call computes.
  Part part() const { return is_body() ? Part::kBody : Part::kWhole; }

  bool operator==(const Instruction&) const = default;
};

struct InstructionKind {
  Instruction::Kind kind;
  std::string_view word;      // in the text of a plan
  std::string_view counted;   // by the index, as its letter there
  std::string_view expected;  // behind the word, for errors
  std::string_view reported;  // in reports; empty for what takes no time
};
inline constexpr std::array<InstructionKind, 7> kInstructionKinds = {{
    {Instruction::Kind::kRun, "run", "n", "a node", "run"},
    {Instruction::Kind::kBody, "body of", "n", "a node", "run"},
    {Instruction::Kind::kFused, "fused", "g", "a group", "fused"},
    {Instruction::Kind::kBatch, "batch", "t", "a batch", "run"},
    {Instruction::Kind::kCopy, "copy", "b", "'copy bN from DEVICE to DEVICE'", "copy"},
    {Instruction::Kind::kRecord, "record", "e", "an event", ""},
    {Instruction::Kind::kWait, "wait", "e", "an event", ""},
}};
inline const InstructionKind& row_of(const Instruction& instruction) {
  return kInstructionKinds[static_cast<size_t>(instruction.kind)];
}

// Its text without the queue: "copy b0 from cpu to accelerator as r0".
std::string to_string(const Instruction& instruction);
// Reads such a text; the queue stays. False, and nothing is read, where there is none.
// Errors: kUsage.
Result<bool> accept_instruction(TextReader& reader, Instruction& instruction);

// Instructions, and what they name.
struct Instructions {
  std::vector<FusedGroup> groups;
  std::vector<std::vector<Instruction>> batches;  // of calls: OpTraits::run_together makes them
  std::vector<Instruction> program;               // in the order of submission

  bool operator==(const Instructions&) const = default;
};

// The calls of a call or a batch.
template <typename Function>
void for_each_call(const Instructions& all, const Instruction& instruction, Function function) {
  if (instruction.is_call()) {
    function(instruction);
  } else if (instruction.is_batch()) {
    for (const Instruction& call : all.batches[instruction.index]) function(call);
  }
}

// The nodes that it computes, or a part of them.
template <typename Function>
void for_each_node(const Instructions& all, const Instruction& instruction, Function function) {
  if (instruction.is_group()) {
    for (const uint32_t member : all.groups[instruction.index].members) function(member);
  } else {
    for_each_call(all, instruction, [&](const Instruction& call) { function(call.index); });
  }
}

// Of these nodes, those whose placement is the instruction's. A tail in a group is placed where its
// body is.
template <typename Function>
void for_each_placed(const Graph& graph, const Instructions& all, const Instruction& instruction, Function function) {
  for_each_node(all, instruction, [&](uint32_t node) {
    if (!instruction.is_group() || !is_tail(graph, node)) function(node);
  });
}

// Bytes that an instruction reads or writes.
struct TouchedBytes {
  BufferId buffer;
  backend::DeviceIndex device;
  bool writes;
};
// What it touches, operand by operand.
template <typename Function>
void for_each_touch(const Graph& graph, const Instructions& all, const Instruction& instruction, Function function) {
  const backend::DeviceIndex device = device_of(instruction.queue);
  if (instruction.is_copy()) {
    function(TouchedBytes{instruction.index, instruction.from, false});
    function(TouchedBytes{instruction.index, instruction.to, true});
  } else if (instruction.is_group()) {
    for (const GroupOperand& operand : all.groups[instruction.index].operands) {
      function(TouchedBytes{operand.buffer, device, operand.stores});
    }
  } else {
    for_each_call(all, instruction, [&](const Instruction& call) {
      const Node& node = graph.nodes[call.index];
      for (const Operand& operand : std::span(graph.operands_of(node), node.operand_count)) {
        function(TouchedBytes{operand.buffer, device, operand.writes()});
      }
    });
  }
}

// The node that stands for what computes: a group's last member, by which it is placed, or a
// batch's first.
inline uint32_t node_of(const Instructions& all, const Instruction& instruction) {
  if (instruction.is_group()) return all.groups[instruction.index].members.back();
  return instruction.is_batch() ? all.batches[instruction.index].front().index : instruction.index;
}

}  // namespace hetero::graph
