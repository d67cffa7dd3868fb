// Programs of operators that can be fused, for the tests of fusion and of batches.

#pragma once

#include <vector>

#include "graph/ir/plan.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {

using Kind = Instruction::Kind;
using Members = std::vector<uint32_t>;

// A program of operators with lowerings. Without sizes, operands are whole buffers of one dimension.
struct Fusable : Program {
  Operand matrix(BufferId buffer, Access access, int64_t rows = 4, int64_t columns = 6) {
    return operand(buffer, access, {rows, columns}, {columns, 1}, 0);
  }
  Operand row(BufferId buffer, int64_t columns = 6) { return operand(buffer, Access::kRead, {columns}, {1}, 0); }
  Operand column(BufferId buffer, Access access, int64_t rows = 4) {
    return operand(buffer, access, {rows, 1}, {1, 1}, 0);
  }
  BufferId map(std::vector<Operand> inputs, int64_t count = 24) {
    return define(test_ops().map, count, std::move(inputs), Preference::kAuto, 0.5f);
  }
  // Over [4,6].
  BufferId map_matrix(std::vector<Operand> inputs) {
    const BufferId output = empty(24);
    inputs.push_back(matrix(output, Access::kDefine));
    add(test_ops().map, std::move(inputs), Preference::kAuto, 0.5f);
    return output;
  }
  BufferId map_column(std::vector<Operand> inputs) {
    const BufferId output = empty(4);
    inputs.push_back(column(output, Access::kDefine));
    add(test_ops().map, std::move(inputs), Preference::kAuto, 0.5f);
    return output;
  }
  // Over the last dimension of [4,6], with kept dimensions.
  BufferId digest(BufferId x) {
    const BufferId output = empty(4);
    add(test_ops().digest, {matrix(x, Access::kRead), column(output, Access::kDefine)});
    return output;
  }
  // With a bias for each column.
  BufferId product(BufferId bias, BufferId x) {
    const BufferId output = empty(24);
    add(test_ops().product, {row(bias), matrix(x, Access::kRead), matrix(output, Access::kDefine)}, Preference::kAuto,
        0.5f);
    return output;
  }
  BufferId matmul(BufferId x) { return define(test_ops().matmul, 24, {read(x)}); }

  Results check() {
    const Results expected = interpret();
    const Plan fused = plan(fused_options());
    Results got = run_plan(fused);
    INFO(to_string(graph));
    INFO(to_string(fused));
    REQUIRE(got.status.ok());
    REQUIRE(same_values(*this, got, expected));
    return got;
  }
  std::vector<Members> groups() const {
    std::vector<Members> result;
    for (const FusedGroup& group : plan(fused_options()).groups) result.push_back(group.members);
    return result;
  }
};

inline bool has_memory(const Plan& plan, BufferId buffer) { return plan.residence(buffer, 0).home != Home::kNone; }

// Runs a program with failing nodes: what is lost is lost for the interpreter too, and the rest has its values. Returns how many buffers are lost.
inline int lost_as_interpreted(Program& program, const Plan& plan) {
  const Results expected = program.interpret();
  const Results got = program.run_plan(plan);
  INFO(to_string(program.graph));
  INFO(to_string(plan));
  int count = 0;
  for (BufferId b = 0; b < program.graph.buffers.size(); ++b) {
    if (!program.graph.buffers[b].escapes) continue;
    const bool lost = !expected.bindings[b].error.ok();
    REQUIRE(got.bindings[b].error.ok() == !lost);
    count += lost;
    // The interpreter also runs dead nodes, so it may have spoiled what is lost further.
    if (!lost) REQUIRE(got.values[b] == expected.values[b]);
  }
  return count;
}

}  // namespace hetero::graph::testing
