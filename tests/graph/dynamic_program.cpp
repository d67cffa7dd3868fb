#include "tests/graph/dynamic_program.h"

#include <cstring>
#include <stdexcept>

#include "tests/graph/saved.h"

namespace hetero::graph::testing {
namespace {

// Ends the program with a node that has two numbers of eight bytes.
void add_random(Program& program, BufferId output, int64_t seed, int64_t offset) {
  program.add(test_ops().random, {program.operand(output, Access::kDefine)});
  Node& node = program.graph.nodes.back();
  std::vector<std::byte>& attributes = program.graph.attributes;
  attributes.resize(node.attribute_offset + 2 * sizeof(int64_t));
  node.attribute_bytes = 2 * sizeof(int64_t);
  std::memcpy(attributes.data() + node.attribute_offset, &seed, sizeof(seed));
  std::memcpy(attributes.data() + node.attribute_offset + sizeof(seed), &offset, sizeof(offset));
}

}  // namespace

DynamicRecording::DynamicRecording(int64_t a, int64_t b, bool partly) {
  Program& p = program;
  const TestOps& ops = test_ops();
  const BufferId rows = p.input(a);
  const BufferId columns = p.input(b);
  const BufferId x = p.input(a * b);
  weight = p.input(6);
  state = p.input(4);
  const auto matrix = [&](BufferId buffer, Access access) { return p.operand(buffer, access, {a, b}, {b, 1}, 0); };
  const auto define = [&](OpId op, std::vector<Operand> inputs, int64_t count, int64_t width) {
    const BufferId made = p.empty(count * width);
    inputs.push_back(p.operand(made, Access::kDefine, {count, width}, {width, 1}, 0));
    p.add(op, std::move(inputs));
    return made;
  };
  const BufferId sum = define(
      ops.map,
      {matrix(x, Access::kRead), p.operand(columns, Access::kRead), p.operand(rows, Access::kRead, {a, 1}, {1, 0}, 0)},
      a, b);
  const BufferId normal = define(ops.normalize, {matrix(sum, Access::kRead)}, a, b);
  const BufferId shifted = define(ops.map, {p.operand(normal, Access::kRead, {a, b - 1}, {b, 1}, 1)}, a, b - 1);
  const BufferId halved = define(ops.map, {p.operand(normal, Access::kRead, {a, b / 2}, {b, 2}, 0)}, a, b / 2);
  const BufferId product = p.define(ops.matmul, a, {p.read(halved), p.read(weight)});
  p.add(ops.pointwise, {p.update(state), p.read(product)});
  // All rows but the last.
  if (partly) p.add(ops.pointwise, {p.operand(shifted, Access::kUpdate, {a - 1, b - 1}, {b - 1, 1}, 0), p.read(rows)});
  const BufferId noise = p.empty(8);
  add_random(p, noise, a * b - 1, b);
  const BufferId kept = p.define(ops.pointwise, 4, {p.read(state)});
  const BufferId folded = p.define(ops.pointwise, 6, {p.read(weight)});
  const BufferId last = p.define(ops.pointwise, a, {p.read(folded), p.read(product)});
  for (const BufferId output : {shifted, halved, noise, kept, last}) p.escape(output);
}

std::unique_ptr<SavedProgram> DynamicRecording::saved() const { return save(program, {weight, state}); }

void find_test_numbers(const Graph&, const Node& node, std::vector<uint32_t>& places) {
  if (node.op == test_ops().random) places = {0, 8};
}

std::vector<SizeVariable> dynamic_variables() {
  using Kind = SizeVariable::Kind;
  return {{.kind = Kind::kDimension, .name = "a", .least = 1, .most = 100},
          {.kind = Kind::kDimension, .name = "b", .least = 2},
          {.kind = Kind::kFloor, .name = "half", .a = {{1, {1}}}, .b = {{2, {}}}}};
}

std::unique_ptr<SavedProgram> make_dynamic(int64_t a, int64_t b, bool partly) {
  std::unique_ptr<SavedProgram> program = DynamicRecording(a, b, partly).saved();
  std::vector<std::unique_ptr<SavedProgram>> others;
  std::vector<SizeSample> samples;
  for (const auto& [x, y] : {std::pair{5, 7}, {11, 13}, {17, 19}, {23, 29}, {31, 37}, {41, 42}}) {
    others.push_back(DynamicRecording(x, y, partly).saved());
    samples.push_back({{x, y}, others.back().get()});
  }
  const std::vector<SizeSum> factors = {{{1, {1}}, {-1, {}}}};
  const Status status =
      fit_sizes(*program, dynamic_variables(), std::vector{a, b}, samples, factors, find_test_numbers);
  if (!status.ok()) throw std::runtime_error(status.message());
  return program;
}

}  // namespace hetero::graph::testing
