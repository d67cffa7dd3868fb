// fold_constants: what depends on weights only is computed once, and nothing else changes.

#include "graph/optimize/fold_constants.h"
#include "graph/program/archive.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/saved.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {

TEST_CASE("nodes of weights alone are folded, and weights that nobody reads any more go") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId w = p.input(8);
  const BufferId v = p.input(8);
  const BufferId twice = p.define(test_ops().pointwise, 8, {p.read(w)});
  const BufferId both = p.define(test_ops().pointwise, 8, {p.read(twice), p.read(v)}, Preference::kAuto, 2.0f);
  p.escape(p.define(test_ops().pointwise, 8, {p.read(both), p.read(x), p.read(v)}, Preference::kAuto, 3.0f));
  auto saved = save(p, {w, v});
  REQUIRE(fold_constants(*saved).ok());
  CHECK(saved->graph.nodes.size() == 1);
  std::set<std::string> names;
  for (const ProgramConstant& constant : saved->constants) names.insert(constant.name);
  CHECK(names == std::set<std::string>{name_of(v), "folded.1"});
  CHECK(outputs_of(std::move(saved), p) == outputs_of(save(p, {w, v}), p));
}

TEST_CASE("states, effects and results that take much more memory are not folded") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId w = p.input(8);
  const BufferId state = p.input(8);
  p.add(test_ops().pointwise, {p.update(state), p.read(x)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(state)}));
  p.escape(p.define(test_ops().effect, 8, {p.read(w)}));
  p.escape(p.define(test_ops().pointwise, 1 << 20, {p.read(w)}));
  p.escape(p.define(test_ops().pointwise, 8, {p.read(x), p.read(w)}));
  auto saved = save(p, {w, state});
  REQUIRE(fold_constants(*saved).ok());
  CHECK(saved->graph.nodes.size() == p.graph.nodes.size());
}

TEST_CASE("a kernel that fails leaves the program as it was") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId w = p.input(8);
  const BufferId broken = p.define(test_ops().throws, 8, {p.read(w)});
  p.escape(p.define(test_ops().pointwise, 8, {p.read(x), p.read(broken)}));
  auto saved = save(p, {w});
  const std::string before = to_string(saved->graph);
  CHECK_FALSE(fold_constants(*saved).ok());
  CHECK(to_string(saved->graph) == before);
}

TEST_CASE("folded programs compute what they did, and are read back from their files") {
  std::mt19937 random(11);
  const TemporaryFolder folder;
  int folded = 0;
  for (int i = 0; i < 60; ++i) {
    Program p;
    make_random(p, random, 3 + i / 2, false);
    std::set<BufferId> constants;
    for (BufferId b = 0; b < p.graph.buffers.size(); ++b) {
      if (p.graph.buffers[b].valid_on != 0 && !p.graph.buffers[b].escapes && random() % 2 == 0) constants.insert(b);
    }
    const auto expected = outputs_of(save(p, constants), p);
    auto saved = save(p, constants);
    REQUIRE(fold_constants(*saved).ok());
    folded += saved->graph.nodes.size() < p.graph.nodes.size();
    const std::string path = folder.path("m.hetero");
    REQUIRE(save_program(*saved, path).ok());
    CHECK(outputs_of(std::move(saved), p) == expected);
    auto loaded = load_program(path);
    REQUIRE(loaded.ok());
    CHECK(outputs_of(std::move(loaded.value()), p) == expected);
  }
  CHECK(folded >= 5);
}

}  // namespace hetero::graph::testing
