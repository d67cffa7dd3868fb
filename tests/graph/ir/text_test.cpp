// Windows, graphs and plans print, and parse back to the same.

#include <string>

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

std::string window_text(WindowTable& table, const std::string& text) {
  const WindowId id = parse_window(text, table);
  return id == kNoWindow ? "" : to_string(table[id]);
}

}  // namespace

TEST_CASE("every dtype has a size and a name of its own") {
  for (int i = 0; i < 46; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_bytes(dtype) > 0);
    CHECK(parse_dtype(dtype_name(dtype)) == dtype);
  }
  CHECK(dtype_bytes(parse_dtype("bf16")) == 2);
  CHECK(parse_dtype("i64") == 4);  // c10::ScalarType::Long
  CHECK(parse_dtype("no such") == -1);
}

TEST_CASE("a window prints and parses back") {
  WindowTable table;
  for (const std::string text :
       {"f32[2,3]", "f32[]", "i64[0,4]", "bf16[2,3]{1,2}+4", "bool[3]{0}+0", "f64[2,1,3]{3,3,1}+1"}) {
    CHECK(window_text(table, text) == text);
  }
  for (const std::string text : {"f32", "f33[2]", "f32[2", "f32[2]{1,1}+0", "f32[2]{1}", "f32[-2]", "f32[2] more"}) {
    CHECK(parse_window(text, table) == kNoWindow);
  }
}

TEST_CASE("equal windows have one id, others have others") {
  WindowTable table;
  const WindowId a = table.intern(6, {{2, 3}}, {{3, 1}}, 0);
  CHECK(table.intern(6, {{2, 3}}, {{3, 1}}, 0) == a);
  CHECK(table.intern_contiguous(6, {{2, 3}}) == a);
  CHECK(table.intern(6, {{2, 3}}, {{3, 1}}, 1) != a);
  CHECK(table.intern(7, {{2, 3}}, {{3, 1}}, 0) != a);
  CHECK(table.intern(6, {{3, 2}}, {{3, 1}}, 0) != a);
  CHECK(table.intern(6, {{2, 3}}, {{1, 2}}, 0) != a);
  CHECK(table.size() == 5);

  // More windows than the first index and the first chunk hold; none moves or is lost.
  const Window* const first = &table[a];
  for (int64_t i = 0; i < 5000; ++i) table.intern(6, {{i, 7}}, {{7, 1}}, i);
  CHECK(&table[a] == first);
  for (int64_t i = 0; i < 5000; ++i) {
    const WindowId id = table.intern(6, {{i, 7}}, {{7, 1}}, i);
    REQUIRE(table[id].equals(6, {{i, 7}}, {{7, 1}}, i));
  }
  CHECK(table.size() == 5005);
}

TEST_CASE("a window knows its extent and whether it is dense") {
  WindowTable table;
  const auto window = [&table](const char* text) { return table[parse_window(text, table)]; };
  const Window transposed = window("f32[2,3]{1,2}+4");
  CHECK(transposed.first_byte == 16);
  CHECK(transposed.last_byte == 40);
  CHECK(transposed.dense);
  CHECK_FALSE(transposed.contiguous);
  const Window column = window("f32[3]{2}+1");
  CHECK(column.last_byte == 24);
  CHECK_FALSE(column.dense);
  CHECK_FALSE(window("f32[3,4]{0,1}+0").dense);
  CHECK_FALSE(window("f32[2,2]{1,1}+0").dense);
  CHECK(window("f32[4,1,5]{5,77,1}+0").contiguous);
  CHECK(window("f32[3,1,2,4]{1,99,12,3}+0").dense);
  CHECK(window("f32[0,3]{9,9}+2").dense);
  CHECK(window("f32[0,3]{9,9}+2").last_byte == 8);
  CHECK(window("f32[]").dense);
  CHECK(window("f32[2]{1}+2").disjoint(window("f32[2]")));
  CHECK_FALSE(window("f32[2]{1}+1").disjoint(window("f32[2]")));
}

TEST_CASE("a graph prints and parses back") {
  test_ops();
  const std::string text =
      "b0: 64 bytes, on cpu\n"
      "b1: 64 bytes, escapes\n"
      "b2: 128 bytes, on cpu+accelerator, escapes\n"
      "n0: test::pointwise(read b0:f32[4,4], read b0:f32[4]{1}+4 wrapped) -> b1:f32[4,4] {0a0b}\n"
      "n1: test::matmul(update b2:f32[4,4]{1,4}+8 conj neg, write b1:f32[4]) @accelerator #17\n"
      "n2: test::effect() @cpu\n";
  WindowTable windows;
  const Result<Graph> graph = parse_graph(text, windows);
  INFO((graph.ok() ? "" : graph.status().message()));
  REQUIRE(graph.ok());
  CHECK(to_string(graph.value()) == text);
  CHECK(graph.value().nodes[1].sequence == 17);
  CHECK(graph.value().nodes[0].output_count == 1);
}

TEST_CASE("text that is no graph is refused with its line") {
  WindowTable windows;
  for (const std::string line :
       {"b5: 1 bytes", "n0: no::such() ", "n0: test::matmul(read b0:f32)", "n0: test::matmul(read b0:f32[1]", "what",
        "b0: 4 bytes, on moon", "n0: test::matmul() {abc}"}) {
    const Result<Graph> graph = parse_graph("# comment\n" + line, windows);
    REQUIRE_FALSE(graph.ok());
    CHECK(graph.status().error_class() == ErrorClass::kUsage);
    CHECK(graph.status().message().find("line 2") == 0);
  }
}

TEST_CASE("a plan prints and parses back to an equal plan") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Program program;
    make_random(program, random, 40, true);
    const Plan plan = program.plan(mixed_options());
    const std::string text = to_string(plan);
    const Result<Plan> parsed = parse_plan(text);
    INFO(text);
    REQUIRE(parsed.ok());
    CHECK(parsed.value() == plan);
    CHECK(to_string(parsed.value()) == text);
  }
}

TEST_CASE("a random graph prints and parses back") {
  std::mt19937 random(8);
  for (int round = 0; round < 20; ++round) {
    Program program;
    make_random(program, random, 40, true);
    const std::string text = to_string(program.graph);
    const Result<Graph> parsed = parse_graph(text, program.windows);
    REQUIRE(parsed.ok());
    CHECK(to_string(parsed.value()) == text);
  }
}

TEST_CASE("text that is no plan is refused") {
  for (const char* text :
       {"", "plan: 1 nodes", "plan: 99999999999 nodes, 1 buffers, 0 events\n",
        "plan: 1 nodes, 1 buffers, 0 events\nn3: dead\n", "plan: 1 nodes, 1 buffers, 0 events\nb0: on cpu somewhere\n",
        "plan: 1 nodes, 1 buffers, 0 events\np0: cpu compute: jump n0\n"}) {
    const Result<Plan> plan = parse_plan(text);
    REQUIRE_FALSE(plan.ok());
    CHECK(plan.status().error_class() == ErrorClass::kUsage);
  }
}

}  // namespace hetero::graph::testing
