// What is fused, that it computes the same bits, and that what needs no memory has none.

#include "graph/fusion/fusion.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/ir/lowering.h"
#include "graph/verify/verify.h"
#include "tests/graph/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

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

bool has_memory(const Plan& plan, BufferId buffer) { return plan.residence(buffer, 0).home != Home::kNone; }

}  // namespace

TEST_CASE("fusion: a chain is one group, and only its end has memory") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(a)});
  const BufferId c = p.map({p.read(b), p.read(x)});
  p.escape(c);
  const Results results = p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2}});
  CHECK(results.counts.fused_groups == 1);
  CHECK(results.counts.fused_nodes == 3);
  CHECK(results.counts.kernels[0] == 1);
  const Plan plan = p.plan(fused_options());
  CHECK_FALSE(has_memory(plan, a));
  CHECK_FALSE(has_memory(plan, b));
  CHECK(plan.arena_bytes[0] == 0);
  REQUIRE(plan.groups[0].operands.size() == 2);
  CHECK(plan.groups[0].operands[0] == GroupOperand{.buffer = x, .operand = 0, .loads = true, .stores = false});
  CHECK(plan.groups[0].operands[1].stores);
  CHECK(plan.fusion == std::vector<FusionNote>(3, FusionNote::kJoined));
}

TEST_CASE("fusion: without the option nothing changes") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(p.map({p.read(p.map({p.read(x)}))}));
  const Plan plan = p.plan(cpu_options());
  CHECK(plan.groups.empty());
  CHECK(plan.fusion.empty());
  CHECK(plan.program.size() == 2);
}

TEST_CASE("fusion: a value that escapes or is read later is stored") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(a)});
  const BufferId c = p.map({p.read(b)});
  const BufferId d = p.matmul(b);
  p.escape(a);
  p.escape(c);
  p.escape(d);
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2}});
  CHECK(has_memory(plan, a));
  CHECK(has_memory(plan, b));
}

TEST_CASE("fusion: diamonds and residuals are one group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId left = p.map({p.read(x)});
  const BufferId right = p.map({p.read(x)});
  const BufferId both = p.map({p.read(left), p.read(right)});
  p.escape(p.map({p.read(both), p.read(x)}));
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
}

TEST_CASE("fusion: groups that meet become one") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId y = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(y)});
  p.escape(p.map({p.read(a), p.read(b)}));
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2}});
}

TEST_CASE("fusion: in-place operators go on from the current value, and the last value is stored") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(x);
  p.add(test_ops().map, {p.update(x)});
  p.add(test_ops().map, {p.update(x)});
  const BufferId y = p.map({p.read(x)});
  p.add(test_ops().map, {p.read(y), p.update(x)});
  p.escape(y);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.groups[0].operands.size() == 2);
  int stores = 0;
  for (const backend::FusedStep& step : plan.groups[0].kernel.steps) {
    stores += step.kind == backend::FusedStep::Kind::kStore;
  }
  CHECK(stores == 2);
}

TEST_CASE("fusion: softmax has the shape of one group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId peak = p.digest(x);
  const BufferId shifted = p.map_matrix({p.matrix(x, Access::kRead), p.column(peak, Access::kRead)});
  const BufferId sum = p.digest(shifted);
  const BufferId result = p.map_matrix({p.matrix(shifted, Access::kRead), p.column(sum, Access::kRead)});
  p.escape(result);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
  const Plan plan = p.plan(fused_options());
  CHECK(plan.groups[0].space.row_rank == 1);
  CHECK(plan.groups[0].operands.size() == 2);
}

TEST_CASE("fusion: RMS norm with its weight and the residual before it is one group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId residual = p.input(24);
  const BufferId weight = p.input(6);
  const BufferId h = p.map_matrix({p.matrix(x, Access::kRead), p.matrix(residual, Access::kRead)});
  const BufferId square = p.map_matrix({p.matrix(h, Access::kRead), p.matrix(h, Access::kRead)});
  const BufferId mean = p.digest(square);
  const BufferId scale = p.map_column({p.column(mean, Access::kRead)});
  const BufferId scaled = p.map_matrix({p.matrix(h, Access::kRead), p.column(scale, Access::kRead)});
  const BufferId result = p.map_matrix({p.matrix(scaled, Access::kRead), p.row(weight)});
  p.escape(h);
  p.escape(result);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3, 4, 5}});
}

TEST_CASE("fusion: layer norm without kept dimensions, seen through views, is one group") {
  Fusable p;
  const BufferId x = p.input(24);
  // Over [2,2,6], while the reductions give [4]: expanded views say where the rows are.
  const BufferId mean = p.empty(4);
  p.add(test_ops().digest, {p.matrix(x, Access::kRead), p.operand(mean, Access::kDefine)});
  const BufferId centered = p.empty(24);
  const Operand expanded = p.operand(mean, Access::kRead, {2, 2, 6}, {2, 1, 0}, 0);
  p.add(test_ops().map, {p.operand(x, Access::kRead, {2, 2, 6}, {12, 6, 1}, 0), expanded,
                         p.operand(centered, Access::kDefine, {2, 2, 6}, {12, 6, 1}, 0)});
  const BufferId variance = p.digest(centered);
  const BufferId result = p.map_matrix({p.matrix(centered, Access::kRead), p.column(variance, Access::kRead)});
  p.escape(result);
  p.escape(mean);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
  CHECK(p.plan(fused_options()).groups[0].space.rank == 3);
}

TEST_CASE("fusion: a row value that is read across the rows is not taken for one") {
  Fusable p;
  const BufferId x = p.input(36);
  const BufferId row = p.empty(6);
  p.add(test_ops().digest, {p.matrix(x, Access::kRead, 6, 6), p.operand(row, Access::kDefine)});
  // [6] against [6,6] lies along the columns.
  const BufferId y = p.empty(36);
  p.add(test_ops().map, {p.matrix(x, Access::kRead, 6, 6), p.row(row), p.matrix(y, Access::kDefine, 6, 6)});
  p.escape(y);
  p.check();
  CHECK(p.plan(fused_options()).fusion[1] == FusionNote::kOverlap);
}

TEST_CASE("fusion: a reduction over other dimensions than the last does not join") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead)});
  const BufferId sums = p.empty(6);
  p.add(test_ops().digest, {p.matrix(a, Access::kRead), p.operand(sums, Access::kDefine, {1, 6}, {6, 1}, 0)});
  p.escape(sums);
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(plan.fusion[1] == FusionNote::kNotTrailing);
  CHECK(plan.program.size() == 2);
}

TEST_CASE("fusion: a reduction over everything is a row of the whole space") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead)});
  const BufferId sum = p.empty(1);
  p.add(test_ops().digest, {p.matrix(a, Access::kRead), p.operand(sum, Access::kDefine, {}, {}, 0)});
  const BufferId root = p.empty(1);
  p.add(test_ops().map, {p.operand(sum, Access::kRead, {}, {}, 0), p.operand(root, Access::kDefine, {}, {}, 0)});
  const BufferId result = p.map_matrix({p.matrix(a, Access::kRead), p.operand(root, Access::kRead, {}, {}, 0)});
  p.escape(result);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
}

TEST_CASE("fusion: reductions over different rows do not share a group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId rows = p.digest(x);
  const BufferId sum = p.empty(1);
  p.add(test_ops().digest, {p.matrix(x, Access::kRead), p.operand(sum, Access::kDefine, {}, {}, 0)});
  p.escape(rows);
  p.escape(sum);
  p.check();
  CHECK(p.groups().empty());
}

TEST_CASE("fusion: a node that depends on a member closes the group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(a)});
  const BufferId c = p.matmul(b);
  const BufferId d = p.map({p.read(c), p.read(b)});
  p.escape(d);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1}, {3}});
  CHECK(p.plan(fused_options()).fusion[3] == FusionNote::kClosed);
}

TEST_CASE("fusion: a node that depends on nothing of the group leaves it open") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId y = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId c = p.matmul(y);
  const BufferId b = p.map({p.read(a), p.read(c)});
  p.escape(b);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 2}});
}

TEST_CASE("fusion: what a member reads is not overwritten before it runs") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(x);
  const BufferId a = p.map({p.read(x)});
  // No member: it overwrites what the group still has to read.
  p.add(test_ops().matmul, {p.update(x)});
  const BufferId b = p.map({p.read(a), p.read(x)});
  p.escape(b);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0}, {2}});
}

TEST_CASE("fusion: other shapes stay apart") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.operand(a, Access::kRead, {12}, {1}, 0)}, 12);
  p.escape(b);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0}, {1}});
  CHECK(p.plan(fused_options()).fusion[1] == FusionNote::kOtherShape);
}

TEST_CASE("fusion: views of one order of the same bytes are one value") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead)});
  const BufferId c = p.empty(24);
  p.add(test_ops().map, {p.operand(b, Access::kRead, {2, 1, 12}, {12, 12, 1}, 0),
                         p.operand(c, Access::kDefine, {2, 1, 12}, {12, 12, 1}, 0)});
  p.escape(c);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2}});
  const Plan plan = p.plan(fused_options());
  CHECK_FALSE(has_memory(plan, a));
  CHECK_FALSE(has_memory(plan, b));
}

TEST_CASE("fusion: a transposed view of a value closes the group") {
  Fusable p;
  const BufferId x = p.input(36);
  const BufferId a = p.empty(36);
  p.add(test_ops().map, {p.matrix(x, Access::kRead, 6, 6), p.matrix(a, Access::kDefine, 6, 6)});
  const BufferId b = p.empty(36);
  p.add(test_ops().map, {p.operand(a, Access::kRead, {6, 6}, {1, 6}, 0), p.matrix(b, Access::kDefine, 6, 6)});
  p.escape(b);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0}, {1}});
  CHECK(p.plan(fused_options()).fusion[1] == FusionNote::kOverlap);
}

TEST_CASE("fusion: parts of one buffer that do not overlap are different values") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(x);
  const auto half = [&](int64_t first, Access access) { return p.operand(x, access, {12}, {1}, first); };
  p.add(test_ops().map, {half(0, Access::kRead), half(12, Access::kUpdate)});
  p.add(test_ops().map, {half(12, Access::kRead), half(0, Access::kUpdate)});
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1}});
}

TEST_CASE("fusion: a node that reads what it writes through another window is left alone") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(x);
  p.add(test_ops().map, {p.operand(x, Access::kRead, {23}, {1}, 0), p.operand(x, Access::kUpdate, {23}, {1}, 1)});
  p.check();
  CHECK(p.groups().empty());
}

TEST_CASE("fusion: steps of many tensors stay in groups of bounded size") {
  Fusable p;
  const BufferId rate = p.input(24);
  p.escape(rate);
  for (int i = 0; i < 200; ++i) {
    const BufferId weight = p.input(24);
    p.escape(weight);
    p.add(test_ops().map, {p.read(rate), p.update(weight)});
  }
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(plan.groups.size() > 1);
  CHECK(plan.groups.size() < 10);
  for (const FusedGroup& group : plan.groups) CHECK(group.operands.size() <= 64);
}

TEST_CASE("fusion: steps of many tensors, operator by operator, are fused tensor by tensor") {
  Fusable p;
  std::vector<BufferId> weights;
  for (int i = 0; i < 100; ++i) {
    weights.push_back(p.input(24));
    p.escape(weights.back());
  }
  for (int step = 0; step < 3; ++step) {
    for (const BufferId weight : weights) p.add(test_ops().map, {p.update(weight)});
  }
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(plan.groups.size() == 100);
  CHECK(plan.program.size() == 100);
}

// q * cos + rotate_half(q) * sin, over [4,6].
struct Rotary : Fusable {
  BufferId q = input(24), cosine = input(24), sine = input(24);
  Operand half(BufferId buffer, Access access, int64_t which) {
    return operand(buffer, access, {4, 3}, {6, 1}, 3 * which);
  }
  BufferId rotate() {
    const BufferId a = map_matrix({matrix(q, Access::kRead), matrix(cosine, Access::kRead)});
    const BufferId negative = empty(12);
    add(test_ops().map, {half(q, Access::kRead, 1), matrix(negative, Access::kDefine, 4, 3)}, Preference::kAuto, -1.0f);
    const BufferId rotated = empty(24);
    add(test_ops().join,
        {matrix(negative, Access::kRead, 4, 3), half(q, Access::kRead, 0), matrix(rotated, Access::kDefine)});
    const BufferId b = map_matrix({matrix(rotated, Access::kRead), matrix(sine, Access::kRead)});
    return map_matrix({matrix(a, Access::kRead), matrix(b, Access::kRead)});
  }
};

TEST_CASE("fusion: a rotary embedding is one group") {
  Rotary p;
  const BufferId out = p.rotate();
  p.escape(out);
  p.check();
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.groups.size() == 1);
  CHECK(plan.groups[0].members.size() == 5);
  CHECK(plan.program.size() == 1);
  for (BufferId b = 3; b < out; ++b) CHECK_FALSE(has_memory(plan, b));
}

TEST_CASE("fusion: new sizes and numbers of a rotary embedding keep its group") {
  Rotary p;
  p.escape(p.rotate());
  const Plan before = p.plan(fused_options());
  FusedGroup group = before.groups[0];
  CHECK(space_of(p.graph, group, group.space));
  CHECK(gather_numbers(p.graph, group, group.numbers));
  std::vector<uint8_t> changed(p.graph.nodes.size());
  changed[0] = 1;
  CHECK(gather_numbers(p.graph, group, group.numbers, &changed));
  // What an attribute of a node of pieces stands for, nobody knows.
  changed[2] = 1;
  CHECK_FALSE(gather_numbers(p.graph, group, group.numbers, &changed));
}

TEST_CASE("fusion: a rotary embedding of pairs is one group") {
  Rotary p;
  const auto alternate = [&](BufferId buffer, Access access, int64_t which) {
    return p.operand(buffer, access, {4, 3, 1}, {6, 2, 1}, which);
  };
  const BufferId negative = p.empty(12), rotated = p.empty(24);
  const auto single = [&](Access access) { return p.operand(negative, access, {4, 3, 1}, {3, 1, 1}, 0); };
  const BufferId a = p.map_matrix({p.matrix(p.q, Access::kRead), p.matrix(p.cosine, Access::kRead)});
  p.add(test_ops().map, {alternate(p.q, Access::kRead, 1), single(Access::kDefine)}, Preference::kAuto, -1.0f);
  p.add(test_ops().join, {single(Access::kRead), alternate(p.q, Access::kRead, 0),
                          p.operand(rotated, Access::kDefine, {4, 3, 2}, {6, 2, 1}, 0)});
  const BufferId b = p.map_matrix({p.matrix(rotated, Access::kRead), p.matrix(p.sine, Access::kRead)});
  p.escape(p.map_matrix({p.matrix(a, Access::kRead), p.matrix(b, Access::kRead)}));
  p.check();
  CHECK(p.plan(fused_options()).program.size() == 1);
}

TEST_CASE("fusion: parts that one node writes and another reads whole are one group") {
  Fusable p;
  const BufferId x = p.input(12), y = p.input(12), z = p.input(24);
  const BufferId a = p.map({p.read(x)}, 12);
  const BufferId b = p.map({p.read(y)}, 12);
  const BufferId whole = p.empty(24);
  p.add(test_ops().join,
        {p.matrix(a, Access::kRead, 2), p.matrix(b, Access::kRead, 2), p.matrix(whole, Access::kDefine)});
  p.escape(p.map_matrix({p.matrix(whole, Access::kRead), p.matrix(z, Access::kRead)}));
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2, 3}});
}

TEST_CASE("fusion: a join of what a group has written in another shape stays apart") {
  Rotary p;
  const BufferId a = p.map_matrix({p.matrix(p.q, Access::kRead)});
  const BufferId out = p.empty(24);
  p.add(test_ops().join, {p.half(a, Access::kRead, 1), p.half(a, Access::kRead, 0), p.matrix(out, Access::kDefine)});
  p.escape(out);
  p.check();
}

TEST_CASE("fusion: the tail of a product joins what follows") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6), residual = p.input(24);
  const BufferId a = p.product(bias, x);
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead)});
  const BufferId c = p.map_matrix({p.matrix(b, Access::kRead), p.matrix(residual, Access::kRead)});
  p.escape(c);
  const Results results = p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(p.groups() == std::vector<Members>{{0, 1, 2}});
  CHECK(plan.fusion[0] == FusionNote::kTailJoined);
  REQUIRE(plan.program.size() == 2);
  CHECK(plan.program[0].kind == Kind::kBody);
  CHECK(plan.program[1].kind == Kind::kFused);
  CHECK(results.counts.kernels[0] == 2);
  CHECK(has_memory(plan, a));
  CHECK_FALSE(has_memory(plan, b));
  Plan damaged = plan;
  std::swap(damaged.program[0], damaged.program[1]);
  CHECK_FALSE(verify_plan(p.graph, damaged, fused_options()).ok());
  damaged = plan;
  damaged.program[0].kind = Kind::kRun;
  CHECK_FALSE(verify_plan(p.graph, damaged, fused_options()).ok());
}

TEST_CASE("fusion: a product runs as a whole where nobody joins its tail") {
  Fusable p;
  const BufferId x = p.input(24), y = p.input(24), bias = p.input(6);
  p.escape(p.product(bias, x));
  p.escape(p.matmul(p.product(bias, y)));
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(plan.groups.empty());
  for (const Instruction& instruction : plan.program) CHECK(instruction.kind == Kind::kRun);
}

TEST_CASE("fusion: a product reads what a group writes, so that group runs before its body") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead)});
  const BufferId b = p.product(bias, a);
  const BufferId c = p.map_matrix({p.matrix(b, Access::kRead), p.matrix(a, Access::kRead)});
  p.escape(c);
  p.escape(b);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0}, {1, 2}});
}

TEST_CASE("fusion: the operands of a body may change before its tail runs, those of the tail may not") {
  for (const bool of_tail : {false, true}) {
    Fusable p;
    const BufferId x = p.input(24), bias = p.input(6);
    const BufferId a = p.product(bias, x);
    p.add(test_ops().matmul, {p.read(bias), p.update(of_tail ? bias : x)});
    p.escape(x);
    p.escape(bias);
    p.escape(p.map_matrix({p.matrix(a, Access::kRead)}));
    p.check();
    CHECK(p.groups().size() == 1);
    CHECK((p.plan(fused_options()).fusion[0] == FusionNote::kTailJoined) == !of_tail);
  }
}

TEST_CASE("batches: products of one operand run together, at the place of the first") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6);
  const BufferId q = p.product(bias, x);
  const BufferId used = p.matmul(q);
  const BufferId k = p.product(bias, x);
  const BufferId v = p.product(bias, x);
  const BufferId joined = p.map_matrix({p.matrix(v, Access::kRead)});
  for (const BufferId result : {used, k, joined}) p.escape(result);
  const Results results = p.check();
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  CHECK(plan.batches[0] == std::vector<Instruction>{{.kind = Kind::kRun, .index = 0},
                                                    {.kind = Kind::kRun, .index = 2},
                                                    {.kind = Kind::kBody, .index = 3}});
  REQUIRE(plan.program.size() == 3);
  CHECK(plan.program[0].kind == Kind::kBatch);
  CHECK(results.counts.kernels[0] == 3);
  CHECK(results.counts.batches == 1);
  CHECK(results.counts.batched_nodes == 3);
  Plan damaged = plan;
  damaged.batches[0].push_back({.kind = Kind::kRun, .index = 1});
  CHECK_FALSE(verify_plan(p.graph, damaged, fused_options()).ok());
}

TEST_CASE("batches: a plan is not resized to calls that are too large for its batches") {
  const auto make = [](Fusable& p, int64_t rows) {
    const BufferId x = p.input(6 * rows), bias = p.input(6);
    for (int i = 0; i < 2; ++i) {
      const BufferId out = p.empty(6 * rows);
      p.add(test_ops().product, {p.row(bias), p.matrix(x, Access::kRead, rows), p.matrix(out, Access::kDefine, rows)});
      p.escape(out);
    }
  };
  Fusable small;
  make(small, 4);
  Plan plan = small.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  // Graphs that are compared have one table of windows.
  for (const int64_t rows : {5, 60000}) {
    Graph now = small.graph;
    for (Operand& operand : now.operands) {
      const Window& window = small.windows[operand.window];
      if (window.rank != 2) continue;
      const std::vector<int64_t> sizes = {rows, 6};
      operand.window = small.windows.intern_contiguous(window.dtype, sizes);
      now.buffers[operand.buffer].bytes = static_cast<uint64_t>(24 * rows);
    }
    Plan resized = plan;
    CHECK(resize_plan(small.graph, now, fused_options(), resized) == (rows == 5));
  }
}

TEST_CASE("batches: a product does not move before what it depends on") {
  for (const int what : {0, 1, 2}) {
    Fusable p;
    const BufferId x = p.input(24), bias = p.input(6), other = p.input(6);
    const BufferId q = p.product(bias, x);
    // The bias, the shared operand, or something else changes between the products.
    p.add(test_ops().matmul, {p.read(q), p.update(what == 0 ? bias : what == 1 ? x : other)});
    p.escape(p.matmul(p.product(bias, x)));
    p.escape(q);
    p.check();
    CHECK(p.plan(fused_options()).batches.size() == (what == 2 ? 1u : 0u));
  }
}

TEST_CASE("batches: calls that cannot run together run one by one, and each has its own error") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6), y = p.input(6);
  const BufferId q = p.product(bias, x);
  const BufferId k = p.product(y, x);
  p.escape(q);
  p.escape(k);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  const Results expected = p.interpret();
  backend::FaultDevice faulty(*test_devices()[0]);
  Results got;
  got.bindings = p.bind(test_devices());
  Executor executor({&faulty, nullptr});
  faulty.fail(backend::FaultKind::kAllocation, 1, backend::FaultDuration::kOnce);
  got.status = executor.run(p.graph, plan, p.pointers(got.bindings), got.counts);
  p.read_values(got, test_devices());
  CHECK(got.status.ok());
  CHECK(got.counts.batches == 0);
  CHECK(same_values(p, got, expected));
}

TEST_CASE("fusion: a body that fails loses what its tail would have written") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6), y = p.input(24);
  const BufferId a = p.product(bias, x);
  p.add(test_ops().throws, {p.read(y), p.write(x)});
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead), p.matrix(y, Access::kRead)});
  p.escape(b);
  p.escape(x);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.program[0].kind == Kind::kBody);
  const Results expected = p.interpret();
  // The failing node does not touch the tail, which then runs on its own.
  Results got = p.run_plan(plan);
  CHECK_FALSE(got.bindings[x].error.ok());
  CHECK(got.bindings[b].error.ok());
  CHECK(got.values[b] == expected.values[b]);
  p.graph.nodes[0].op = test_ops().throws;
  got = p.run_plan(plan);
  CHECK_FALSE(got.bindings[b].error.ok());
}

TEST_CASE("fusion: an empty result is not fused") {
  Fusable p;
  const BufferId x = p.input(0);
  p.escape(p.map({p.read(x)}, 0));
  p.check();
  CHECK(p.groups().empty());
}

TEST_CASE("fusion: random programs give the interpreter's bits, and plans print and parse back") {
  std::mt19937 random(51);
  int64_t nodes = 0;
  int64_t groups = 0;
  int larger = 0;
  for (int round = 0; round < 400; ++round) {
    Program program;
    make_fusable(program, random, 3 + round % 60);
    const Plan plan = program.plan(fused_options());
    const Results expected = program.interpret();
    const Results got = program.run_plan(plan);
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    REQUIRE(got.status.ok());
    REQUIRE(same_values(program, got, expected));
    nodes += got.counts.fused_nodes;
    groups += got.counts.fused_groups;
    for (const FusedGroup& group : plan.groups) {
      larger += group.members.size() > 4;
      REQUIRE(group.prepared);
    }

    Result<Plan> parsed = parse_plan(to_string(plan));
    REQUIRE(parsed.ok());
    CHECK(parsed.value() == plan);
    REQUIRE(restore_groups(program.graph, parsed.value()).ok());
    CHECK(to_string(parsed.value()) == to_string(plan));
    REQUIRE(same_values(program, program.run_plan(parsed.value()), expected));
  }
  CHECK(nodes > 4000);
  CHECK(groups * 3 < nodes * 2);
  CHECK(larger > 120);
}

TEST_CASE("fusion: new numbers are gathered without a new plan") {
  Fusable p;
  const BufferId x = p.input(24);
  p.escape(p.map({p.read(p.map({p.read(x)}))}));
  Plan plan = p.plan(fused_options());
  const float other = 7.5f;
  std::memcpy(p.graph.attributes.data() + p.graph.nodes[1].attribute_offset, &other, sizeof(other));
  REQUIRE_FALSE(same_values(p, p.run_plan(plan), p.interpret()));
  REQUIRE(gather_numbers(p.graph, plan.groups[0], plan.groups[0].numbers));
  REQUIRE(same_values(p, p.run_plan(plan), p.interpret()));
}

TEST_CASE("fusion: new sizes give a new space for the same kernel") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead)});
  p.escape(p.map_matrix({p.matrix(a, Access::kRead)}));
  const Plan plan = p.plan(fused_options());
  for (Buffer& buffer : p.graph.buffers) buffer.bytes *= 2;
  for (Operand& operand : p.graph.operands) operand = p.matrix(operand.buffer, operand.access, 8, 6);
  backend::FusedSpace space;
  REQUIRE(space_of(p.graph, plan.groups[0], space));
  CHECK(space.sizes[0] == 8);
  CHECK(space.sizes[1] == 6);
  // Two of its operands are no longer the same value.
  p.graph.operands[2] = p.operand(a, Access::kRead, {8, 6}, {1, 8}, 0);
  CHECK_FALSE(space_of(p.graph, plan.groups[0], space));
}

TEST_CASE("fusion: a poisoned input poisons what depends on it, and nothing else of its group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId y = p.input(24);
  const BufferId bad = p.define(test_ops().throws, 24, {p.read(x)});
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(a), p.read(bad)});
  const BufferId c = p.map({p.read(a), p.read(y)});
  p.escape(b);
  p.escape(c);
  REQUIRE(p.groups() == std::vector<Members>{{1, 2, 3}});
  const Results got = p.run(fused_options());
  CHECK_FALSE(got.status.ok());
  CHECK(got.status.message() == "test::throws: broken kernel");
  CHECK_FALSE(got.bindings[b].error.ok());
  CHECK(got.bindings[c].error.ok());
  CHECK(same_values(p, got, p.interpret()));
  CHECK(got.counts.fused_groups == 0);
}

TEST_CASE("fusion: a group that cannot get its memory runs member by member") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(p.map({p.read(a)}))});
  const BufferId c = p.map({p.read(x)});
  const BufferId results[] = {a, b, c};
  for (const BufferId result : results) p.escape(result);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.groups.size() == 1);
  const Results expected = p.interpret();
  for (int nth = 1; nth <= 3; ++nth) {
    for (const auto duration : {backend::FaultDuration::kOnce, backend::FaultDuration::kForEver}) {
      backend::FaultDevice faulty(*test_devices()[0]);
      Results got;
      got.bindings = p.bind(test_devices());
      Executor executor({&faulty, nullptr});
      faulty.fail(backend::FaultKind::kAllocation, nth, duration);
      got.status = executor.run(p.graph, plan, p.pointers(got.bindings), got.counts);
      p.read_values(got, test_devices());
      CHECK(got.counts.fused_groups == 0);
      if (duration == backend::FaultDuration::kOnce) {
        // The second try, for the member alone, gets it.
        CHECK(got.status.ok());
        CHECK(got.counts.kernels[0] == 4);
        CHECK(same_values(p, got, expected));
        continue;
      }
      CHECK(got.status.error_class() == ErrorClass::kResource);
      for (int i = 0; i < 3; ++i) {
        // Alone, the member before b needs memory too.
        const bool healthy = i == 0 && nth > 1;
        CHECK(got.bindings[results[i]].error.ok() == healthy);
        if (healthy) CHECK(got.values[results[i]] == expected.values[results[i]]);
      }
    }
  }
}

namespace {

// Runs a program with failing nodes: what is lost is lost for the interpreter too, and the rest has its values. Returns how many buffers are lost.
int lost_as_interpreted(Program& program, const Plan& plan) {
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

}  // namespace

TEST_CASE("fusion: random programs with failing nodes and lost inputs end as the interpreter does") {
  std::mt19937 random(52);
  int poisoned = 0;
  for (int round = 0; round < 200; ++round) {
    Program program;
    make_fusable(program, random, 40);
    for (Node& node : program.graph.nodes) {
      if (random() % 40 == 0) node.op = test_ops().throws;
    }
    const Plan plan = program.plan(fused_options());
    poisoned += lost_as_interpreted(program, plan);
  }
  CHECK(poisoned > 100);
}

TEST_CASE("verify: groups that are damaged are found, or do no harm") {
  std::mt19937 random(53);
  int tried = 0;
  int found = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_fusable(program, random, 30);
    const PlanOptions options = fused_options();
    const Plan plan = program.plan(options);
    const Results expected = program.interpret();
    const auto check = [&](const Plan& damaged) {
      ++tried;
      if (!verify_plan(program.graph, damaged, options).ok()) {
        ++found;
        return;
      }
      Plan run = damaged;
      for (FusedGroup& group : run.groups) {
        group.prepared = backend::prepare_fused(group.kernel, group.space, group.launch).ok();
      }
      INFO(to_string(program.graph));
      INFO(to_string(run));
      REQUIRE(same_values(program, program.run_plan(run), expected));
    };
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const FusedGroup& group = plan.groups[g];
      for (size_t s = 0; s < group.kernel.steps.size(); ++s) {
        Plan damaged = plan;
        auto& steps = damaged.groups[g].kernel.steps;
        steps.erase(steps.begin() + static_cast<long>(s));
        check(damaged);
        damaged = plan;
        if (backend::FusedStep& step = damaged.groups[g].kernel.steps[s]; step.input_count > 0) {
          step.inputs[0] = static_cast<uint16_t>(random() % group.kernel.values.size());
          check(damaged);
        }
      }
      for (size_t k = 0; k < group.operands.size(); ++k) {
        Plan damaged = plan;
        damaged.groups[g].space.operands[k].offset += 4;
        check(damaged);
        damaged = plan;
        for (int d = 0; d < group.space.rank; ++d) damaged.groups[g].space.operands[k].strides[d] = 0;
        check(damaged);
      }
      Plan damaged = plan;
      std::swap(damaged.groups[g].members.front(), damaged.groups[g].members.back());
      if (group.members.size() > 1) check(damaged);
      for (backend::Number& number : damaged.groups[g].numbers) number.f32 += 1;
      if (!damaged.groups[g].numbers.empty()) check(damaged);
    }
    for (size_t p = 0; p + 1 < plan.program.size(); ++p) {
      Plan damaged = plan;
      damaged.program.erase(damaged.program.begin() + static_cast<long>(p));
      REQUIRE_FALSE(verify_plan(program.graph, damaged, options).ok());
    }
  }
  CHECK(tried > 1000);
  CHECK(found * 10 > tried * 8);
}

namespace {

// What can runs on the accelerator, fused.
PlanOptions fused_remote_options() {
  PlanOptions options = remote_options();
  options.fusion = true;
  return options;
}

// An accelerator that has kernels of its own only, as a GPU has.
class WithoutHostKernels : public backend::FaultDevice {
 public:
  using FaultDevice::FaultDevice;
  bool runs_host_kernels() const override { return false; }
};

// An accelerator that cannot run fused kernels of more than so many steps.
class Picky : public backend::FaultDevice {
 public:
  Picky(backend::Device& device, size_t most) : FaultDevice(device), most_(most) {}
  bool can_fuse(const backend::FusedKernel& kernel) const override { return kernel.steps.size() <= most_; }

 private:
  const size_t most_;
};

}  // namespace

TEST_CASE("fusion: the accelerator runs groups, each as one kernel") {
  Fusable p;
  const BufferId x = p.input(24), row = p.input(6);
  const BufferId a = p.map_matrix({p.matrix(x, Access::kRead), p.row(row)});
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead), p.column(p.digest(a), Access::kRead)});
  const BufferId c = p.matmul(b);
  const BufferId d = p.map({p.read(c), p.read(b)});
  p.escape(p.map({p.read(d)}));
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 2);
  CHECK_FALSE(uses_host_only(plan));
  for (const Placement& placement : plan.placements) CHECK(placement.device == backend::kAccelerator);
  for (const BufferId inner : {a, d}) {
    CHECK(plan.residence(inner, backend::kAccelerator).home == Home::kNone);
    CHECK(plan.residence(inner, backend::kCpu).home == Home::kNone);
  }
  const Results results = p.run_plan(plan);
  CHECK(same_values(p, results, p.interpret()));
  CHECK(results.counts.kernels[backend::kAccelerator] == 3);
  CHECK(results.counts.kernels[backend::kCpu] == 0);
  CHECK(results.counts.fused_groups == 2);
  CHECK(results.counts.fused_nodes == 5);
}

TEST_CASE("fusion: nodes that may not run on the same devices do not join") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.define(test_ops().map, 24, {p.read(a)}, Preference::kCpu);
  const BufferId c = p.define(test_ops().map, 24, {p.read(b)}, Preference::kCpu);
  const BufferId d = p.map({p.read(c)});
  p.escape(d);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 3);
  CHECK(plan.groups[1].members == Members{1, 2});
  CHECK(plan.fusion[3] == FusionNote::kOtherDevice);
  CHECK(plan.placements[0].device == backend::kAccelerator);
  CHECK(plan.placements[2].device == backend::kCpu);
  CHECK(plan.placements[2].reason == Reason::kRequested);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

namespace {

PlanOptions fused_mixed_options() {
  PlanOptions options = fused_remote_options();
  options.policy = Policy::kMixed;
  return options;
}

// A product whose tail is in a group, each on one of the devices: all four ways, over programs with other nodes before them.
struct Tailed {
  BufferId product;  // nobody reads it but the group
  BufferId result;
  uint32_t node;  // of the product
};
Tailed make_tailed(Fusable& p, int before) {
  const BufferId x = p.input(24), bias = p.input(6);
  for (int i = 0; i < before; ++i) p.escape(p.matmul(x));
  const auto node = static_cast<uint32_t>(p.graph.nodes.size());
  const BufferId product = p.product(bias, x);
  const BufferId result = p.map_matrix({p.matrix(product, Access::kRead), p.matrix(x, Access::kRead)});
  p.escape(result);
  return {product, result, node};
}

const Instruction* find_body(const Plan& plan) {
  const auto found = std::ranges::find(plan.program, Kind::kBody, &Instruction::kind);
  return found == plan.program.end() ? nullptr : &*found;
}

// A product whose body fails.
OpId broken_product() {
  static const OpId op = [] {
    OpTraits traits = op_table()[test_ops().product];
    traits.name = "test::broken_product";
    traits.kernel = [](const Invocation&) { throw std::runtime_error("broken kernel"); };
    return op_table().add(traits);
  }();
  return op;
}

int ways_of(const Plan& plan) {
  return plan.placements[find_body(plan)->index].device * 2 + placement_of(plan, plan.groups.back()).device;
}

}  // namespace

TEST_CASE("fusion: a body and the group with its tail run each where it is placed") {
  int seen[4] = {};
  for (int before = 0; before < 16; ++before) {
    Fusable p;
    const Tailed made = make_tailed(p, before);
    const Plan plan = p.plan(fused_mixed_options());
    INFO(to_string(plan));
    REQUIRE(plan.groups.size() == 1);
    CHECK(plan.groups[0].members == Members{made.node, made.node + 1});
    CHECK(plan.fusion[made.node] == FusionNote::kTailJoined);
    const Instruction* const body = find_body(plan);
    REQUIRE(body != nullptr);
    CHECK(device_of(body->queue) == plan.placements[made.node].device);
    const auto copied = std::ranges::count_if(plan.program, [&](const Instruction& instruction) {
      return instruction.kind == Kind::kCopy && instruction.index == made.product;
    });
    const int way = ways_of(plan);
    ++seen[way];
    CHECK(copied == (way == 1 || way == 2));
    const Results results = p.run_plan(plan);
    CHECK(same_values(p, results, p.interpret()));
    CHECK(results.counts.fused_groups == 1);
    CHECK(results.counts.fused_nodes == 2);
    CHECK(results.counts.kernels[0] + results.counts.kernels[1] == before + 2);
    // The shares of a group's members are those of its own time.
    const Instruction group{.kind = Kind::kFused, .queue = 0, .index = 0};
    CHECK(predicted_seconds(p.graph, plan, group) ==
          static_cast<double>(plan.placements[made.node + 1].predicted_seconds));
    CHECK(parse_plan(to_string(plan)).value() == plan);
  }
  for (const int times : seen) CHECK(times > 0);
}

TEST_CASE("fusion: groups are the same wherever they are placed") {
  std::mt19937 random(57);
  int tails = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_fusable(program, random, 40);
    const Plan on_cpu = program.plan(fused_options());
    for (const Policy policy : {Policy::kAuto, Policy::kCpu, Policy::kAccelerator, Policy::kMixed}) {
      PlanOptions options = fused_remote_options();
      options.policy = policy;
      const Plan plan = program.plan(options);
      REQUIRE(plan.groups == on_cpu.groups);
      REQUIRE(plan.fusion == on_cpu.fusion);
      tails += policy == Policy::kAccelerator && find_body(plan) != nullptr;
      INFO(to_string(program.graph));
      INFO(to_string(plan));
      REQUIRE(same_values(program, program.run_plan(plan), program.interpret()));
    }
  }
  CHECK(tails > 20);
}

TEST_CASE("fusion: a body that fails on one device loses what its tail would have written on another") {
  int seen[4] = {};
  for (int before = 0; before < 16; ++before) {
    Fusable p;
    const Tailed made = make_tailed(p, before);
    const BufferId other = p.map_matrix({p.matrix(made.result, Access::kRead)});
    p.escape(other);
    const BufferId healthy = p.map_matrix({p.matrix(0, Access::kRead)});
    p.escape(healthy);
    const Plan plan = p.plan(fused_mixed_options());
    const Results expected = p.interpret();
    ++seen[ways_of(plan)];
    p.graph.nodes[made.node].op = broken_product();
    const Results got = p.run_plan(plan);
    INFO(to_string(plan));
    CHECK(got.status.message() == "test::broken_product: broken kernel");
    CHECK_FALSE(got.bindings[made.result].error.ok());
    CHECK_FALSE(got.bindings[other].error.ok());
    CHECK(got.bindings[healthy].error.ok());
    CHECK(got.values[healthy] == expected.values[healthy]);
  }
  for (const int times : seen) CHECK(times > 0);
}

TEST_CASE("fusion: random programs with failing nodes end on two devices as the interpreter does") {
  std::mt19937 random(58);
  int poisoned = 0;
  int bodies = 0;
  for (int round = 0; round < 150; ++round) {
    Program program;
    make_fusable(program, random, 40);
    const Plan plan = program.plan(round % 2 == 0 ? fused_mixed_options() : fused_remote_options());
    bool lost_product = false;
    for (Node& node : program.graph.nodes) {
      if (random() % 8 != 0 || (node.op != test_ops().product && node.op != test_ops().matmul)) continue;
      lost_product |= node.op == test_ops().product;
      node.op = node.op == test_ops().product ? broken_product() : test_ops().throws;
    }
    bodies += lost_product;
    poisoned += lost_as_interpreted(program, plan);
  }
  CHECK(poisoned > 50);
  CHECK(bodies > 10);
}

namespace {

// x [4,6] and a limit for each row -> the map of both. Limits above one are an error.
void run_guarded(const Invocation& call) {
  const auto* const x = static_cast<const float*>(call.data[0]);
  const auto* const limits = static_cast<const float*>(call.data[1]);
  auto* const out = static_cast<float*>(call.data[2]);
  for (int row = 0; row < 4; ++row) {
    if (limits[row] > 1) throw std::runtime_error("limit out of range");
  }
  for (int i = 0; i < 24; ++i) out[i] = 0.5f * x[i] + limits[i / 6];
}

void guarded_block(void* out, const void* const* in, const backend::Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<float*>(out)[i] = 0.5f * static_cast<const float*>(in[0])[i] + static_cast<const float*>(in[1])[i];
  }
}

void allowed_block(void* out, const void* const* in, const backend::Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) static_cast<bool*>(out)[i] = !(static_cast<const float*>(in[0])[i] > 1);
}

bool lower_guarded(const LowerRequest&, Lowering& lowering) {
  const DType f32 = parse_dtype("f32");
  lowering.reduced = 2;
  const Lowering::Ref x = lowering.operand(0, f32);
  const Lowering::Ref limit = lowering.row_operand(1, f32);
  lowering.check(lowering.map(allowed_block, parse_dtype("bool"), {limit}));
  lowering.output(2, lowering.map(guarded_block, f32, {x, limit}));
  return true;
}

OpId guarded_op() {
  static const OpId op = op_table().add(
      {.name = "test::guarded", .op_class = OpClass::kNormalization, .kernel = run_guarded, .lower = lower_guarded});
  return op;
}

// map(x) -> guarded -> map, and what does not depend on the one that may fail.
struct Guarded {
  BufferId limits;
  BufferId before;
  BufferId result;
  BufferId beside;
};
Guarded make_guarded(Fusable& p) {
  const BufferId x = p.input(24), limits = p.input(4);
  const BufferId before = p.map_matrix({p.matrix(x, Access::kRead)});
  const BufferId middle = p.empty(24);
  p.add(guarded_op(), {p.matrix(before, Access::kRead), p.operand(limits, Access::kRead, {4}, {1}, 0),
                       p.matrix(middle, Access::kDefine)});
  const BufferId inner = p.map_matrix({p.matrix(before, Access::kRead)});
  const BufferId beside = p.map_matrix({p.matrix(inner, Access::kRead)});
  const BufferId result = p.map_matrix({p.matrix(middle, Access::kRead), p.matrix(inner, Access::kRead)});
  for (const BufferId b : {before, beside, result}) p.escape(b);
  return {limits, before, result, beside};
}

Results run_with_limits(Fusable& p, const Plan& plan, BufferId limits, float value) {
  Results results;
  results.bindings = p.bind(test_devices());
  auto* const bytes = static_cast<float*>(results.bindings[limits].blocks[backend::kCpu].data());
  for (int row = 0; row < 4; ++row) bytes[row] = row == 2 ? value : 0.25f;
  Executor executor(test_devices());
  results.status = executor.run(p.graph, plan, p.pointers(results.bindings), results.counts);
  p.read_values(results, test_devices());
  return results;
}

}  // namespace

TEST_CASE("fusion: where a check fails on the accelerator, the operator raises and the other members run") {
  Fusable p;
  const Guarded made = make_guarded(p);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 1);
  REQUIRE(plan.groups[0].members.size() == 5);
  REQUIRE(plan.groups[0].has_checks());
  CHECK(plan.groups == p.plan(fused_options()).groups);
  const Plan unfused = p.plan(cpu_options());
  for (const float limit : {0.5f, 2.0f}) {
    const Results expected = run_with_limits(p, unfused, made.limits, limit);
    const Results got = run_with_limits(p, plan, made.limits, limit);
    CHECK(got.status.ok() == (limit < 1));
    CHECK(got.status.ok() == expected.status.ok());
    CHECK(got.counts.kernels[backend::kCpu] == 0);
    CHECK(got.counts.kernels[backend::kAccelerator] == (limit < 1 ? 1 : 4));
    CHECK(got.counts.fused_groups == (limit < 1 ? 1 : 0));
    CHECK(got.counts.skipped == (limit < 1 ? 0 : 1));
    if (!got.status.ok()) {
      CHECK(got.status.message() == "test::guarded: limit out of range");
      CHECK(got.status.message() == expected.status.message());
    }
    for (const BufferId b : {made.before, made.beside, made.result}) {
      CHECK(got.bindings[b].error.ok() == expected.bindings[b].error.ok());
      if (expected.bindings[b].error.ok()) CHECK(got.values[b] == expected.values[b]);
    }
  }
}

TEST_CASE("fusion: an accelerator that cannot check runs what checks alone, and the rest in groups") {
  class NoChecks : public backend::FaultDevice {
   public:
    explicit NoChecks(backend::Device& device) : FaultDevice(device) {}
    bool can_fuse(const backend::FusedKernel& kernel) const override {
      return std::ranges::none_of(
          kernel.steps, [](const backend::FusedStep& step) { return step.kind == backend::FusedStep::Kind::kCheck; });
    }
  };
  Fusable p;
  make_guarded(p);
  const NoChecks device(*test_devices()[backend::kAccelerator]);
  PlanOptions options = fused_remote_options();
  options.accelerator_device = &device;
  const Plan plan = p.plan(options);
  for (const FusedGroup& group : plan.groups) CHECK_FALSE(group.has_checks());
  CHECK(plan.groups.size() == 2);
  CHECK(plan.fusion[1] == FusionNote::kNoLowering);
  Plan damaged = p.plan(fused_remote_options());
  CHECK_FALSE(verify_plan(p.graph, damaged, options).ok());
  // On the CPU alone nothing stands in the way.
  options.policy = Policy::kCpu;
  CHECK(p.plan(options).groups.size() == 1);
}

TEST_CASE("fusion: what the accelerator cannot run as a group it runs node by node") {
  Fusable p;
  const BufferId x = p.input(24), y = p.input(24);
  BufferId a = x;
  for (int i = 0; i < 6; ++i) a = p.map({p.read(a)});
  p.escape(a);
  p.escape(p.map({p.read(p.map({p.read(p.matmul(y))}))}));
  const Picky picky(*test_devices()[backend::kAccelerator], 5);
  PlanOptions options = fused_remote_options();
  options.accelerator_device = &picky;
  const Plan plan = p.plan(options);
  REQUIRE(plan.groups.size() == 1);
  CHECK(plan.groups[0].members == Members{7, 8});
  const Results results = p.run_plan(plan);
  CHECK(same_values(p, results, p.interpret()));
  CHECK(results.counts.kernels[backend::kAccelerator] == 8);
}

TEST_CASE("fusion: a poisoned input of a group on a queue reaches what depends on it, and nothing else") {
  const Devices& host = test_devices();
  WithoutHostKernels gpu(*host[backend::kAccelerator]);
  for (const Devices& devices : {host, Devices{host[backend::kCpu], &gpu}}) {
    for (const bool remote : {false, true}) {
      Fusable p;
      const BufferId x = p.input(24);
      const BufferId broken = p.define(test_ops().throws, 24, {p.read(x)});
      const BufferId healthy = p.map({p.read(x)});
      const BufferId sum = p.map({p.read(healthy), p.read(broken)});
      const BufferId after = p.map({p.read(sum)});
      const BufferId other = p.map({p.read(healthy)});
      for (const BufferId b : {healthy, sum, after, other}) p.escape(b);
      if (!remote) {
        for (Node& node : p.graph.nodes) node.preference = Preference::kCpu;
        // Something that makes a program of two devices of it.
        p.escape(p.define(test_ops().matmul, 24, {p.read(x)}, Preference::kAccelerator));
      }
      const Plan plan = p.plan(fused_remote_options());
      REQUIRE(plan.groups.size() == 1);
      REQUIRE(plan.groups[0].members.size() == 4);
      REQUIRE_FALSE(uses_host_only(plan));
      const Results results = p.run_plan(plan, devices);
      CHECK_FALSE(results.status.ok());
      CHECK_FALSE(results.bindings[sum].error.ok());
      CHECK_FALSE(results.bindings[after].error.ok());
      const Results expected = p.interpret();
      for (const BufferId b : {healthy, other}) {
        CHECK(results.bindings[b].error.ok());
        CHECK(results.values[b] == expected.values[b]);
      }
      CHECK(results.counts.skipped == 2);
      // What has the CPU's kernels runs what is healthy by itself.
      const bool by_itself = !remote || devices[backend::kAccelerator]->runs_host_kernels();
      CHECK(results.counts.fused_groups == (by_itself ? 0 : 1));
    }
  }
}

TEST_CASE("fusion: a tail that could not be submitted is an error, also where its body runs later") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Fusable p;
    const BufferId x = p.input(24, 1u << backend::kAccelerator);
    const BufferId product = p.product(p.input(6, 1u << backend::kAccelerator), x);
    const BufferId after = p.map({p.read(product)});
    for (const BufferId b : {product, after}) p.escape(b);
    const Plan plan = p.plan(fused_remote_options());
    REQUIRE(plan.groups.size() == 1);
    REQUIRE(std::ranges::count(plan.program, Instruction::Kind::kBody, &Instruction::kind) == 1);
    // Pauses before what it runs.
    const auto sim = backend::SimDevice::create({.schedule_seed = seed});
    REQUIRE(sim.ok());
    backend::FaultDevice faulty(*sim.value());
    faulty.fail(backend::FaultKind::kLaunch, 2);
    const Results results = p.run_plan(plan, {test_devices()[backend::kCpu], &faulty});
    CHECK_FALSE(results.status.ok());
    CHECK_FALSE(results.bindings[product].error.ok());
    CHECK_FALSE(results.bindings[after].error.ok());
  }
}

TEST_CASE("fusion: what a poisoned group on a queue was to change is as it was before") {
  const Devices& host = test_devices();
  WithoutHostKernels gpu(*host[backend::kAccelerator]);
  const Devices devices{host[backend::kCpu], GENERATE(false, true) ? &gpu : host[backend::kAccelerator]};
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId state = p.input(24, 1u << backend::kAccelerator);
  p.escape(state);
  const BufferId broken = p.define(test_ops().throws, 24, {p.read(x)});
  const BufferId healthy = p.map({p.read(x)});
  const BufferId sum = p.map({p.read(healthy), p.read(broken)});
  p.add(test_ops().map, {p.read(sum), p.write(state)});
  for (const BufferId b : {healthy, sum}) p.escape(b);
  const Plan plan = p.plan(fused_remote_options());
  REQUIRE(plan.groups.size() == 1);
  REQUIRE(plan.groups[0].members.size() == 3);
  Results before;
  before.bindings = p.bind(devices);
  p.read_values(before, devices);
  const Results results = p.run_plan(plan, devices);
  CHECK_FALSE(results.bindings[state].error.ok());
  CHECK(results.values[state] == before.values[state]);
  // What is healthy needs a kernel of its own.
  const bool by_itself = devices[backend::kAccelerator]->runs_host_kernels();
  CHECK(results.bindings[healthy].error.ok() == by_itself);
  if (by_itself) CHECK(results.values[healthy] == p.interpret().values[healthy]);
}

TEST_CASE("fusion: a group that would not fit into the accelerator's memory runs on the CPU") {
  Fusable p;
  std::vector<BufferId> inputs;
  for (int i = 0; i < 6; ++i) inputs.push_back(p.input(256));
  BufferId sum = inputs[0];
  for (int i = 1; i < 6; ++i) sum = p.map({p.read(sum), p.read(inputs[static_cast<size_t>(i)])}, 256);
  const BufferId small = p.map({p.read(p.matmul(p.input(24)))});
  p.escape(sum);
  p.escape(small);
  PlanOptions options = fused_remote_options();
  options.accelerator_bytes = 4096;
  const Plan plan = p.plan(options);
  CHECK(plan.placements[0].device == backend::kCpu);
  CHECK(plan.placements[0].reason == Reason::kNoMemory);
  CHECK(plan.placements.back().device == backend::kAccelerator);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

}  // namespace hetero::graph::testing
