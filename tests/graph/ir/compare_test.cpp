// Two recordings are the same program for other sizes, or it is said what differs first.

#include "graph/ir/compare.h"

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using Kind = Difference::Kind;

// y = f(x), z = x + y; z escapes.
struct Recording {
  Program p;
  explicit Recording(int64_t count) {
    const BufferId x = p.input(count);
    const BufferId y = p.define(test_ops().pointwise, count, {p.read(x)});
    p.escape(p.define(test_ops().pointwise, count, {p.read(x), p.read(y)}));
  }
  Graph& graph() { return p.graph; }
};

Difference difference(Recording& a, Recording& b, bool (*same_window)(const Window&, const Window&) = &same_kind) {
  return compare(a.graph(), b.graph(), same_window,
                 [&](const Node& x, const Node& y) { return same_arguments(a.graph(), x, b.graph(), y); });
}

}  // namespace

TEST_CASE("compare: sizes may differ") {
  Recording a(16), b(32);
  CHECK(difference(a, a).kind == Kind::kNone);
  CHECK(difference(a, b).kind == Kind::kNone);
}

TEST_CASE("compare: the first difference that is none of sizes is named") {
  Recording a(16), b(16);
  SECTION("another operator") {
    b.graph().nodes[1].op = test_ops().matmul;
    CHECK(difference(a, b).kind == Kind::kCall);
    CHECK(difference(a, b).node == 1);
  }
  SECTION("another preference") {
    b.graph().nodes[0].preference = Preference::kCpu;
    CHECK(difference(a, b).kind == Kind::kCall);
    CHECK(difference(a, b).node == 0);
  }
  SECTION("another buffer") {
    b.graph().operands[b.graph().nodes[1].first_operand + 1].buffer = 0;
    CHECK(difference(a, b).kind == Kind::kOperands);
    CHECK(difference(a, b).node == 1);
  }
  SECTION("another access") {
    b.graph().operands[0].access = Access::kUpdate;
    CHECK(difference(a, b).kind == Kind::kOperands);
  }
  SECTION("other bits") {
    b.graph().operands[0].bits = kConjugate;
    CHECK(difference(a, b).kind == Kind::kOperands);
  }
  SECTION("other arguments, where somebody compares them") {
    REQUIRE(a.graph().nodes[1].attribute_bytes > 0);
    b.graph().attributes[b.graph().nodes[1].attribute_offset] ^= std::byte{1};
    CHECK(difference(a, b).kind == Kind::kArguments);
    CHECK(difference(a, b).node == 1);
    CHECK(compare(a.graph(), b.graph(), &same_kind, nullptr).kind == Kind::kNone);
  }
  SECTION("more calls") {
    b.p.define(test_ops().pointwise, 16, {b.p.read(0)});
    CHECK(difference(a, b).kind == Kind::kCount);
    CHECK(difference(b, a).kind == Kind::kCount);
  }
  SECTION("another escape") {
    b.p.escape(1);
    CHECK(difference(a, b).kind == Kind::kBuffers);
  }
}

TEST_CASE("compare: a dimension of one is of another kind, and of the same rank") {
  Recording a(16), b(1);
  CHECK(difference(a, b).kind == Kind::kOperands);
  CHECK(difference(a, b, &same_rank).kind == Kind::kNone);
}

}  // namespace hetero::graph::testing
