// merge_repeated: what is computed twice is computed once, and nothing else changes.

#include "graph/optimize/merge_repeated.h"

#include <random>
#include <utility>

#include "graph/optimize/fold_constants.h"
#include "graph/program/verify_program.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/saved.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

// Nodes of few kinds over few buffers, some of which are written again.
void make_repetitive(Program& p, std::mt19937& random, int nodes) {
  std::vector<BufferId> buffers{p.input(8), p.input(8)};
  const BufferId state = p.input(8);
  for (int i = 0; i < nodes; ++i) {
    const auto any = [&] { return p.read(random() % 4 == 0 ? state : buffers[random() % buffers.size()]); };
    const auto constant = static_cast<float>(1 + random() % 2);
    if (random() % 8 == 0) {
      p.add(test_ops().pointwise, {p.update(random() % 2 == 0 ? state : buffers.back()), any()}, Preference::kAuto,
            constant);
    } else {
      buffers.push_back(p.define(test_ops().pointwise, 8, {any(), any()}, Preference::kAuto, constant));
      if (random() % 3 == 0) p.escape(buffers.back());
    }
  }
  p.escape(buffers.back());
  p.escape(state);
}

}  // namespace

TEST_CASE("what is made of the same is made once, and so is what is made of that") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId a = p.define(test_ops().pointwise, 8, {p.read(x)});
  const BufferId b = p.define(test_ops().pointwise, 8, {p.read(x)});
  const BufferId of_a = p.define(test_ops().pointwise, 8, {p.read(a), p.read(x)});
  const BufferId of_b = p.define(test_ops().pointwise, 8, {p.read(b), p.read(x)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(of_a), p.read(of_b)}));
  auto saved = save(p);
  CHECK(merge_repeated(*saved) == 2);
  CHECK(saved->graph.nodes.size() == 3);
  CHECK(verify_program(*saved).ok());
  CHECK(outputs_of(std::move(saved), p) == outputs_of(save(p), p));
}

TEST_CASE("other numbers, devices and order of operands make another node") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId y = p.input(8);
  const BufferId all[] = {p.define(test_ops().pointwise, 8, {p.read(x), p.read(y)}),
                          p.define(test_ops().pointwise, 8, {p.read(y), p.read(x)}),
                          p.define(test_ops().pointwise, 8, {p.read(x), p.read(y)}, Preference::kAuto, 2.0f),
                          p.define(test_ops().pointwise, 8, {p.read(x), p.read(y)}, Preference::kCpu)};
  for (const BufferId it : all) p.escape(p.define(test_ops().pointwise, 8, {p.read(it)}));
  CHECK(merge_repeated(*save(p)) == 0);
}

TEST_CASE("what reads a buffer that was written in between is not the same") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId state = p.input(8);
  const BufferId before = p.define(test_ops().pointwise, 8, {p.read(state)});
  p.add(test_ops().pointwise, {p.update(state), p.read(x)});
  const BufferId after = p.define(test_ops().pointwise, 8, {p.read(state)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(before), p.read(after)}));
  CHECK(merge_repeated(*save(p, {state})) == 0);
}

TEST_CASE("what is written once more, seen outside or has effects stays") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId a = p.define(test_ops().pointwise, 8, {p.read(x)});
  const BufferId changed = p.define(test_ops().pointwise, 8, {p.read(x)});
  p.add(test_ops().pointwise, {p.update(changed), p.read(x)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(a), p.read(changed)}));
  p.escape(p.define(test_ops().pointwise, 8, {p.read(x)}));
  for (int i = 0; i < 2; ++i)
    p.escape(p.define(test_ops().pointwise, 8, {p.read(p.define(test_ops().effect, 8, {p.read(x)}))}));
  CHECK(merge_repeated(*save(p)) == 0);
}

TEST_CASE("operands that are seen otherwise make another node") {
  Program p;
  const BufferId x = p.input(8);
  Operand conjugate = p.read(x);
  conjugate.bits = kConjugate;
  for (const Operand& it : {p.read(x), conjugate, p.operand(x, Access::kRead, {8}, {0}, 0)}) {
    p.escape(p.define(test_ops().pointwise, 8, {p.read(p.define(test_ops().pointwise, 8, {it}))}));
  }
  CHECK(merge_repeated(*save(p)) == 0);
}

TEST_CASE("what follows from the sizes of inputs in another way is not the same") {
  for (const int64_t factor : {1, 2}) {
    Program p;
    const BufferId x = p.input(8);
    const BufferId a = p.define(test_ops().pointwise, 8, {p.read(x)});
    const BufferId b = p.define(test_ops().pointwise, 8, {p.read(x)});
    p.escape(p.define(test_ops().pointwise, 8, {p.read(a), p.read(b)}));
    auto saved = save(p);
    const auto number = [](uint32_t node, int64_t times) {
      return DynamicSizes::Number{.node = node, .place = 0, .real = false, .value = {{times, {0}}}};
    };
    saved->dynamic.variables = {{.name = "n"}};
    saved->dynamic.numbers = {number(0, 1), number(1, factor)};
    CHECK(merge_repeated(*saved) == (factor == 1 ? 1 : 0));
    CHECK(saved->dynamic.numbers.size() == (factor == 1 ? 1 : 2));
  }
}

TEST_CASE("calls of operators of libraries are neither made one nor made ahead of time") {
  const OpId foreign = [] {
    OpTraits traits = op_table()[test_ops().pointwise];
    traits.name = "test::foreign";
    traits.is_foreign = true;
    return op_table().add(std::move(traits));
  }();
  Program p;
  const BufferId x = p.input(8);
  const BufferId w = p.input(8);
  const BufferId ahead = p.define(foreign, 8, {p.read(w)});
  const BufferId a = p.define(foreign, 8, {p.read(x)});
  const BufferId b = p.define(foreign, 8, {p.read(x)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(a), p.read(b), p.read(ahead)}));
  auto saved = save(p, {w});
  CHECK(merge_repeated(*saved) == 0);
  REQUIRE(fold_constants(*saved).ok());
  CHECK(saved->graph.nodes.size() == 4);
}

TEST_CASE("random numbers are drawn each time") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId a = p.define(test_ops().random, 8, {});
  const BufferId b = p.define(test_ops().random, 8, {});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(a), p.read(b), p.read(x)}));
  CHECK(merge_repeated(*save(p)) == 0);
}

TEST_CASE("small constants of the same bytes are the same") {
  for (const bool same : {true, false}) {
    Program p;
    const BufferId x = p.input(8);
    const BufferId c = p.input(1);
    const BufferId d = p.input(1);
    const auto with = [&](BufferId constant) {
      return p.define(test_ops().pointwise, 8, {p.read(x), p.read(constant)});
    };
    p.escape(p.define(test_ops().pointwise, 8, {p.read(with(c)), p.read(with(d))}));
    auto saved = save(p, {c, d});
    if (same) {
      for (ProgramConstant& constant : saved->constants) constant.bytes = block_of("\x01\x02\x03\x04");
    }
    CHECK(merge_repeated(*saved) == (same ? 1 : 0));
    CHECK(saved->constants.size() == (same ? 1 : 2));
  }
}

TEST_CASE("programs without repetition compute what they did") {
  std::mt19937 random(12);
  size_t merged = 0;
  for (int i = 0; i < 200; ++i) {
    Program p;
    make_repetitive(p, random, 3 + i / 5);
    const auto expected = outputs_of(save(p), p);
    auto saved = save(p);
    merged += merge_repeated(*saved);
    INFO(to_string(saved->graph));
    REQUIRE(verify_program(*saved).ok());
    CHECK(outputs_of(std::move(saved), p) == expected);
  }
  CHECK(merged > 50);
}

}  // namespace hetero::graph::testing
