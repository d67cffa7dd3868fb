#include "tests/graph/program.h"

namespace hetero::graph::testing {
namespace {

class Generator {
 public:
  Generator(Program& program, std::mt19937& random) : program_(program), random_(random) {}

  void make(int nodes, bool on_accelerator) {
    for (int i = 0; i < 4; ++i) {
      const auto valid = static_cast<uint8_t>(on_accelerator ? 1 + below(3) : 1);
      live_.push_back(program_.input(size(), valid));
    }
    for (int i = 0; i < nodes; ++i) add_node();
    for (BufferId b = 0; b < program_.graph.buffers.size(); ++b) {
      if (below(4) == 0) program_.escape(b);
    }
  }

 private:
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  int64_t size() { return below(12) == 0 ? 0 : below(8) == 0 ? 300 : 4 + below(60); }
  // Mostly recent values, so that others die.
  BufferId pick() {
    const int recent = std::min<int>(static_cast<int>(live_.size()), below(5) == 0 ? 100 : 6);
    return live_[live_.size() - 1 - static_cast<size_t>(below(recent))];
  }

  // A whole buffer, a contiguous part of it, or every other element.
  Operand part(BufferId buffer, Access access) {
    const auto count = static_cast<int64_t>(program_.graph.buffers[buffer].bytes / sizeof(float));
    const int kind = below(3);
    if (count < 2 || kind == 0) return program_.operand(buffer, access);
    if (kind == 1) {
      const int64_t first = below(static_cast<int>(count - 1));
      const int64_t length = 1 + below(static_cast<int>(count - first));
      return program_.operand(buffer, access, {length}, {1}, first);
    }
    return program_.operand(buffer, access, {count / 2}, {2}, below(2));
  }

  void add_node() {
    const TestOps& ops = test_ops();
    const OpId choices[] = {ops.pointwise, ops.pointwise, ops.matmul, ops.matmul,
                            ops.indexing,  ops.cpu_only,  ops.brings, ops.brings};
    const OpId op = choices[below(8)];
    const auto preference = static_cast<Preference>(below(4) == 0 ? 1 + below(2) : 0);
    const float constant = 0.25f * static_cast<float>(below(16));
    std::vector<Operand> operands;
    for (int i = below(3); i >= 0; --i) operands.push_back(part(pick(), Access::kRead));
    switch (below(6)) {
      case 0:
        operands.push_back(part(pick(), Access::kUpdate));
        break;
      case 1:
        operands.push_back(part(pick(), Access::kWrite));
        break;
      case 2: {
        // Born without a value, written whole by its first node.
        const BufferId born = program_.empty(size());
        operands.push_back(program_.write(born));
        live_.push_back(born);
        break;
      }
      default: {
        const int outputs = 1 + (below(6) == 0);
        for (int i = 0; i < outputs; ++i) {
          const BufferId born = program_.empty(size());
          operands.push_back(program_.operand(born, Access::kDefine));
          live_.push_back(born);
        }
      }
    }
    program_.add(op, std::move(operands), preference, constant);
  }

  Program& program_;
  std::mt19937& random_;
  std::vector<BufferId> live_;  // have a value
};

}  // namespace

void make_random(Program& program, std::mt19937& random, int nodes, bool on_accelerator) {
  Generator(program, random).make(nodes, on_accelerator);
}

}  // namespace hetero::graph::testing
