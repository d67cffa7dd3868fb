// What is fused, that it computes the same bits, and that what needs no memory has none.

#include "graph/fusion/fusion.h"

#include <cstring>
#include <random>
#include <utility>

#include "graph/fusion/group_builder.h"
#include "graph/ir/lowering.h"
#include "graph/verify/verify.h"
#include "tests/graph/fusion/fusable.h"

namespace hetero::graph::testing {

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

TEST_CASE("fusion: numbers that have nothing to do with each other are one group") {
  Fusable p;
  const BufferId shared = p.input(24);
  std::vector<BufferId> rates;
  for (int i = 0; i < 8; ++i) rates.push_back(p.map({p.read(p.input(1))}, 1));
  for (BufferId& rate : rates) rate = p.map({p.read(rate)}, 1);
  // What reads one of them in another space comes behind all of them.
  const BufferId weight =
      p.map_matrix({p.operand(rates[3], Access::kRead, {4, 6}, {0, 0}, 0), p.matrix(shared, Access::kRead)});
  p.escape(weight);
  for (const BufferId rate : rates) p.escape(rate);
  p.check();
  const std::vector<Members> groups = p.groups();
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].size() == 16);
  CHECK(groups[1] == Members{16});
}

TEST_CASE("fusion: a number that waits for a group's reader does not join that group") {
  Fusable p;
  const BufferId a = p.map({p.read(p.input(1))}, 1);
  const BufferId b = p.define(test_ops().matmul, 1, {p.read(a)});
  const BufferId c = p.map({p.read(b)}, 1);
  const BufferId d = p.map({p.read(p.input(1))}, 1);
  for (const BufferId end : {a, c, d}) p.escape(end);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{0}, {2, 3}});
}

TEST_CASE("fusion: a number that is read from much memory does not wait for others") {
  Fusable p;
  const BufferId large = p.define(test_ops().matmul, 1024, {p.read(p.input(1024))});
  const BufferId first = p.empty(1), other = p.input(1);
  p.add(test_ops().map, {p.operand(large, Access::kRead, {1}, {1}, 0), p.operand(first, Access::kDefine, {1}, {1}, 0)});
  const BufferId second = p.map({p.read(other)}, 1);
  for (const BufferId end : {first, second}) p.escape(end);
  p.check();
  CHECK(p.groups() == std::vector<Members>{{1}, {2}});
}

TEST_CASE("fusion: numbers of many tensors stay in groups of bounded size") {
  Fusable p;
  for (int i = 0; i < 200; ++i) {
    const BufferId count = p.input(1);
    p.escape(count);
    p.add(test_ops().map, {p.update(count)});
  }
  p.check();
  const Plan plan = p.plan(fused_options());
  CHECK(plan.groups.size() == 25);
  for (const FusedGroup& group : plan.groups) CHECK(group.members.size() == 8);
}

TEST_CASE("fusion: groups that are too large together stay apart, and no member is lost") {
  for (int first = GroupBuilder::kMaxSteps - 8; first < static_cast<int>(GroupBuilder::kMaxSteps); ++first) {
    Fusable p;
    const BufferId a = p.input(24), b = p.input(24);
    for (int i = 0; i < first - 4; ++i) p.add(test_ops().map, {p.update(a)});
    BufferId c = b;
    for (int i = 0; i < 4; ++i) c = p.map({p.read(c), p.read(b)});
    p.escape(p.map({p.read(a), p.read(c)}));
    p.escape(a);
    p.check();
  }
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
  CHECK(p.groups() == std::vector<Members>{{0}});
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

}  // namespace hetero::graph::testing
