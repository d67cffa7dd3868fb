// What a planned program looks like as data: JSON with a field for each thing that
// torch_hetero/report.py names.

#include "graph/report/describe.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "graph/cost/cost.h"
#include "graph/cost/simulate.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

// y = x @ x on the accelerator, z = x * x on the CPU; y comes back.
struct Described {
  Program p;
  BufferId x = p.input(64);
  BufferId y = p.define(test_ops().matmul, 64, {p.read(x)}, Preference::kAccelerator);
  BufferId z = p.define(test_ops().pointwise, 64, {p.read(x), p.read(y)}, Preference::kCpu);
  PlanOptions options = both_options();
  Plan plan;
  Simulation predicted;

  Described() {
    p.escape(z);
    plan = p.plan(options);
    simulate(p.graph, plan, CostModel(options), predicted);
  }
  nlohmann::json describe(const Description& about, const RunTimes* times = nullptr) const {
    return nlohmann::json::parse(graph::describe(p.graph, plan, predicted, times, about));
  }
};

}  // namespace

TEST_CASE("describe: nodes, spans, memory and decisions of a planned program are JSON") {
  const Described it;
  const auto json =
      it.describe({.name = "flush 1", .profile = "sim", .budget_bytes = 1 << 20, .candidates = {{"split", 0.5, true}}});
  CHECK(json["name"] == "flush 1");
  CHECK(json["budget_bytes"] == 1 << 20);
  CHECK(json["predicted_seconds"] == it.predicted.seconds);
  CHECK(json["measured_seconds"].is_null());
  CHECK(json["counts"]["bytes_to_accelerator"] == 256);
  CHECK(json["counts"]["bytes_to_cpu"] == 256);
  REQUIRE(json["nodes"].size() == 2);
  CHECK(json["nodes"][0]["device"] == "accelerator");
  CHECK(json["nodes"][1]["device"] == "cpu");
  CHECK(json["nodes"][1]["inputs"] == nlohmann::json::array({0}));
  CHECK(json["nodes"][1]["shape"] == "f32[64]");
  CHECK(json["nodes"][1]["measured"].is_null());
  CHECK(json["nodes"][1]["group"].is_null());
  REQUIRE(json["spans"].size() == 4);
  for (const auto& span : json["spans"]) CHECK(span["begin"] <= span["end"]);
  REQUIRE(json["memory"].size() == 1);
  CHECK(json["memory"][0]["budget"] == 1 << 20);
  CHECK(json["memory"][0]["points"].back()[1] == 256);  // x stays there
  CHECK(json["decisions"] == nlohmann::json::parse(R"([{"candidate": "split", "seconds": 0.5, "chosen": true}])"));
}

TEST_CASE("describe: what was measured is beside what was predicted") {
  const Described it;
  RunTimes times{.spans = it.predicted.spans, .seconds = 2};
  for (Span& span : times.spans) span = {.begin = 0.25, .end = 0.75};
  const auto json = it.describe({.name = "", .profile = ""}, &times);
  CHECK(json["budget_bytes"].is_null());
  CHECK(json["measured_seconds"] == 2);
  CHECK(json["nodes"][0]["measured"] == 0.5);
  for (const auto& span : json["spans"]) CHECK(span["measured_end"] == 0.75);
}

TEST_CASE("describe: names of any bytes and numbers that are none leave it JSON") {
  Described it;
  it.predicted.seconds = std::numeric_limits<double>::infinity();
  const auto json = it.describe({.name = "a \"quote\", a\nline and \xff", .profile = "\x01"});
  CHECK(json["name"] == "a \"quote\", a\nline and \uFFFD");
  CHECK(json["predicted_seconds"].is_null());
}

}  // namespace hetero::graph::testing
