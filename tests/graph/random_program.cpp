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

using List = std::vector<int64_t>;

List row_major(const List& sizes) {
  List strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return strides;
}

// Buffers of 24, 6, 4 and 1 floats, mostly: a matrix of four rows of six, a row, a column and a scalar.
class FusableGenerator {
 public:
  FusableGenerator(Program& program, std::mt19937& random) : program_(program), random_(random) {}

  void make(int nodes) {
    for (const int64_t count : {24, 24, 24, 12, 6, 4, 2, 1}) live_.push_back(program_.input(count));
    for (int i = 0; i < nodes; ++i) add_node();
    for (BufferId b = 0; b < program_.graph.buffers.size(); ++b) {
      if (below(4) == 0) program_.escape(b);
    }
  }

 private:
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  int64_t count_of(BufferId buffer) const {
    return static_cast<int64_t>(program_.graph.buffers[buffer].bytes / sizeof(float));
  }
  // A recent buffer of `count` floats; the inputs have every size.
  BufferId pick(int64_t count) {
    for (int tries = 0;; ++tries) {
      const size_t recent = tries < 20 && below(5) != 0 ? std::min<size_t>(live_.size(), 6) : live_.size();
      const BufferId buffer = live_[live_.size() - 1 - static_cast<size_t>(below(static_cast<int>(recent)))];
      if (count_of(buffer) == count) return buffer;
    }
  }

  Operand view(BufferId buffer, Access access, const List& sizes) {
    return program_.operand(buffer, access, sizes, row_major(sizes), 0);
  }

  // Something that is broadcast to `space`, which has six entries in the last dimension or 24 in all.
  Operand input(const List& space) {
    const int kind = below(12);
    if (space.size() == 2 && space[0] == 4) {
      if (kind == 0) return view(pick(6), Access::kRead, {6});
      if (kind == 1) return view(pick(6), Access::kRead, {1, 6});
      if (kind == 2) return view(pick(4), Access::kRead, {4, 1});
      if (kind == 3) return program_.operand(pick(4), Access::kRead, {4, 6}, {1, 0}, 0);
      if (kind == 4) return program_.operand(pick(24), Access::kRead, {4, 6}, {1, 4}, 0);
      if (kind == 5) return program_.operand(pick(24), Access::kRead, {4, 6}, {6, 0}, below(6));
    }
    if (space.size() == 3) {
      if (kind == 0) return view(pick(4), Access::kRead, {2, 2, 1});
      if (kind == 1) return view(pick(6), Access::kRead, {6});
    }
    if (kind == 6) return view(pick(1), Access::kRead, {});
    return view(pick(numel(space)), Access::kRead, space);
  }

  static int64_t numel(const List& sizes) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return count;
  }

  Operand define(const List& sizes) {
    const BufferId born = program_.empty(numel(sizes));
    live_.push_back(born);
    return view(born, Access::kDefine, sizes);
  }

  Operand output(const List& sizes) {
    switch (below(8)) {
      case 0:
        return view(pick(numel(sizes)), Access::kUpdate, sizes);
      case 1:
        return view(pick(numel(sizes)), Access::kWrite, sizes);
      default:
        return define(sizes);
    }
  }

  // Halves, in the way of rotary embeddings.
  void add_half(float constant) {
    const BufferId x = pick(24);
    const int64_t half = below(2);
    program_.add(test_ops().map, {program_.operand(x, Access::kRead, {4, 3}, {6, 1}, 3 * half), define({4, 3})},
                 Preference::kAuto, constant);
    const Operand made = program_.graph.operands.back();
    program_.add(test_ops().join, {view(made.buffer, Access::kRead, {4, 3}),
                                   program_.operand(x, Access::kRead, {4, 3}, {6, 1}, 3 - 3 * half), define({4, 6})});
  }

  // In a part of a matrix, or on a transposed one.
  void add_partial(float constant) {
    const BufferId x = pick(24);
    const BufferId y = pick(24);
    const auto access = below(2) == 0 ? Access::kUpdate : Access::kWrite;
    switch (below(3)) {
      case 0: {
        const int64_t row = below(4);
        program_.add(
            test_ops().map,
            {program_.operand(x, Access::kRead, {6}, {1}, 6 * row), program_.operand(y, access, {6}, {1}, 6 * row)},
            Preference::kAuto, constant);
        break;
      }
      case 1: {
        const int64_t column = below(2);
        program_.add(test_ops().map,
                     {program_.operand(x, Access::kRead, {4, 3}, {6, 2}, below(2)),
                      program_.operand(y, access, {4, 3}, {6, 2}, column)},
                     Preference::kAuto, constant);
        break;
      }
      default:
        program_.add(
            test_ops().map,
            {program_.operand(x, Access::kRead, {6, 4}, {1, 6}, 0), program_.operand(y, access, {6, 4}, {1, 6}, 0)},
            Preference::kAuto, constant);
    }
  }

  // Of halves or thirds of matrices, mostly of one.
  void add_join() {
    const BufferId x = pick(24);
    const BufferId y = below(3) == 0 ? pick(24) : x;
    const auto part = [&](List sizes, int64_t offset) {
      return program_.operand(below(2) == 0 ? x : y, Access::kRead, std::move(sizes), {6, 1}, offset);
    };
    switch (below(4)) {
      case 0:
        program_.add(test_ops().join, {part({4, 3}, 3), part({4, 3}, 0), define({4, 6})});
        break;
      case 1:
        program_.add(test_ops().join, {part({2, 6}, 12), part({2, 6}, 0), define({4, 6})});
        break;
      case 2:
        program_.add(test_ops().join, {part({4, 2}, 2 * below(3)), part({4, 2}, 2 * below(3)), part({4, 2}, 1),
                                       view(pick(24), Access::kWrite, {4, 6})});
        break;
      default:
        // What is read is written, piece by piece or otherwise.
        program_.add(test_ops().join,
                     {part({4, 3}, 3 * below(2)), part({4, 3}, 3 * below(2)), view(x, Access::kWrite, {4, 6})});
    }
  }

  void add_node() {
    const TestOps& ops = test_ops();
    const float constant = 0.25f * static_cast<float>(below(16));
    const List spaces[] = {{4, 6}, {4, 6}, {4, 6}, {24}, {2, 2, 6}, {6}, {4}, {4, 1}, {1}, {}};
    const List matrices[] = {{4, 6}, {2, 2, 6}, {24}};
    const int kind = below(25);
    if (kind < 11) {
      const List& space = spaces[below(below(3) == 0 ? 10 : 3)];
      std::vector<Operand> operands;
      for (int i = below(3); i >= 0; --i) operands.push_back(input(space));
      operands.push_back(output(space));
      program_.add(ops.map, operands, Preference::kAuto, constant);
    } else if (kind < 14) {
      const Operand in = view(pick(24), Access::kRead, matrices[below(3)]);
      const int rank = (*program_.graph.windows)[in.window].rank;
      const List kept = rank == 1 ? List{1} : rank == 2 ? List{4, 1} : below(2) == 0 ? List{2, 2, 1} : List{2, 1, 1};
      const List dropped = rank == 1 ? List{} : rank == 2 ? List{4} : List{2, 2};
      const List others = rank == 2 ? List{1, 6} : rank == 3 ? List{1, 2, 6} : List{1};
      const int shape = below(7);
      program_.add(ops.digest, {in, output(shape < 3 ? kept : shape < 6 ? dropped : others)});
    } else if (kind < 15) {
      const List& space = matrices[below(3)];
      program_.add(ops.normalize, {view(pick(24), Access::kRead, space), output(space)}, Preference::kAuto, constant);
    } else if (kind < 16) {
      const List& space = matrices[below(3)];
      const Operand in = input(space);
      program_.add(ops.copy, {in, below(3) == 0 ? view(pick(24), Access::kWrite, space) : define(space)});
    } else if (kind < 18) {
      add_partial(constant);
    } else if (kind < 20) {
      const List& space = matrices[below(3)];
      program_.add(ops.product, {input(space), input({4, 6}), define(space)}, Preference::kAuto, constant);
    } else if (kind < 23) {
      below(2) == 0 ? add_join() : add_half(constant);
    } else if (kind < 24) {
      program_.add(ops.matmul, {input({4, 6}), input({4, 6}), output({4, 6})}, Preference::kAuto, constant);
    } else {
      program_.add(ops.brings, {input({4, 6}), define({4, 6})}, Preference::kAuto, constant);
    }
  }

  Program& program_;
  std::mt19937& random_;
  std::vector<BufferId> live_;
};

}  // namespace

void make_fusable(Program& program, std::mt19937& random, int nodes) { FusableGenerator(program, random).make(nodes); }

void make_random(Program& program, std::mt19937& random, int nodes, bool on_accelerator) {
  Generator(program, random).make(nodes, on_accelerator);
}

}  // namespace hetero::graph::testing
