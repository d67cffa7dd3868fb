#include "tests/graph/saved.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "backend/device.h"
#include "graph/plan.h"

namespace hetero::graph::testing {
namespace {

int below(std::mt19937& random, int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); }

WindowId whole(SavedProgram& program, BufferId buffer) {
  const auto count = static_cast<int64_t>(program.graph.buffers[buffer].bytes / sizeof(float));
  return program.windows.intern_contiguous(parse_dtype("f32"), {{count}});
}

std::set<BufferId> choose_constants(const Program& program, std::mt19937& random) {
  std::vector<uint8_t> written(program.graph.buffers.size());
  for (const Operand& operand : program.graph.operands) written[operand.buffer] |= operand.writes();
  std::set<BufferId> constants;
  for (BufferId b = 0; b < written.size(); ++b) {
    const bool may_be = program.graph.buffers[b].valid_on != 0 && written[b] == 0;
    if (may_be && below(random, 2) == 0) constants.insert(b);
  }
  return constants;
}

// With random bytes; some are tied.
void fill_constants(SavedProgram& program, std::mt19937& random) {
  std::vector<ProgramConstant> tied;
  for (ProgramConstant& constant : program.constants) {
    auto* const bytes = static_cast<char*>(constant.bytes.data());
    std::generate_n(bytes, constant.bytes.bytes(), [&] { return static_cast<char>(random()); });
    if (below(random, 4) == 0) tied.push_back({constant.name + ".tied", constant.buffer, constant.window, {}});
  }
  std::ranges::move(tied, std::back_inserter(program.constants));
}

// Writes a buffer of its own, which is an output.
void add_random_node(SavedProgram& program) {
  Graph& graph = program.graph;
  const auto buffer = static_cast<BufferId>(graph.buffers.size());
  graph.buffers.push_back({.bytes = 32, .valid_on = 0, .escapes = true});
  Node node{};
  node.op = test_ops().random;
  node.first_operand = static_cast<uint32_t>(graph.operands.size());
  node.operand_count = node.output_count = 1;
  node.attribute_offset = static_cast<uint32_t>(graph.attributes.size());
  node.attribute_bytes = 16;
  node.sequence = static_cast<uint32_t>(graph.nodes.size());
  graph.operands.push_back({.buffer = buffer, .window = whole(program, buffer), .access = Access::kDefine, .bits = 0});
  graph.nodes.push_back(node);
  program.draws.push_back(graph.attributes.size());
  graph.attributes.resize(graph.attributes.size() + 16);
  program.outputs.push_back({"noise", buffer, whole(program, buffer), 0});
}

}  // namespace

backend::Block block_of(const std::string& bytes) {
  constexpr size_t kAlignment = 64;
  void* const data = std::aligned_alloc(kAlignment, (bytes.size() / kAlignment + 1) * kAlignment);
  std::memcpy(data, bytes.data(), bytes.size());
  return backend::Block::adopt(data, bytes.size(), [](void*, void* memory, size_t) { std::free(memory); }, nullptr);
}

std::unique_ptr<SavedProgram> save(const Program& program, const std::set<BufferId>& constants) {
  auto saved = std::make_unique<SavedProgram>();
  Result<Graph> graph = parse_graph(to_string(program.graph), saved->windows);
  if (!graph.ok()) throw std::runtime_error(graph.status().message());
  saved->graph = std::move(graph.value());
  std::vector<Binding> bindings = program.bind({test_devices()[backend::kCpu], nullptr});
  for (BufferId b = 0; b < saved->graph.buffers.size(); ++b) {
    Buffer& buffer = saved->graph.buffers[b];
    if (constants.count(b) != 0) {
      saved->constants.push_back({name_of(b), b, whole(*saved, b), std::move(bindings[b].blocks[backend::kCpu])});
      buffer.steady = true;
    } else if (buffer.valid_on != 0) {
      saved->inputs.push_back({.name = name_of(b), .buffer = b, .window = whole(*saved, b)});
    }
    if (buffer.escapes) saved->outputs.push_back({.name = name_of(b), .buffer = b, .window = whole(*saved, b)});
  }
  return saved;
}

std::unique_ptr<SavedProgram> make_saved(std::mt19937& random, int nodes) {
  Program program;
  const bool fusable = below(random, 2) == 0;
  if (fusable) {
    make_fusable(program, random, nodes);
  } else {
    make_random(program, random, nodes, false);
  }
  std::unique_ptr<SavedProgram> saved = save(program, choose_constants(program, random));
  fill_constants(*saved, random);
  if (below(random, 2) == 0) add_random_node(*saved);
  saved->metadata = {{"signature", "(x, *, y=None)"}, {"made by", "a \"test\"\n"}};
  if (below(random, 4) != 0) {
    Plan plan;
    PlanOptions options = below(random, 2) == 0 ? fused_options() : mixed_options();
    options.fusion = fusable;
    make_plan(saved->graph, options, plan);
    saved->plan = to_string(plan);
    saved->plan_machine = "this one";
  }
  return saved;
}

std::string describe(const SavedProgram& program) {
  std::string text = to_string(program.graph) + to_string(program.dynamic);
  const auto add = [&](const char* kind, const auto& value) {
    text += std::string(kind) + ' ' + value.name + ' ' + std::to_string(value.buffer) + ' ' +
            to_string(program.windows[value.window]) + ' ';
  };
  for (const ProgramValue& value : program.inputs) add("input", value), text += std::to_string(value.bits) + '\n';
  for (const ProgramValue& value : program.outputs) add("output", value), text += std::to_string(value.bits) + '\n';
  for (const ProgramConstant& constant : program.constants) {
    add("constant", constant);
    text += constant.bytes ? "with" : "without";
    text.append(static_cast<const char*>(constant.bytes.data()), constant.bytes.bytes());
    text += '\n';
  }
  for (const Buffer& buffer : program.graph.buffers) text += buffer.steady ? "steady " : "not steady ";
  for (const uint64_t draw : program.draws) text += "draw " + std::to_string(draw) + '\n';
  for (const auto& [key, value] : program.metadata) text += key + " = " + value + '\n';
  return text + program.plan_machine + '\n' + program.plan;
}

TemporaryFolder::TemporaryFolder() {
  // In memory where that is possible: saving waits for the disk.
  const std::filesystem::path memory = "/dev/shm";
  std::error_code ignored;
  const bool in_memory = std::filesystem::is_directory(memory, ignored);
  path_ = ((in_memory ? memory : std::filesystem::temp_directory_path()) / "hetero-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

size_t TemporaryFolder::files() const {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace hetero::graph::testing
