// What a node is thought to touch, by the kind of its operator.

#include "graph/cost/cost.h"

#include <array>

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

constexpr double kFloat = sizeof(float);

Work work_of_last(const Program& p) { return work_of(p.graph, p.graph.nodes.back()); }

}  // namespace

TEST_CASE("cost: a lookup touches no more of a table than it makes") {
  Program p;
  const BufferId table = p.input(1 << 20);
  p.define(test_ops().indexing, 64, {p.read(table), p.read(p.input(4))});
  CHECK(work_of_last(p).bytes == (64 + 4 + 64) * kFloat);
}

TEST_CASE("cost: what is written to places touches no more than is written") {
  Program p;
  const BufferId target = p.input(1 << 20);
  p.add(test_ops().indexing, {p.write(target), p.read(p.input(64)), p.read(p.input(4))});
  CHECK(work_of_last(p).bytes == (64 + 64 + 4) * kFloat);
}

TEST_CASE("cost: attention over pages reads the pages in its table") {
  static const OpId attention =
      op_table().add({.name = "test::attention", .op_class = OpClass::kAttention, .kernel = [](const Invocation&) {}});
  constexpr int64_t kPages = 1000, kHeads = 2, kTokens = 16, kSize = 8;
  const auto work_with = [&](int64_t sequences, int64_t width) {
    Program p;
    const BufferId pages = p.input(kPages * kHeads * kTokens * kSize);
    const BufferId table = p.input(sequences * width);
    const BufferId query = p.input(sequences * kHeads * kSize);
    const std::array<int64_t, 2> sizes{sequences, width};
    Operand tables = p.read(table);
    tables.window = p.windows.intern_contiguous(parse_dtype("i32"), sizes);
    const Operand cache = p.operand(pages, Access::kRead, {kPages, kHeads, kTokens, kSize},
                                    {kHeads * kTokens * kSize, kTokens * kSize, kSize, 1}, 0);
    p.define(attention, sequences * kHeads * kSize, {p.read(query), cache, cache, tables});
    return work_of_last(p);
  };
  const double page = kHeads * kTokens * kSize * kFloat;
  const double others = (2 * 3 * kHeads * kSize + 3 * 4) * kFloat;  // query, result, table
  CHECK(work_with(3, 4).bytes == 2 * 12 * page + others);
  CHECK(work_with(3, 4).flops == 4 * (3 * kHeads * kSize) * (4 * kTokens));
  // A table may name pages more than once; there are no more than all.
  CHECK(work_with(3, 4000).bytes < 2 * kPages * page + 1e6);
}

}  // namespace hetero::graph::testing
