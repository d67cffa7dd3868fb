// The table of instructions: every kind prints and parses, and visitors see what it names.

#include "graph/ir/instruction.h"

#include <set>
#include <vector>

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

// Two nodes that read b0: b1 = f(b0), b2 = f(b0).
struct Pair {
  Pair() {
    read = program.input(4);
    for (BufferId& made : written) made = program.define(test_ops().pointwise, 4, {program.read(read)});
    FusedGroup& group = all.groups.emplace_back();
    group.members = {0, 1};
    group.operands = {{.buffer = read, .operand = 0, .loads = true},
                      {.buffer = written[1], .operand = 3, .stores = true}};
    all.batches.push_back({Instruction::run(kHostQueue, 0), Instruction::body(kHostQueue, 1)});
  }
  std::multiset<BufferId> touched(const Instruction& instruction, bool writes) const {
    std::multiset<BufferId> buffers;
    for_each_touch(program.graph, all, instruction, [&](const TouchedBytes& bytes) {
      if (bytes.writes == writes) buffers.insert(bytes.buffer);
    });
    return buffers;
  }

  Program program;
  BufferId read;
  BufferId written[2];
  Instructions all;
};

}  // namespace

TEST_CASE("instructions: the text of each kind parses to the same") {
  Instruction back = Instruction::copy(3, 7, kAccelerator, kCpu);
  back.stay = 2;
  std::vector<Instruction> all = {Instruction::run(3, 1),
                                  Instruction::body(3, 2),
                                  Instruction::fused(3, 3),
                                  Instruction::batch(3, 4),
                                  Instruction::record(3, 5),
                                  Instruction::wait(3, 6),
                                  back};
  std::set<Instruction::Kind> kinds;
  for (const Instruction& instruction : all) {
    const std::string text = to_string(instruction);
    TextReader reader(text);
    Instruction parsed;
    parsed.queue = 3;
    const Result<bool> read = accept_instruction(reader, parsed);
    REQUIRE(read.ok());
    CHECK(read.value());
    CHECK(parsed == instruction);
    CHECK(reader.at_end());
    kinds.insert(instruction.kind);
  }
  CHECK(kinds.size() == kInstructionKinds.size());
}

TEST_CASE("instructions: a text that is none is not read, and one that breaks off says what was expected") {
  TextReader other("sleep n1");
  Instruction instruction;
  const Result<bool> none = accept_instruction(other, instruction);
  REQUIRE(none.ok());
  CHECK(!none.value());
  for (const InstructionKind& row : kInstructionKinds) {
    const std::string text = std::string(row.word) + " x1";
    TextReader reader(text);
    CHECK(accept_instruction(reader, instruction).status().message() ==
          "line 1: expected " + std::string(row.expected));
  }
}

TEST_CASE("instructions: what each kind touches is what it names, on the devices where it is") {
  const Pair pair;
  using Buffers = std::multiset<BufferId>;
  const Instruction run = Instruction::run(kHostQueue, 1);
  CHECK(pair.touched(run, false) == Buffers{pair.read});
  CHECK(pair.touched(run, true) == Buffers{pair.written[1]});
  const Instruction fused = Instruction::fused(kHostQueue, 0);
  CHECK(pair.touched(fused, false) == Buffers{pair.read});
  CHECK(pair.touched(fused, true) == Buffers{pair.written[1]});
  const Instruction batch = Instruction::batch(kHostQueue, 0);
  CHECK(pair.touched(batch, false) == Buffers{pair.read, pair.read});
  CHECK(pair.touched(batch, true) == Buffers{pair.written[0], pair.written[1]});
  CHECK(pair.touched(Instruction::record(kHostQueue, 0), false).empty());
  const QueueId link = queue_id(kAccelerator, backend::QueueKind::kHostToDevice);
  std::vector<backend::DeviceIndex> devices;
  for_each_touch(pair.program.graph, pair.all, Instruction::copy(link, pair.read, kCpu, kAccelerator),
                 [&](const TouchedBytes& bytes) { devices.push_back(bytes.device); });
  CHECK(devices == std::vector<backend::DeviceIndex>{kCpu, kAccelerator});
}

TEST_CASE("instructions: the nodes of a call, a group and a batch, and the one that stands for them") {
  const Pair pair;
  const auto nodes = [&](const Instruction& instruction) {
    std::vector<uint32_t> found;
    for_each_node(pair.all, instruction, [&](uint32_t node) { found.push_back(node); });
    return found;
  };
  CHECK(nodes(Instruction::body(kHostQueue, 1)) == std::vector<uint32_t>{1});
  CHECK(nodes(Instruction::fused(kHostQueue, 0)) == std::vector<uint32_t>{0, 1});
  CHECK(nodes(Instruction::batch(kHostQueue, 0)) == std::vector<uint32_t>{0, 1});
  CHECK(nodes(Instruction::copy(kHostQueue, 0, kCpu, kAccelerator)).empty());
  CHECK(nodes(Instruction::wait(kHostQueue, 0)).empty());
  CHECK(node_of(pair.all, Instruction::run(kHostQueue, 1)) == 1);
  CHECK(node_of(pair.all, Instruction::fused(kHostQueue, 0)) == 1);
  CHECK(node_of(pair.all, Instruction::batch(kHostQueue, 0)) == 0);
}

}  // namespace hetero::graph::testing
