// use_channels_last: which images are laid out with their channels last, and that no value changes.

#include "graph/optimize/channels_last.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "graph/program/verify_program.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/saved.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using Sizes = std::vector<int64_t>;

// The map of the tests' operators, as a convolution, and as one that knows one layout only.
OpId named(const char* name, OpClass op_class, bool keeps_layout) {
  OpTraits traits = op_table()[test_ops().map];
  traits.name = name;
  traits.op_class = op_class;
  traits.keeps_layout = keeps_layout;
  traits.lower = nullptr;
  return op_table().add(std::move(traits));
}
OpId convolution() {
  static const OpId id = named("test::convolution", OpClass::kConvolution, true);
  return id;
}
OpId stubborn() {
  static const OpId id = named("test::stubborn", OpClass::kOther, false);
  return id;
}

OpId copy() {
  static const OpId id = named("test::copy of either layout", OpClass::kCopy, true);
  return id;
}

int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies());
}

Sizes rows(const Sizes& sizes) {
  Sizes strides(sizes.size());
  fill_row_major(sizes, strides.data());
  return strides;
}

// Images of one size.
struct Images : Program {
  Sizes sizes{2, 3, 4, 5};

  Operand image(BufferId buffer, Access access = Access::kRead) {
    return operand(buffer, access, sizes, rows(sizes), 0);
  }
  // A new image by this operator.
  BufferId by(OpId op, std::vector<Operand> inputs) {
    const BufferId made = empty(product(sizes));
    inputs.push_back(image(made, Access::kWrite));
    add(op, std::move(inputs));
    return made;
  }
  // A tensor of its own of what is seen there.
  BufferId seen(OpId op, const Operand& window) {
    const Sizes of(windows[window.window].sizes().begin(), windows[window.window].sizes().end());
    const BufferId made = empty(product(of));
    add(op, {window, operand(made, Access::kWrite, of, rows(of), 0)});
    escape(made);
    return made;
  }
};

bool has_channels_last(const SavedProgram& program, BufferId buffer) {
  return std::ranges::all_of(program.graph.operands, [&](const Operand& operand) {
    const Window& window = program.windows[operand.window];
    return operand.buffer != buffer || (window.rank >= 3 && window.strides()[1] == 1);
  });
}

// How many are laid out otherwise, after a check that nothing else changes.
size_t changed(Images& p) {
  auto saved = save(p);
  const size_t count = use_channels_last(*saved);
  CHECK(verify_program(*saved).ok());
  CHECK(use_channels_last(*saved) == 0);
  CHECK(outputs_of(std::move(saved), p) == outputs_of(save(p), p));
  return count;
}

}  // namespace

TEST_CASE("images between convolutions and pointwise operators have their channels last; the program's own do not") {
  Images p;
  const BufferId x = p.input(product(p.sizes));
  const BufferId a = p.by(convolution(), {p.image(x)});
  const BufferId b = p.by(test_ops().map, {p.image(a)});
  const BufferId c = p.by(convolution(), {p.image(b)});
  const BufferId sum = p.by(test_ops().map, {p.image(b), p.image(c)});
  const BufferId out = p.by(convolution(), {p.image(sum)});
  p.escape(out);
  auto saved = save(p);
  CHECK(use_channels_last(*saved) == 4);
  for (const BufferId buffer : {a, b, c, sum}) CHECK(has_channels_last(*saved, buffer));
  for (const BufferId buffer : {x, out}) CHECK_FALSE(has_channels_last(*saved, buffer));
  CHECK(changed(p) == 4);
}

TEST_CASE("images may have a depth") {
  Images p;
  p.sizes = {2, 3, 4, 2, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
  p.escape(p.by(convolution(), {p.image(p.by(test_ops().map, {p.image(a)}))}));
  CHECK(changed(p) == 2);
  auto saved = save(p);
  use_channels_last(*saved);
  CHECK(has_channels_last(*saved, a));
}

TEST_CASE("signals between convolutions have their channels last, and what sees them as tokens has row-major ones") {
  Images p;
  p.sizes = {2, 3, 5};
  const Sizes tokens{2, 5, 3};
  const BufferId x = p.input(30);
  const BufferId a = p.by(convolution(), {p.image(x)});
  const BufferId b = p.by(test_ops().map, {p.image(a)});
  const BufferId c = p.by(convolution(), {p.image(b)});
  // c's tokens and places; then a convolution over tokens.
  const BufferId sum = p.empty(30);
  p.add(test_ops().map, {p.operand(c, Access::kRead, tokens, {15, 1, 5}, 0),
                         p.operand(p.input(15), Access::kRead, {1, 5, 3}, {15, 3, 1}, 0),
                         p.operand(sum, Access::kWrite, tokens, {15, 3, 1}, 0)});
  p.escape(p.by(convolution(), {p.operand(sum, Access::kRead, p.sizes, {15, 1, 3}, 0)}));
  CHECK(changed(p) == 3);
  auto saved = save(p);
  use_channels_last(*saved);
  for (const BufferId buffer : {a, b}) CHECK(has_channels_last(*saved, buffer));
  for (const Operand& operand : saved->graph.operands) {
    const Window& window = saved->windows[operand.window];
    if ((operand.buffer == c || operand.buffer == sum) && window.sizes()[1] == 5) CHECK(window.contiguous);
  }
}

TEST_CASE("a signal that is seen as an image of one row has the strides that PyTorch gives such") {
  Images p;
  p.sizes = {2, 3, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(30))});
  const BufferId b = p.empty(30);
  p.add(test_ops().map, {p.operand(a, Access::kRead, {2, 3, 1, 5}, {15, 5, 5, 1}, 0),
                         p.operand(b, Access::kWrite, {2, 3, 1, 5}, {15, 5, 5, 1}, 0)});
  p.escape(p.by(convolution(), {p.image(b)}));
  CHECK(changed(p) == 2);
  auto saved = save(p);
  use_channels_last(*saved);
  for (const Operand& operand : saved->graph.operands) {
    const Window& window = saved->windows[operand.window];
    if (window.rank == 4) CHECK(std::ranges::equal(window.strides(), Sizes{15, 1, 15, 3}));
  }
}

TEST_CASE("tokens of a signal stay transposed beside others that do") {
  Images p;
  p.sizes = {2, 3, 5};
  const BufferId x = p.input(30);
  const BufferId a = p.by(convolution(), {p.image(x)});
  const auto tokens = [&](BufferId buffer, Access access) {
    return p.operand(buffer, access, {2, 5, 3}, {15, 1, 5}, 0);
  };
  const BufferId sum = p.empty(30);
  p.add(test_ops().map, {tokens(a, Access::kRead), tokens(x, Access::kRead), tokens(sum, Access::kWrite)});
  p.escape(sum);
  CHECK(changed(p) == 0);
}

TEST_CASE("a signal that meets an image stays row-major") {
  Images p;
  p.sizes = {2, 3, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(30))});
  const BufferId many = p.empty(120);
  const auto image = [&](Access access) { return p.operand(many, access, {4, 2, 3, 5}, {30, 15, 5, 1}, 0); };
  p.add(convolution(),
        {p.operand(p.input(120), Access::kRead, {4, 2, 3, 5}, {30, 15, 5, 1}, 0), image(Access::kWrite)});
  p.seen(test_ops().map, image(Access::kRead));
  const BufferId sum = p.empty(120);
  p.add(test_ops().map,
        {image(Access::kRead), p.image(a), p.operand(sum, Access::kWrite, {4, 2, 3, 5}, {30, 15, 5, 1}, 0)});
  p.escape(sum);
  CHECK(changed(p) == 0);
}

TEST_CASE("three dimensions are no images where nothing convolves such") {
  Images p;
  const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
  // [2, 3, 20], as tokens [2, 20, 3] beside row-major ones.
  const BufferId sum = p.empty(120);
  p.add(test_ops().map, {p.operand(a, Access::kRead, {2, 20, 3}, {60, 1, 20}, 0),
                         p.operand(p.input(60), Access::kRead, {1, 20, 3}, {60, 3, 1}, 0),
                         p.operand(sum, Access::kWrite, {2, 20, 3}, {60, 3, 1}, 0)});
  p.seen(stubborn(), p.operand(sum, Access::kRead, {2, 20, 3}, {60, 3, 1}, 0));
  CHECK(changed(p) == 1);
}

TEST_CASE("what a pointwise operator makes of an image's tokens is laid out as they are, or the image stays") {
  const Sizes tokens{2, 20, 3};
  // What is made is temporary, or the program's; or a part of the tokens is made into a tensor.
  for (const auto& [escapes, part] : {std::pair{false, false}, {true, false}, {false, true}}) {
    Images p;
    const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    BufferId last = a;
    for (int i = 0; i < 2; ++i) {
      const BufferId made = p.empty(120);
      p.add(test_ops().map, {p.operand(last, Access::kRead, tokens, {60, 1, 20}, 0),
                             p.operand(made, Access::kWrite, tokens, {60, 1, 20}, 0)});
      last = made;
    }
    if (escapes) p.escape(last);
    if (part) {
      const BufferId made = p.empty(60);
      p.add(test_ops().map, {p.operand(last, Access::kRead, {2, 10, 3}, {60, 1, 20}, 0),
                             p.operand(made, Access::kWrite, {2, 10, 3}, {30, 1, 10}, 0)});
      p.escape(made);
    } else {
      p.seen(stubborn(), p.operand(last, Access::kRead, tokens, {60, 1, 20}, 0));
    }
    CAPTURE(escapes, part);
    CHECK(changed(p) == (escapes ? 0 : part ? 0 : 3));
    if (escapes || part) continue;
    auto saved = save(p);
    use_channels_last(*saved);
    for (const Operand& operand : saved->graph.operands) {
      const Window& window = saved->windows[operand.window];
      if (window.rank == 3) CHECK(window.contiguous);
    }
  }
}

TEST_CASE("tokens change where fewer operators read across then, though one reads others transposed") {
  // hidden = hidden + transposed, as a block that mixes tokens has it; then sums with rows, so many.
  for (const int rows : {0, 1, 2}) {
    Images p;
    const Sizes tokens{2, 20, 3}, turned{60, 1, 20}, in_rows{60, 3, 1};
    BufferId hidden = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    for (int i = 0; i <= rows; ++i) {
      const BufferId sum = p.empty(120);
      p.add(test_ops().map, {p.operand(hidden, Access::kRead, tokens, turned, 0),
                             p.operand(p.input(120), Access::kRead, tokens, i == 0 ? turned : in_rows, 0),
                             p.operand(sum, Access::kWrite, tokens, turned, 0)});
      hidden = sum;
    }
    p.seen(stubborn(), p.operand(hidden, Access::kRead, tokens, turned, 0));
    CAPTURE(rows);
    CHECK(changed(p) == (rows == 2 ? 4 : 0));
  }
}

TEST_CASE("what a pointwise operator makes of a signal's tokens is laid out as they are") {
  Images p;
  p.sizes = {2, 3, 5};
  const Sizes tokens{2, 5, 3}, turned{15, 1, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(30))});
  const BufferId b = p.empty(30);
  // Beside a number for each channel, which has another size.
  p.add(test_ops().map,
        {p.operand(a, Access::kRead, tokens, turned, 0), p.operand(p.input(3), Access::kRead, {1, 1, 3}, {3, 3, 1}, 0),
         p.operand(b, Access::kWrite, tokens, turned, 0)});
  p.seen(stubborn(), p.operand(b, Access::kRead, tokens, turned, 0));
  CHECK(changed(p) == 2);
}

TEST_CASE("one image with its channels last has the stride between images that kernels expect") {
  Images p;
  p.sizes = {1, 3, 4, 5};
  const BufferId tokens = p.input(60), b = p.empty(60);
  p.add(test_ops().map, {p.operand(tokens, Access::kRead, p.sizes, {3, 1, 15, 3}, 0), p.image(b, Access::kWrite)});
  p.escape(p.by(convolution(), {p.image(b)}));
  CHECK(changed(p) == 1);
  auto saved = save(p);
  use_channels_last(*saved);
  for (const Operand& operand : saved->graph.operands) {
    if (operand.buffer != tokens && operand.buffer != b) continue;
    CHECK(std::ranges::equal(saved->windows[operand.window].strides(), Sizes{60, 1, 15, 3}));
  }
}

TEST_CASE("an operator may see a part of an image by other strides, whose entries are together") {
  // One pixel of each image, or the same row of one channel.
  for (const bool pixel : {true, false}) {
    Images p;
    const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    p.seen(stubborn(), pixel ? p.operand(a, Access::kRead, {2, 3}, {60, 20}, 19)
                             : p.operand(a, Access::kRead, {2, 5}, {60, 1}, 25));
    CHECK(changed(p) == (pixel ? 1 : 0));
  }
}

TEST_CASE("of a graph alone, what others see is said apart") {
  Images p;
  const BufferId x = p.input(product(p.sizes));
  const BufferId a = p.by(convolution(), {p.image(x)});
  const BufferId b = p.by(convolution(), {p.image(a)});
  p.escape(p.by(convolution(), {p.image(b)}));
  auto saved = save(p);
  std::vector<uint8_t> temporary(saved->graph.buffers.size(), 0);
  CHECK(use_channels_last(saved->graph, saved->windows, temporary) == 0);
  temporary[b] = 1;
  CHECK(use_channels_last(saved->graph, saved->windows, temporary) == 1);
  CHECK(has_channels_last(*saved, b));
  CHECK_FALSE(has_channels_last(*saved, a));
}

TEST_CASE("images that are saved for gradients are seen in their new layout") {
  for (const int64_t filter : {1, 1000}) {  // elements
    Images p;
    const BufferId x = p.input(product(p.sizes));
    const BufferId a = p.empty(product(p.sizes));
    const BufferId weight = p.input(filter * 9);
    p.add(convolution(), {p.image(x), p.operand(weight, Access::kRead, {1, filter, 3, 3}, rows({1, filter, 3, 3}), 0),
                          p.image(a, Access::kDefine)});
    p.escape(a);
    auto saved = save(p);
    std::vector<uint8_t> temporary(saved->graph.buffers.size(), 0);
    temporary[a] = 1;
    const WindowId before = saved->graph.operands_of(saved->graph.nodes[0])[2].window;
    SavedImage seen{a, before};
    const bool is_small = filter == 1;
    CHECK(use_channels_last(saved->graph, saved->windows, temporary, std::span(&seen, 1)) == (is_small ? 1 : 0));
    CHECK(has_channels_last(*saved, a) == is_small);
    CHECK((seen.window != before) == is_small);
    CHECK(seen.window == saved->graph.operands_of(saved->graph.nodes[0])[2].window);
  }
}

TEST_CASE("an image that meets a row-major one in an operator stays row-major") {
  Images p;
  const BufferId x = p.input(product(p.sizes));
  const BufferId a = p.by(convolution(), {p.image(x)});
  const BufferId b = p.by(convolution(), {p.image(x)});
  p.escape(p.by(convolution(), {p.image(p.by(test_ops().map, {p.image(a), p.image(x)}))}));
  p.escape(p.by(convolution(), {p.image(b)}));
  CHECK(changed(p) == 1);
}

TEST_CASE("without a convolution, or with one pixel or channel, nothing changes") {
  for (const Sizes& sizes : {Sizes{2, 3, 4, 5}, Sizes{2, 1, 4, 5}, Sizes{2, 3, 1, 1}}) {
    Images p;
    p.sizes = sizes;
    const OpId op = product(sizes) == 120 ? test_ops().map : convolution();
    const BufferId a = p.by(op, {p.image(p.input(product(sizes)))});
    p.escape(p.by(op, {p.image(a)}));
    CHECK(changed(p) == 0);
  }
}

TEST_CASE("a channel vector and a smaller tensor are broadcast to images of either layout") {
  Images p;
  const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
  const Operand channels = p.operand(p.input(3), Access::kRead, {3, 1, 1}, {1, 1, 1}, 0);
  const Operand everywhere = p.operand(p.input(1), Access::kRead, {2, 3, 4, 5}, {0, 0, 0, 0}, 0);
  const BufferId b = p.by(test_ops().map, {p.image(a), channels, everywhere});
  p.escape(p.by(convolution(), {p.image(b)}));
  CHECK(changed(p) == 2);
}

TEST_CASE("another operator sees images of which the channels are last row-major, or as they are") {
  const Sizes permuted{2, 4, 5, 3};
  for (const bool flat : {false, true}) {
    Images p;
    const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    p.seen(stubborn(), p.operand(a, Access::kRead, permuted, {60, 5, 1, 20}, 0));
    if (flat) p.seen(stubborn(), p.operand(a, Access::kRead, {2, 60}, {60, 1}, 0));
    CHECK(changed(p) == (flat ? 0 : 1));
  }
}

TEST_CASE("tensors that convolutions see with their channels last already stay as they are") {
  Images p;
  const BufferId x = p.input(product(p.sizes));
  const BufferId tokens = p.empty(product(p.sizes));  // [2, 4, 5, 3]
  p.add(test_ops().map, {p.operand(x, Access::kRead, {2, 4, 5, 3}, {60, 15, 3, 1}, 0),
                         p.operand(tokens, Access::kWrite, {2, 4, 5, 3}, {60, 15, 3, 1}, 0)});
  p.escape(p.by(convolution(), {p.operand(tokens, Access::kRead, p.sizes, {60, 1, 15, 3}, 0)}));
  CHECK(changed(p) == 0);
}

TEST_CASE("gradients of convolutions want images that are large beside their filters") {
  for (const Sizes& filter : {Sizes{3, 3, 3, 3}, Sizes{3, 3, 1, 1}, Sizes{3, 1, 3, 3}}) {
    Images p;
    const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    const Operand weight = p.operand(p.input(product(filter)), Access::kRead, filter, rows(filter), 0);
    const BufferId gradient = p.by(convolution(), {p.image(a), p.image(a), weight});
    p.escape(p.by(convolution(), {p.image(gradient)}));
    // 120 elements of images for 81 of a filter that has two layouts.
    CHECK(changed(p) == (filter == Sizes{3, 3, 3, 3} ? 0 : 2));
  }
}

TEST_CASE("what a convolution sees is an image, though an operator before it sees groups of its channels") {
  Images p;
  p.sizes = {2, 6, 4, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
  const BufferId shuffled = p.empty(product(p.sizes));
  const Sizes groups{2, 3, 2, 4, 5};
  p.add(test_ops().map, {p.operand(a, Access::kRead, groups, {120, 20, 60, 5, 1}, 0),
                         p.operand(shuffled, Access::kWrite, groups, rows(groups), 0)});
  p.escape(p.by(convolution(), {p.image(shuffled)}));
  CHECK(changed(p) == 2);
}

TEST_CASE("an image of which convolutions see some channels only is one") {
  Images p;
  p.sizes = {2, 6, 4, 5};
  const BufferId a = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
  const BufferId shuffled = p.empty(product(p.sizes));
  const Sizes groups{2, 3, 2, 4, 5}, half{2, 3, 4, 5};
  p.add(test_ops().map, {p.operand(a, Access::kRead, groups, {120, 20, 60, 5, 1}, 0),
                         p.operand(shuffled, Access::kWrite, groups, rows(groups), 0)});
  for (const int64_t offset : {0, 60}) {
    const BufferId made = p.empty(product(half));
    p.add(convolution(), {p.operand(shuffled, Access::kRead, half, {120, 20, 5, 1}, offset),
                          p.operand(made, Access::kWrite, half, rows(half), 0)});
    p.escape(made);
  }
  CHECK(changed(p) == 2);
}

TEST_CASE("a copy of tokens leaves the layout of what it copies alone") {
  Images p;
  const BufferId a = p.by(test_ops().map, {p.image(p.by(convolution(), {p.image(p.input(product(p.sizes)))}))});
  p.seen(copy(), p.operand(a, Access::kRead, {2, 4, 5, 3}, {60, 5, 1, 20}, 0));
  CHECK(changed(p) == 2);
}

TEST_CASE("gradients of a convolution whose input is row-major are row-major, but for the first one's") {
  for (const bool of_input : {false, true}) {
    Images p;
    const BufferId x = p.input(product(p.sizes));
    const Operand weight = p.operand(p.input(9), Access::kRead, {3, 3, 1, 1}, {3, 1, 1, 1}, 0);
    const BufferId gradient = p.by(convolution(), {p.image(p.input(product(p.sizes)))});
    std::vector<Operand> operands{p.image(gradient), p.image(x), weight};
    const BufferId of_weight = p.empty(9);
    const BufferId made = p.empty(product(p.sizes));
    if (of_input) operands.push_back(p.image(made, Access::kWrite));
    operands.push_back(p.operand(of_weight, Access::kWrite, {3, 3, 1, 1}, {3, 1, 1, 1}, 0));
    p.add(convolution(), std::move(operands));
    p.escape(of_weight);
    if (of_input) p.escape(p.by(convolution(), {p.image(made)}));
    CHECK(use_channels_last(*save(p)) == (of_input ? 0 : 1));
  }
}

TEST_CASE("random windows of images hold the same values in either layout") {
  std::mt19937 random(7);
  size_t all = 0;
  for (int round = 0; round < 600; ++round) {
    Images p;
    const auto up_to = [&](int64_t most) { return static_cast<int64_t>(1 + random() % static_cast<uint64_t>(most)); };
    p.sizes = {up_to(3), up_to(4), up_to(4)};
    for (int i = 0; i < round % 3; ++i) p.sizes.push_back(up_to(4));
    const size_t last = p.sizes.size() - 1;
    const BufferId x = p.input(product(p.sizes));
    std::vector<BufferId> images{p.by(convolution(), {p.image(x)})};
    for (int i = 0; i < 3; ++i) {
      images.push_back(p.by(random() % 2 == 0 ? convolution() : test_ops().map,
                            {p.image(images.back()), p.image(images[random() % images.size()])}));
    }
    p.escape(p.by(convolution(), {p.image(images.back())}));
    for (int i = 0; i < 2; ++i) {
      // Slices with steps, in any order of the dimensions; sometimes all pixels as one.
      const Sizes strides = rows(p.sizes);
      Sizes sizes, own;
      int64_t offset = 0;
      std::vector<size_t> order(p.sizes.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      const bool flat = random() % 3 == 0;
      for (const size_t d : order) {
        if (flat && d == last - 1) continue;
        if (flat && d == last) {
          sizes.push_back(p.sizes[last - 1] * p.sizes[last]);
          own.push_back(1);
          continue;
        }
        const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(p.sizes[d])), step = up_to(2);
        offset += begin * strides[d];
        sizes.push_back((p.sizes[d] - begin + step - 1) / step);
        own.push_back(step * strides[d]);
      }
      p.seen(test_ops().map, p.operand(images[random() % images.size()], Access::kRead, sizes, own, offset));
    }
    all += changed(p);
  }
  CHECK(all > 400);
}

}  // namespace hetero::graph::testing
