// Convolutions: ours give the CPU's values, what is unusual goes to the stock kernel, and the choice is made once.

#include "ops/convolution/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <stdlib.h>
#include <torch/library.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <tuple>

#include "backend/cpu/kernels/panel_gemm.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/packed_product.h"
#include "ops/memory/packed_weights.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

namespace fs = std::filesystem;
using Implementation = ConvolutionImplementation;

// PyTorch's Meta kernels of convolutions are Python; these tests have none.
at::Tensor meta_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>&,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef, int64_t groups) {
  std::vector<int64_t> sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const int64_t reach = dilation[d - 2] * (weight.size(d) - 1);
    sizes.push_back(transposed ? (input.size(d) - 1) * stride[d - 2] - 2 * padding[d - 2] + reach + 1
                               : (input.size(d) + 2 * padding[d - 2] - reach - 1) / stride[d - 2] + 1);
  }
  return at::empty(sizes, input.options());
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
    at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool, at::IntArrayRef, int64_t, std::array<bool, 3> mask) {
  const auto like = [&](bool wanted, at::IntArrayRef sizes) {
    return wanted ? at::empty(sizes, gradient.options()) : at::Tensor();
  };
  const at::MemoryFormat order = input.dim() == 4 ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
  return {mask[0] ? at::empty(input.sizes(), input.options(), order) : at::Tensor(), like(mask[1], weight.sizes()),
          like(mask[2], *bias_sizes)};
}
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("convolution", TORCH_FN(meta_convolution));
  library.impl("convolution_backward", TORCH_FN(meta_convolution_backward));
}

// The arguments behind the tensors; sizes and numbers of one call.
struct Case {
  std::vector<int64_t> input, weight;
  std::vector<int64_t> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  bool transposed = false;
  int64_t groups = 1;

  std::vector<int64_t> output_padding() const { return std::vector<int64_t>(stride.size(), 0); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias) const {
    return at::convolution(x, w, bias, stride, padding, dilation, transposed, output_padding(), groups);
  }
  std::vector<at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w,
                                   std::array<bool, 3> mask) const {
    const auto [a, b, c] = at::convolution_backward(gradient, x, w, at::IntArrayRef(weight[0]), stride, padding,
                                                    dilation, transposed, output_padding(), groups, mask);
    return {a, b, c};
  }
};

const Case kCases[] = {
    {.input = {8, 20, 4, 4}, .weight = {30, 20, 3, 3}, .padding = {1, 1}},
    {.input = {3, 5, 9, 7}, .weight = {6, 5, 3, 2}, .stride = {2, 1}, .padding = {0, 2}, .dilation = {1, 2}},
    {.input = {2, 3, 20, 20}, .weight = {8, 3, 7, 7}, .stride = {2, 2}, .padding = {3, 3}},
    {.input = {4, 16, 6, 6}, .weight = {24, 16, 1, 1}},
    {.input = {4, 16, 6, 6}, .weight = {24, 16, 1, 1}, .stride = {2, 2}},
    {.input = {1, 16, 6, 6}, .weight = {24, 16, 1, 1}},
    {.input = {5, 4, 30}, .weight = {7, 4, 3}, .stride = {2}, .padding = {1}, .dilation = {1}},
};

// PyTorch's default tolerances; the absolute one scaled by the size of what is summed.
bool close(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor host = actual.cpu();
  if (host.sizes() != expected.sizes() || host.strides() != expected.strides()) return false;
  return at::allclose(host, expected, 1.3e-6, 1e-5 * std::sqrt(1000.0));
}

class ConvolutionTest : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    convolution_choices().restart("");
  }
  void TearDown() override {
    force_convolution_implementation(std::nullopt);
    config().fusion = true;
    convolution_choices().restart("");
    OpsTest::TearDown();
  }

  static int64_t own_runs() { return convolution_counts().runs[static_cast<int>(Implementation::kUnfolded)]; }
  static at::Tensor settled(at::Tensor tensor) {
    flush_all(SyncReason::kFlush);
    return tensor;
  }
  // Runs `call` once more after it was seen, so that it is recorded, and returns how often ours ran.
  template <typename Call>
  static int64_t own_runs_in(const Call& call) {
    const auto first = call();
    flush_all(SyncReason::kFlush);
    const int64_t before = own_runs();
    const auto second = call();
    flush_all(SyncReason::kFlush);
    return own_runs() - before;
  }
};

TEST_F(ConvolutionTest, ComputesWhatTheCpuComputes) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c10::str(c.input, " ", c.weight));
    const at::Tensor x = numbers(c.input, 1), w = numbers(c.weight, 2), bias = numbers({c.weight[0]}, 3);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                     bias_there = settled(on_device(bias));
    force_convolution_implementation(Implementation::kUnfolded);
    EXPECT_EQ(own_runs_in([&] { return c.forward(x_there, w_there, std::nullopt); }), 1);
    EXPECT_EQ(own_runs_in([&] { return c.forward(x_there, w_there, bias_there); }), 1);
    EXPECT_TRUE(close(c.forward(x_there, w_there, std::nullopt), c.forward(x, w, std::nullopt)));
    EXPECT_TRUE(close(c.forward(x_there, w_there, bias_there), c.forward(x, w, bias)));
  }
}

const Case kDepthwiseCases[] = {
    {.input = {2, 17, 9, 7}, .weight = {17, 1, 3, 3}, .padding = {1, 1}, .groups = 17},
    {.input = {1, 16, 10, 10}, .weight = {16, 1, 5, 3}, .stride = {2, 1}, .dilation = {1, 2}, .groups = 16},
    {.input = {3, 40, 6, 6}, .weight = {40, 1, 7, 7}, .padding = {3, 3}, .groups = 40},
};

TEST_F(ConvolutionTest, DepthwiseOnesComputeWhatTheCpuComputes) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kDepthwise)]; };
  for (const Case& c : kDepthwiseCases) {
    SCOPED_TRACE(c10::str(c.input, " ", c.weight));
    const at::Tensor x = numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor w = numbers(c.weight, 2), bias = numbers({c.weight[0]}, 3);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                     bias_there = settled(on_device(bias));
    force_convolution_implementation(Implementation::kDepthwise);
    // Beyond kUsesBeforePacking the taps are kept, until the weight changes.
    for (int use = 0; use < 2 * kUsesBeforePacking; ++use) {
      const int64_t before = runs();
      EXPECT_TRUE(close(c.forward(x_there, w_there, std::nullopt), c.forward(x, w, std::nullopt)));
      EXPECT_TRUE(close(c.forward(x_there, w_there, bias_there), c.forward(x, w, bias)));
      EXPECT_EQ(runs() - before, 2);
    }
    EXPECT_GT(linear_counts().packed_bytes, 0);
    w_there.mul_(2);
    w.mul_(2);
    flush_all(SyncReason::kFlush);
    EXPECT_TRUE(close(c.forward(x_there, w_there, bias_there), c.forward(x, w, bias)));
    // Row-major images, and several outputs of a channel, are not theirs.
    const int64_t before = runs();
    const at::Tensor rows = x.contiguous(), rows_there = settled(on_device(rows));
    EXPECT_TRUE(close(c.forward(rows_there, w_there, bias_there), c.forward(rows, w, bias)));
    const at::Tensor twice = at::cat({w, w}), twice_there = settled(on_device(twice));
    EXPECT_TRUE(close(c.forward(x_there, twice_there, std::nullopt), c.forward(x, twice, std::nullopt)));
    EXPECT_EQ(runs(), before);
  }
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(ConvolutionTest, LayoutsThatAreRowMajorAsWellHaveTheirChannelsLast) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kDepthwise)]; };
  force_convolution_implementation(Implementation::kDepthwise);
  const Case global{.input = {2, 20, 5, 5}, .weight = {20, 1, 5, 5}, .groups = 20};  // one pixel remains
  const at::Tensor x = numbers(global.input, 1).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = numbers(global.weight, 2);
  const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
  const int64_t before = runs();
  EXPECT_TRUE(close(global.forward(x_there, w_there, std::nullopt), global.forward(x, w, std::nullopt)));
  EXPECT_EQ(runs() - before, 1);
}

const Case kPatchCases[] = {
    {.input = {2, 17, 9, 7}, .weight = {12, 17, 3, 3}, .padding = {1, 1}},
    {.input = {1, 16, 10, 10}, .weight = {40, 16, 5, 3}, .stride = {2, 1}, .padding = {0, 3}, .dilation = {1, 2}},
    {.input = {3, 8, 6, 6}, .weight = {24, 8, 1, 1}},
    {.input = {3, 8, 6, 6}, .weight = {24, 8, 1, 1}, .stride = {2, 2}},
    {.input = {2, 64, 30, 30}, .weight = {64, 64, 3, 3}, .padding = {1, 1}},
    {.input = {1, 256, 26, 26}, .weight = {300, 256, 3, 3}, .padding = {1, 1}},
    {.input = {2, 12, 1, 40}, .weight = {8, 12, 1, 4}, .padding = {0, 6}, .dilation = {1, 4}},
};

at::Tensor forward_in_double(const Case& c, const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias) {
  return c.forward(x.to(at::kDouble), w.to(at::kDouble), bias ? std::optional(bias->to(at::kDouble)) : std::nullopt);
}

// Of float32: within some roundings of the largest sum.
bool near_truth(const at::Tensor& actual, const at::Tensor& truth) {
  const at::Tensor host = actual.cpu().to(at::kDouble);
  if (host.sizes() != truth.sizes() || host.strides() != truth.strides()) return false;
  return (host - truth).abs().max().item<double>() <= 1e-5 * truth.abs().max().item<double>();
}

// Only the addresses of pixels take groups.
const Case kGroupCases[] = {
    {.input = {2, 12, 7, 7}, .weight = {24, 4, 3, 3}, .padding = {1, 1}, .groups = 3},
    {.input = {1, 64, 9, 10}, .weight = {64, 8, 3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 8},
    {.input = {2, 48, 1, 30}, .weight = {96, 24, 1, 5}, .padding = {0, 4}, .dilation = {1, 2}, .groups = 2},
    {.input = {2, 24, 5, 5}, .weight = {24, 12, 1, 1}, .groups = 2},
};
bool takes(Implementation by, const Case& c) {
  return c.groups == 1 || (by == Implementation::kDirect && c.weight[1] > 1);
}

TEST_F(ConvolutionTest, ProductsOfPatchesComputeWhatTheCpuComputes) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kPanels)]; };
  std::vector<Case> cases(std::begin(kPatchCases), std::end(kPatchCases));
  cases.insert(cases.end(), std::begin(kGroupCases), std::end(kGroupCases));
  for (const Implementation by : {Implementation::kPanels, Implementation::kTiles, Implementation::kDirect}) {
    for (const Case& c : cases) {
      if (!takes(by, c)) continue;
      for (const bool weight_last : {false, true}) {
        SCOPED_TRACE(c10::str(to_string(by), " ", c.input, " ", c.weight, weight_last ? " last" : ""));
        const at::Tensor x = numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast);
        const at::Tensor bias = numbers({c.weight[0]}, 3);
        at::Tensor w = numbers(c.weight, 2);
        if (weight_last) w = w.contiguous(at::MemoryFormat::ChannelsLast);
        const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                         bias_there = settled(on_device(bias));
        force_convolution_implementation(by);
        const auto use = [&] {
          for (int i = 0; i < kUsesBeforePacking; ++i) settled(c.forward(x_there, w_there, bias_there));
        };
        use();
        const int64_t before = runs();
        EXPECT_TRUE(near_truth(c.forward(x_there, w_there, bias_there), forward_in_double(c, x, w, bias)));
        EXPECT_TRUE(near_truth(c.forward(x_there, w_there, std::nullopt), forward_in_double(c, x, w, std::nullopt)));
        const bool ran = runs() > before;
        EXPECT_TRUE(ran || by == Implementation::kTiles || !backend::has_panels());
        w_there.mul_(0.5);
        w.mul_(0.5);
        flush_all(SyncReason::kFlush);
        use();
        EXPECT_TRUE(near_truth(c.forward(x_there, w_there, bias_there), forward_in_double(c, x, w, bias)));
        // Values that bfloat16 cannot have, or that are no numbers.
        at::Tensor wild = x.clone();
        wild.mutable_data_ptr<float>()[3] = std::numeric_limits<float>::infinity();
        wild.mutable_data_ptr<float>()[wild.numel() - 1] = 1e30F;
        const at::Tensor there = settled(on_device(wild));
        EXPECT_TRUE(at::allclose(c.forward(there, w_there, bias_there).cpu(), c.forward(wild, w, bias), 1e-4, 1e-2,
                                 /*equal_nan=*/true));
        force_convolution_implementation(std::nullopt);
      }
    }
  }
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

// Images with their channels last, a weight and a bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> operands_of(const Case& c) {
  return {numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast), numbers(c.weight, 2),
          numbers({c.weight[0]}, 3)};
}

TEST_F(ConvolutionTest, WinogradsComputeWhatTheCpuComputes) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kWinograd)]; };
  for (const Case& c : {
           Case{.input = {2, 16, 9, 12}, .weight = {24, 16, 3, 3}, .padding = {1, 1}},
           Case{.input = {1, 40, 7, 7}, .weight = {20, 40, 3, 3}, .padding = {0, 2}},
           Case{.input = {2, 48, 8, 6}, .weight = {36, 16, 3, 3}, .padding = {1, 1}, .groups = 3},
           Case{.input = {1, 16, 13, 14}, .weight = {20, 16, 3, 3}, .padding = {2, 3}, .dilation = {2, 3}},
       }) {
    SCOPED_TRACE(c10::str(c.input, " ", c.weight));
    const auto [x, w, bias] = operands_of(c);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                     bias_there = settled(on_device(bias));
    force_convolution_implementation(Implementation::kWinograd);
    const auto use = [&] {
      for (int i = 0; i < kUsesBeforePacking; ++i) settled(c.forward(x_there, w_there, bias_there));
    };
    const auto near = [&](const at::Tensor& images, const at::Tensor& there) {
      return near_truth(c.forward(there, w_there, bias_there), forward_in_double(c, images, w, bias)) &&
             near_truth(c.forward(there, w_there, std::nullopt), forward_in_double(c, images, w, std::nullopt));
    };
    use();
    const int64_t before = runs();
    EXPECT_TRUE(near(x, x_there));
    EXPECT_EQ(runs() - before, backend::has_panels() ? 2 : 0);
    w_there.mul_(0.5);
    w.mul_(0.5);
    flush_all(SyncReason::kFlush);
    use();
    EXPECT_TRUE(near(x, x_there));
    // What would take digits from its neighbours, or spread to them.
    for (const float wild : {1e6F, 1e30F, std::numeric_limits<float>::infinity()}) {
      at::Tensor images = x.clone();
      images.mutable_data_ptr<float>()[3] = wild;
      const at::Tensor there = settled(on_device(images));
      EXPECT_TRUE(at::equal(c.forward(there, w_there, bias_there).cpu().nan_to_num(5),
                            c.forward(images, w, bias).nan_to_num(5)));
    }
    force_convolution_implementation(std::nullopt);
  }
}

TEST_F(ConvolutionTest, FewOutputsAreWhatTheCpuComputes) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kFewOutputs)]; };
  for (const Case& c : {
           Case{.input = {2, 32, 9, 12}, .weight = {3, 32, 3, 3}, .padding = {1, 1}},
           Case{.input = {1, 16, 17, 7}, .weight = {1, 16, 9, 9}, .padding = {4, 4}},
           Case{.input = {1, 64, 8, 6}, .weight = {4, 64, 1, 1}},
           Case{.input = {1, 16, 13, 14}, .weight = {2, 16, 3, 3}, .padding = {2, 3}, .dilation = {2, 3}},
       }) {
    SCOPED_TRACE(c10::str(c.input, " ", c.weight));
    const auto [x, w, bias] = operands_of(c);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                     bias_there = settled(on_device(bias));
    force_convolution_implementation(Implementation::kFewOutputs);
    for (const double factor : {1.0, 0.5}) {  // the second weight in the first one's place
      w.mul_(factor);
      w_there.mul_(factor);
      flush_all(SyncReason::kFlush);
      for (int i = 0; i < kUsesBeforePacking; ++i) settled(c.forward(x_there, w_there, bias_there));
      const int64_t before = runs();
      EXPECT_TRUE(near_truth(c.forward(x_there, w_there, bias_there), forward_in_double(c, x, w, bias)));
      EXPECT_TRUE(near_truth(c.forward(x_there, w_there, std::nullopt), forward_in_double(c, x, w, std::nullopt)));
      EXPECT_EQ(runs() - before, backend::has_panels() ? 2 : 0);
    }
    force_convolution_implementation(std::nullopt);
  }
}

TEST_F(ConvolutionTest, GradientsByWinogradsAlgorithmAreNearTheTruth) {
  const auto runs = [] { return counters().own_kernels[static_cast<size_t>(OwnKernel::kConvolutionBackward)].load(); };
  force_convolution_implementation(Implementation::kWinograd);
  for (const Case& c : {
           Case{.input = {2, 16, 9, 12}, .weight = {24, 16, 3, 3}, .padding = {1, 1}},
           Case{.input = {1, 40, 7, 8}, .weight = {20, 40, 3, 3}, .padding = {0, 2}},
           Case{.input = {2, 48, 8, 6}, .weight = {60, 16, 3, 3}, .padding = {1, 1}, .groups = 3},
           Case{.input = {1, 16, 13, 14}, .weight = {20, 16, 3, 3}, .padding = {2, 4}, .dilation = {2, 3}},
       }) {
    SCOPED_TRACE(c10::str(c.input, " ", c.weight));
    const at::Tensor x = numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast), w = numbers(c.weight, 2);
    const at::Tensor gradient =
        at::randn(c.forward(x, w, std::nullopt).sizes(), x.options()).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
    const auto check = [&](const at::Tensor& given, std::array<bool, 3> mask) {
      const std::vector<at::Tensor> made = c.backward(settled(on_device(given)), x_there, w_there, mask);
      const std::vector<at::Tensor> truth =
          c.backward(given.to(at::kDouble), x.to(at::kDouble), w.to(at::kDouble), {true, true, true});
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(made[i].defined(), mask[i]);
        if (mask[i]) {
          EXPECT_LE((made[i].cpu().to(at::kDouble) - truth[i]).abs().max().item<double>(),
                    1e-5 * truth[i].abs().max().item<double>());
        }
      }
    };
    const int64_t before = runs();
    check(gradient, {true, true, true});
    check(gradient, {true, false, false});
    check(gradient, {true, true, false});
    EXPECT_EQ(runs() - before, backend::has_panels() ? 3 : 0);
    check(gradient, {false, true, true});
    EXPECT_EQ(runs() - before, backend::has_panels() ? 3 : 0);
    at::Tensor wild = gradient.clone();
    wild.mutable_data_ptr<float>()[7] = 1e9F;
    check(wild, {true, true, true});
  }
  force_convolution_implementation(std::nullopt);
}

TEST_F(ConvolutionTest, SmallTapsBesideLargeOnesAreNotLost) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kWinograd)]; };
  const Case c{.input = {1, 16, 9, 12}, .weight = {24, 16, 3, 3}, .padding = {1, 1}};
  at::Tensor x = at::zeros(c.input).contiguous(at::MemoryFormat::ChannelsLast), w = at::zeros(c.weight);
  x.select(3, 5).fill_(1);
  w.select(3, 0).fill_(1);
  w.select(3, 2).fill_(1e8);
  const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
  const int64_t before = runs();
  // As kept filters, and as a training step makes them.
  for (const bool trains : {false, true}) {
    if (!trains) force_convolution_implementation(Implementation::kWinograd);
    for (int i = 0; i <= kUsesBeforePacking; ++i) {
      EXPECT_TRUE(at::equal(c.forward(x_there, w_there, std::nullopt).cpu(), c.forward(x, w, std::nullopt)));
      const at::Tensor gradient = at::ones({1, 24, 9, 12}).contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor made = c.backward(settled(on_device(gradient)), x_there, w_there, {true, false, false})[0].cpu();
      EXPECT_TRUE(at::allclose(made, c.backward(gradient, x, w, {true, false, false})[0], 1e-6));
    }
    force_convolution_implementation(std::nullopt);
  }
  EXPECT_EQ(runs(), before);
}

TEST_F(ConvolutionTest, WinogradsAreNotForcedOnWhatTheyDoNotFit) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kWinograd)]; };
  force_convolution_implementation(Implementation::kWinograd);
  const int64_t before = runs();
  const auto use = [&](const Case& c) {
    const at::Tensor x = numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast), w = numbers(c.weight, 2);
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
    for (int i = 0; i <= kUsesBeforePacking; ++i) {
      EXPECT_TRUE(near_truth(c.forward(x_there, w_there, std::nullopt), forward_in_double(c, x, w, std::nullopt)));
    }
  };
  use({.input = {1, 16, 9, 9}, .weight = {16, 16, 3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  use({.input = {1, 16, 9, 9}, .weight = {16, 16, 3, 1}, .padding = {1, 0}});
  use({.input = {1, 3, 9, 9}, .weight = {16, 3, 3, 3}, .padding = {1, 1}});
  config().winograd = false;
  use({.input = {1, 16, 9, 9}, .weight = {16, 16, 3, 3}, .padding = {1, 1}});
  config().winograd = true;
  EXPECT_EQ(runs(), before);
  force_convolution_implementation(std::nullopt);
}

TEST_F(ConvolutionTest, DirectOnesOfEitherLayoutComputeWhatTheCpuComputes) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kDirect)]; };
  for (const Case& c : {
           Case{.input = {2, 1, 28, 30}, .weight = {12, 1, 3, 3}, .padding = {1, 1}},
           Case{.input = {1, 3, 40, 40}, .weight = {20, 3, 7, 7}, .stride = {2, 2}, .padding = {3, 3}},
           Case{.input = {2, 3, 32, 32}, .weight = {16, 3, 8, 8}, .stride = {8, 8}},
           Case{.input = {2, 8, 9, 9}, .weight = {5, 8, 3, 3}, .padding = {4, 4}, .dilation = {3, 1}},
           Case{.input = {2, 1, 400}, .weight = {24, 1, 10}, .stride = {5}, .padding = {0}, .dilation = {1}},
           Case{.input = {2, 40, 14, 15}, .weight = {20, 40, 3, 3}, .padding = {1, 1}},
           Case{.input = {1, 16, 300}, .weight = {24, 16, 3}, .stride = {1}, .padding = {8}, .dilation = {4}},
           Case{.input = {2, 24, 9, 9}, .weight = {18, 8, 3, 3}, .padding = {1, 1}, .groups = 3},
       }) {
    for (const bool last : {false, true}) {
      SCOPED_TRACE(c10::str(c.input, " ", c.weight, last ? " last" : ""));
      if (last && c.input.size() == 3) continue;
      const at::Tensor w = numbers(c.weight, 2), bias = numbers({c.weight[0]}, 3);
      at::Tensor x = numbers(c.input, 1);
      if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                       bias_there = settled(on_device(bias));
      force_convolution_implementation(Implementation::kDirect);
      for (int i = 0; i < kUsesBeforePacking; ++i) settled(c.forward(x_there, w_there, bias_there));
      const int64_t before = runs();
      EXPECT_TRUE(near_truth(c.forward(x_there, w_there, bias_there), forward_in_double(c, x, w, bias)));
      EXPECT_TRUE(near_truth(c.forward(x_there, w_there, std::nullopt), forward_in_double(c, x, w, std::nullopt)));
      EXPECT_EQ(runs() - before, backend::has_panels() ? 2 : 0);
      force_convolution_implementation(std::nullopt);
    }
  }
}

TEST_F(ConvolutionTest, AWeightMayHaveGroupsInSeveralWays) {
  force_convolution_implementation(Implementation::kDirect);
  const at::Tensor w = numbers({24, 4, 3, 3}, 2), w_there = settled(on_device(w));
  for (int round = 0; round < 2 * kUsesBeforePacking; ++round) {
    for (const int64_t groups : {1, 3, 6}) {
      const Case c{.input = {2, 4 * groups, 7, 7}, .weight = {24, 4, 3, 3}, .padding = {1, 1}, .groups = groups};
      const at::Tensor x = numbers(c.input, 1).contiguous(at::MemoryFormat::ChannelsLast);
      EXPECT_TRUE(near_truth(c.forward(settled(on_device(x)), w_there, std::nullopt),
                             forward_in_double(c, x, w, std::nullopt)));
    }
  }
  force_convolution_implementation(std::nullopt);
}

TEST_F(ConvolutionTest, ImagesOf16BitsHavePackedFiltersToo) {
  const auto runs = [](Implementation by) { return convolution_counts().runs[static_cast<int>(by)]; };
  std::vector<Case> cases(std::begin(kPatchCases), std::end(kPatchCases));
  cases.insert(cases.end(), std::begin(kDepthwiseCases), std::end(kDepthwiseCases));
  cases.insert(cases.end(), std::begin(kGroupCases), std::end(kGroupCases));
  for (const Implementation by : {Implementation::kPacked, Implementation::kDepthwise, Implementation::kPanels,
                                  Implementation::kTiles, Implementation::kDirect}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const Case& c : cases) {
        SCOPED_TRACE(c10::str(to_string(by), " ", dtype, " ", c.input, " ", c.weight));
        const at::Tensor x = numbers(c.input, 1).to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
        const at::Tensor w = numbers(c.weight, 2).to(dtype), bias = numbers({c.weight[0]}, 3).to(dtype);
        const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                         bias_there = settled(on_device(bias));
        force_convolution_implementation(by);
        for (int i = 0; i < kUsesBeforePacking; ++i) settled(c.forward(x_there, w_there, bias_there));
        const int64_t before = runs(by);
        const at::Tensor made = c.forward(x_there, w_there, bias_there).cpu();
        // Pairs of channels are multiplied together by some instructions.
        const bool has_pairs = c.weight[1] % 2 == 0;
        const bool must_run = by == Implementation::kPacked   ? onednn_computes(dtype)
                              : by == Implementation::kPanels ? c.groups == 1 && backend::has_panels()
                              : by == Implementation::kDirect ? takes(by, c) && has_pairs && backend::has_panels()
                                                              : by == Implementation::kDepthwise && c.weight[1] == 1;
        EXPECT_TRUE(runs(by) > before || !must_run);
        const at::Tensor expected = c.forward(x.to(at::kDouble), w.to(at::kDouble), bias.to(at::kDouble));
        EXPECT_TRUE(made.strides() == c.forward(x, w, bias).strides());
        EXPECT_LE((made.to(at::kDouble) - expected).abs().max().item<double>(),
                  0.01 * expected.abs().max().item<double>());
        force_convolution_implementation(std::nullopt);
      }
    }
  }
}

TEST_F(ConvolutionTest, GroupsOnTilesKeepWhatIsNoNumberInItsGroup) {
  const auto runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kTiles)]; };
  const bool must_run = may_use_tiles(backend::Element::kBfloat16);
  // One weight for two numbers of groups, whose sets differ.
  const at::Tensor w = numbers({64, 8, 3, 3}, 2).to(at::kBFloat16), w_there = settled(on_device(w));
  force_convolution_implementation(Implementation::kTiles);
  for (int round = 0; round < kUsesBeforePacking + 2; ++round) {
    for (const int64_t groups : {4, 8}) {
      const Case c{.input = {1, 8 * groups, 9, 10}, .weight = {64, 8, 3, 3}, .padding = {1, 1}, .groups = groups};
      at::Tensor x = numbers(c.input, 1).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
      if (round % 2 == 1) x.select(1, 3).select(1, 4).fill_(std::numeric_limits<float>::infinity());
      const int64_t before = runs();
      const at::Tensor made = c.forward(settled(on_device(x)), w_there, std::nullopt).cpu();
      EXPECT_TRUE(at::allclose(made, c.forward(x, w, std::nullopt), 0.02, 0.05, /*equal_nan=*/true));
      EXPECT_TRUE(runs() > before || round < kUsesBeforePacking || round % 2 == 1 || !must_run);
    }
  }
  force_convolution_implementation(std::nullopt);
}

const Case kPackedCases[] = {
    {.input = {2, 8, 9, 7}, .weight = {12, 8, 3, 3}, .padding = {1, 1}},
    {.input = {1, 16, 10, 10}, .weight = {16, 1, 3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 16},
    {.input = {3, 8, 6, 6}, .weight = {12, 2, 5, 3}, .padding = {2, 1}, .dilation = {1, 2}, .groups = 4},
    {.input = {2, 3, 20, 20}, .weight = {8, 3, 7, 7}, .stride = {2, 2}, .padding = {3, 3}},
    {.input = {2, 4, 5, 6, 7},
     .weight = {6, 4, 3, 1, 3},
     .stride = {1, 2, 1},
     .padding = {1, 0, 2},
     .dilation = {2, 1, 1}},
    {.input = {1, 4, 3, 6, 6},
     .weight = {8, 2, 1, 3, 3},
     .stride = {1, 1, 1},
     .padding = {0, 1, 1},
     .dilation = {1, 1, 1},
     .groups = 2},
    {.input = {2, 8, 5, 6}, .weight = {8, 6, 2, 2}, .stride = {2, 2}, .transposed = true},
    {.input = {1, 6, 7, 5}, .weight = {6, 4, 3, 3}, .stride = {1, 2}, .padding = {1, 1}, .transposed = true},
    {.input = {2, 6, 4, 4}, .weight = {6, 3, 3, 2}, .dilation = {2, 1}, .transposed = true, .groups = 2},
};

TEST_F(ConvolutionTest, KeepsAPackedWeightUntilItChanges) {
  const auto packed_runs = [] { return convolution_counts().runs[static_cast<int>(Implementation::kPacked)]; };
  force_convolution_implementation(Implementation::kPacked);
  for (const Case& c : kPackedCases) {
    for (const bool last : {false, true}) {
      SCOPED_TRACE(c10::str(c.input, " ", c.weight, last ? " last" : ""));
      const auto format = !last                ? at::MemoryFormat::Contiguous
                          : c.input.size() < 5 ? at::MemoryFormat::ChannelsLast
                                               : at::MemoryFormat::ChannelsLast3d;
      const at::Tensor x = numbers(c.input, 1).contiguous(format);
      const at::Tensor bias = numbers({c.transposed ? c.weight[1] * c.groups : c.weight[0]}, 3);
      at::Tensor w = numbers(c.weight, 2);
      const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                       bias_there = settled(on_device(bias));
      for (int use = 0; use < kUsesBeforePacking; ++use) settled(c.forward(x_there, w_there, bias_there));
      for (int change = 0; change < 2; ++change) {
        const int64_t before = packed_runs(), bytes = linear_counts().packed_bytes;
        EXPECT_TRUE(close(c.forward(x_there, w_there, bias_there), c.forward(x, w, bias)));
        EXPECT_EQ(packed_runs() - before, 1);
        EXPECT_GE(linear_counts().packed_bytes, bytes);
        w_there.mul_(2);
        w.mul_(2);
        flush_all(SyncReason::kFlush);
        EXPECT_TRUE(close(c.forward(x_there, w_there, bias_there), c.forward(x, w, bias)));
        for (int use = 0; use < kUsesBeforePacking; ++use) settled(c.forward(x_there, w_there, bias_there));
      }
    }
  }
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(ConvolutionTest, PacksNoWeightWithoutRoomOrWithFusionOff) {
  const Case& c = kPackedCases[0];
  const at::Tensor x = settled(on_device(numbers(c.input, 1))), w = settled(on_device(numbers(c.weight, 2)));
  const auto runs = [&] {
    const int64_t before = convolution_counts().runs[static_cast<int>(Implementation::kPacked)];
    for (int use = 0; use < 2 * kUsesBeforePacking; ++use) {
      settled(c.forward(x, w, std::nullopt));
    }
    return convolution_counts().runs[static_cast<int>(Implementation::kPacked)] - before;
  };
  force_convolution_implementation(Implementation::kPacked);
  const int64_t room = config().packed_bytes;
  config().packed_bytes = 0;
  EXPECT_EQ(runs(), 0);
  config().packed_bytes = room;
  config().fusion = false;
  EXPECT_EQ(runs(), 0);
  config().fusion = true;
  EXPECT_GT(runs(), 0);
}

// Each choice of gradients, against the CPU's.
void check_gradients(const Case& c, Implementation by, at::MemoryFormat format) {
  const at::Tensor x = numbers(c.input, 1).contiguous(format), w = numbers(c.weight, 2);
  const at::Tensor gradient = numbers(c.forward(x, w, std::nullopt).sizes(), 3).contiguous(format);
  const at::Tensor x_there = ConvolutionTest::settled(on_device(x)), w_there = ConvolutionTest::settled(on_device(w)),
                   gradient_there = ConvolutionTest::settled(on_device(gradient));
  force_convolution_implementation(by);
  for (int bits = 1; bits < 8; ++bits) {
    const std::array<bool, 3> mask{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    SCOPED_TRACE(c10::str(c.input, " ", c.weight, " mask ", bits));
    const std::vector<at::Tensor> expected = c.backward(gradient, x, w, mask);
    // oneDNN gives the weight's gradient with the bias's, wanted or not; such a call is not ours.
    const bool exact = expected[0].defined() == mask[0] && expected[1].defined() == mask[1];
    EXPECT_EQ(ConvolutionTest::own_runs_in([&] { return c.backward(gradient_there, x_there, w_there, mask); }), exact);
    const std::vector<at::Tensor> actual = c.backward(gradient_there, x_there, w_there, mask);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(actual[i].defined(), expected[i].defined());
      EXPECT_TRUE(!actual[i].defined() || close(actual[i], expected[i]));
    }
  }
}

TEST_F(ConvolutionTest, ComputesTheGradientsThatAreWanted) {
  for (const Case& c : kCases) check_gradients(c, Implementation::kUnfolded, at::MemoryFormat::Contiguous);
}

TEST_F(ConvolutionTest, ComputesGradientsByPixels) {
  for (const Case& c : kDepthwiseCases) check_gradients(c, Implementation::kPixels, at::MemoryFormat::ChannelsLast);
  check_gradients(kCases[3], Implementation::kPixels, at::MemoryFormat::ChannelsLast);
  check_gradients(kCases[5], Implementation::kPixels, at::MemoryFormat::ChannelsLast);
}

TEST_F(ConvolutionTest, OperandsMayBePartsOfOtherTensors) {
  const Case c = kCases[0];
  const at::Tensor x = numbers({3, 8, 20, 4, 4}, 1), w = numbers({60, 20, 3, 3}, 2);
  const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
  force_convolution_implementation(Implementation::kUnfolded);
  const auto call = [&](const at::Tensor& a, const at::Tensor& b) {
    return c.forward(a.select(0, 1), b.narrow(0, 30, 30), std::nullopt);
  };
  EXPECT_EQ(own_runs_in([&] { return call(x_there, w_there); }), 1);
  EXPECT_TRUE(close(call(x_there, w_there), call(x, w)));
}

TEST_F(ConvolutionTest, WithFusionOffTheStockKernelRuns) {
  config().fusion = false;
  force_convolution_implementation(Implementation::kUnfolded);
  const Case c = kCases[0];
  const at::Tensor x = numbers(c.input, 1), w = numbers(c.weight, 2);
  const at::Tensor x_there = on_device(x), w_there = on_device(w);
  EXPECT_EQ(own_runs_in([&] { return c.forward(x_there, w_there, std::nullopt); }), 0);
  expect_same(c.forward(x_there, w_there, std::nullopt), c.forward(x, w, std::nullopt));
}

TEST_F(ConvolutionTest, WhatIsUnusualGoesToTheStockKernel) {
  force_convolution_implementation(Implementation::kUnfolded);
  const auto goes_to_stock = [&](const Case& c, const std::function<at::Tensor(const at::Tensor&)>& change) {
    const at::Tensor x = change(numbers(c.input, 1)), w = change(numbers(c.weight, 2));
    const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
    EXPECT_EQ(own_runs_in([&] { return c.forward(x_there, w_there, std::nullopt); }), 0);
    const at::Tensor expected = c.forward(x, w, std::nullopt);
    expect_same(c.forward(x_there, w_there, std::nullopt), expected);
    const at::Tensor gradient = change(numbers(expected.sizes(), 3));
    const at::Tensor gradient_there = settled(on_device(gradient));
    EXPECT_EQ(own_runs_in([&] { return c.backward(gradient_there, x_there, w_there, {true, true, true}); }), 0);
    expect_same(c.backward(gradient_there, x_there, w_there, {true, true, true}),
                c.backward(gradient, x, w, {true, true, true}));
  };
  const auto plain = [](const at::Tensor& tensor) { return tensor; };
  const auto channels_last = [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); };
  const auto to_double = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const auto strided = [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
  goes_to_stock(kCases[0], channels_last);
  goes_to_stock(kCases[0], to_double);
  goes_to_stock(kCases[0], strided);
  goes_to_stock({.input = {4, 6, 8, 8}, .weight = {4, 3, 3, 3}, .groups = 2}, plain);
  goes_to_stock({.input = {4, 6, 8, 8}, .weight = {6, 3, 3, 3}, .transposed = true}, plain);
  goes_to_stock({.input = {2, 2, 5, 5, 5},
                 .weight = {3, 2, 2, 2, 2},
                 .stride = {1, 1, 1},
                 .padding = {0, 0, 0},
                 .dilation = {1, 1, 1}},
                plain);
  goes_to_stock({.input = {0, 6, 8, 8}, .weight = {4, 6, 3, 3}}, plain);
}

TEST_F(ConvolutionTest, AShapeIsMeasuredOnceForEachWork) {
  const Case c = kCases[0];
  const at::Tensor x = settled(on_device(numbers(c.input, 1))), w = settled(on_device(numbers(c.weight, 2)));
  const auto measured_in = [&](const std::function<void()>& call) {
    call();
    flush_all(SyncReason::kFlush);
    const int64_t before = convolution_counts().measurements;
    convolution_choices().restart("");
    call();
    flush_all(SyncReason::kFlush);
    return convolution_counts().measurements - before;
  };
  EXPECT_EQ(measured_in([&] {
              const at::Tensor y = c.forward(x, w, std::nullopt);
              flush_all(SyncReason::kFlush);
            }),
            1);
  const at::Tensor gradient = settled(on_device(numbers({8, 30, 4, 4}, 3)));
  EXPECT_EQ(measured_in([&] {
              const auto all = c.backward(gradient, x, w, {true, true, false});
              flush_all(SyncReason::kFlush);
            }),
            1);
  ConvolutionShape shape{.geometry = {.images = 8,
                                      .channels = 20,
                                      .height = 4,
                                      .width = 4,
                                      .outputs = 30,
                                      .kernel_height = 3,
                                      .kernel_width = 3,
                                      .padding_y = 1,
                                      .padding_x = 1},
                         .threads = at::get_num_threads()};
  // On a busy machine the result is a guess; this one is not.
  convolution_choices().learn(shape, {Implementation::kUnfolded});
  const int64_t measurements = convolution_counts().measurements;
  EXPECT_EQ(own_runs_in([&] { return c.forward(x, w, std::nullopt); }), 1);
  EXPECT_EQ(convolution_counts().measurements, measurements);
}

TEST(ConvolutionChoiceFile, IsReadByOtherProcesses) {
  char name[] = "/tmp/hetero_convolution_XXXXXX";
  const fs::path folder = ::mkdtemp(name);
  const std::string path = (folder / "choices.txt").string();
  const ConvolutionShape forward{.element = backend::Element::kBfloat16,
                                 .work = ConvolutionWork::kForwardWithBias,
                                 .rank = 3,
                                 .geometry = {.images = 2,
                                              .channels = 3,
                                              .height = 4,
                                              .width = 5,
                                              .outputs = 6,
                                              .kernel_height = 7,
                                              .kernel_width = 8,
                                              .stride_y = 9,
                                              .stride_x = 10,
                                              .padding_y = 11,
                                              .padding_x = 12,
                                              .dilation_y = 13,
                                              .dilation_x = 14},
                                 .groups = 16,
                                 .output_last = true,
                                 .tiles = true,
                                 .threads = 15};
  ConvolutionShape backward = forward, other = forward;
  backward.work = ConvolutionWork::kBackward;
  backward.gradients = kOfInput | kOfBias;
  other.geometry.padding_x = 0;
  for (int process = 0; process < 2; ++process) {
    ConvolutionChoices choices(path);
    choices.learn(forward, {.plain = Implementation::kStock, .kept = Implementation::kTiles});
    choices.learn(backward, {.plain = Implementation::kUnfolded});
    choices.learn(other, {.plain = Implementation::kUnfolded, .sure = false});
  }
  const backend::CacheFile file(path, ConvolutionShape::kKind, machine_text());
  const std::string other_lines = "forward 0 1 2 3 stock\nsideways 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 stock\n";
  ASSERT_TRUE(file.write(file.read().value() + other_lines).ok());
  ConvolutionChoices third(path);
  EXPECT_EQ(third.find(forward), (ConvolutionChoice{.plain = Implementation::kStock, .kept = Implementation::kTiles}));
  EXPECT_EQ(third.find(backward), (ConvolutionChoice{.plain = Implementation::kUnfolded}));
  EXPECT_EQ(third.find(other), std::nullopt);  // a guess
  fs::remove_all(folder);
}

TEST(ConvolutionChoiceFile, ImagesOfSimilarSizeShareAChoice) {
  ConvolutionChoices choices("");
  ConvolutionShape shape{.geometry = {.images = 100, .height = 224, .width = 7}};
  choices.learn(shape, {.plain = Implementation::kUnfolded});
  shape.geometry.images = 128;
  shape.geometry.height = 130;
  EXPECT_TRUE(choices.find(shape).has_value());
  shape.geometry.width = 8;
  EXPECT_FALSE(choices.find(shape).has_value());
}

}  // namespace
}  // namespace hetero::ops::testing
