// A run of a program takes no memory from the heap and no lock, with PyTorch's kernels in it, and
// what kernels choose and pack they do in Init.
//
// malloc and pthread_mutex_lock are this program's, so calls from every library are seen. Each is
// put down to whoever made it by its stack: inside an operator of PyTorch's it is PyTorch's affair,
// everywhere else it is ours. Sanitizers bring their own; there nothing is counted.

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/file/file.h"
#include "graph/program/archive.h"
#include "ops/convolution/convolution.h"
#include "ops/kernels/linear.h"
#include "ops/program/compute_graph.h"
#include "ops/program/static_call.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace {

enum class What : uint8_t { kMemory, kLock };

struct Taken {
  std::atomic<long> ours[2]{};
  std::atomic<long> pytorchs[2]{};
};
Taken taken;
std::atomic<bool> counts{false};
thread_local bool inside = false;

bool contains(const char* text, std::string_view part) {
  return text != nullptr && std::string_view(text).find(part) != std::string_view::npos;
}

// Whether PyTorch's last function before ours is an operator that computes, and not one that makes
// tensors for us. Kernels that are called boxed have no name.
bool is_kernel(const char* function) {
  return function == nullptr || (contains(function, "at4_ops") && !contains(function, "at4_ops5empty"));
}

// The linker takes one of all libraries' copies.
bool is_of_standard_library(const char* function) {
  const std::string_view name = function == nullptr ? "" : function;
  return name.starts_with("_ZNSt") || name.starts_with("_ZNKSt") || name.starts_with("_ZSt");
}

// dladdr takes milliseconds in a library of that size.
const Dl_info& where(void* frame) {
  thread_local std::unordered_map<void*, Dl_info> known;
  const auto [found, is_new] = known.try_emplace(frame);
  if (is_new && dladdr(frame, &found->second) == 0) found->second = {};
  return found->second;
}

bool is_pytorchs(std::span<void* const> stack) {
  bool in_pytorch = false;
  const char* last = nullptr;
  for (void* const frame : stack) {
    const Dl_info& info = where(frame);
    if (info.dli_fname == nullptr) continue;
    const std::string_view path = info.dli_fname;
    const std::string_view library = path.substr(path.rfind('/') + 1);
    if (library.starts_with("libtorch") || library.starts_with("libc10")) {
      in_pytorch = true;
      last = info.dli_sname;
    } else if (library.find("hetero") != library.npos && !is_of_standard_library(info.dli_sname)) {
      return in_pytorch && is_kernel(last);
    }
  }
  return true;
}

void see(What what) {
  if (!counts.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  constexpr int kOwn = 2;  // this function and the one that is counted
  void* stack[64];
  const int depth = backtrace(stack, 64);
  const bool pytorchs = is_pytorchs(std::span<void* const>(stack, static_cast<size_t>(depth)).subspan(kOwn));
  ++(pytorchs ? taken.pytorchs : taken.ours)[static_cast<int>(what)];
  if (!pytorchs && std::getenv("HETERO_SHOW_STACKS") != nullptr) backtrace_symbols_fd(stack, depth, 2);
  inside = false;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  see(What::kMemory);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  see(What::kMemory);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  see(What::kMemory);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  see(What::kMemory);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  see(What::kMemory);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  see(What::kMemory);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  see(What::kLock);
  return lock(mutex);
}
}
#endif

namespace hetero::ops::testing {
namespace {

using Value = ComputeGraph::Value;
using Sizes = std::vector<int64_t>;

Value get(Result<Value> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.status().message());
  return result.ok() ? result.value() : Value();
}
void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message()); }

// A graph whose weights are numbered.
struct Net {
  ComputeGraph graph;
  std::vector<at::Tensor> weights;

  Value weight(Sizes sizes, double scale = 0.05) {
    weights.push_back(at::mul(numbers(sizes, weights.size() + 10), scale));
    return get(graph.constant("w" + std::to_string(weights.size()), view_of(weights.back())));
  }
  Value add(std::string_view op, ComputeGraph::Arguments arguments, ComputeGraph::Attributes attributes = {}) {
    return get(graph.add(op, std::move(arguments), std::move(attributes)));
  }
  Value linear(Value x, int64_t from, int64_t to) { return add("aten::linear", {x, weight({to, from}), weight({to})}); }
  Value normed(Value x, int64_t size) {
    return add("aten::layer_norm", {x, Sizes{size}, weight({size}), weight({size})});
  }
  std::shared_ptr<Model> model(Value result) {
    expect_ok(graph.output("result", result));
    Result<std::shared_ptr<Model>> model = graph.model();
    EXPECT_TRUE(model.ok());
    return model.ok() ? model.value() : nullptr;
  }
};

// x[rows, 256] through two layers.
struct Perceptron : Net {
  explicit Perceptron(int64_t rows) {
    const Value x = get(graph.input("x", "f32", {rows, 256}));
    shared = model(linear(add("aten::relu", {linear(x, 256, 512)}), 512, 256));
  }
  at::Tensor expected(const at::Tensor& x) const {
    return at::linear(at::relu(at::linear(x, weights[0], weights[1])), weights[2], weights[3]);
  }
  std::shared_ptr<Model> shared;
};

// A layer of a transformer with its lookup, and the hidden state of each sentence's first word.
std::shared_ptr<Model> transformer(Net& net) {
  constexpr int64_t kBatch = 2, kWords = 16, kSize = 256, kHeads = 4;
  const Value words = get(net.graph.input("words", "i64", {kBatch, kWords}));
  const Value first = get(net.graph.input("first", "i64", {kBatch}));
  const Value x = net.normed(net.add("aten::embedding", {net.weight({100, kSize}), words}), kSize);
  const auto heads = [&](Value value) {
    return net.add("aten::transpose.int", {net.add("aten::view", {value, Sizes{kBatch, kWords, kHeads, -1}}), 1, 2});
  };
  const Value q = heads(net.linear(x, kSize, kSize)), k = heads(net.linear(x, kSize, kSize)),
              v = heads(net.linear(x, kSize, kSize));
  const Value seen = net.add("aten::transpose.int", {net.add("aten::scaled_dot_product_attention", {q, k, v}), 1, 2});
  const Value joined = net.add("aten::reshape", {seen, Sizes{kBatch, kWords, kSize}});
  const Value y = net.normed(net.add("aten::add.Tensor", {x, net.linear(joined, kSize, kSize)}), kSize);
  const Value wide = net.add("aten::gelu", {net.linear(y, kSize, 4 * kSize)});
  const Value z = net.normed(net.add("aten::add.Tensor", {y, net.linear(wide, 4 * kSize, kSize)}), kSize);
  const Value rows = net.add("aten::view", {z, Sizes{kBatch * kWords, kSize}});
  const Value picked = net.add("aten::index.Tensor", {rows, std::vector<Value>{first}});
  return net.model(net.add("aten::cat", {std::vector<Value>{picked, picked}, 1}));
}

// PyTorch's is in Python. REQUIRES: two dimensions, stride and dilation 1.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>&, at::IntArrayRef,
                       at::IntArrayRef padding, at::IntArrayRef, bool, at::IntArrayRef, int64_t) {
  const auto size = [&](int d) { return x.size(d) + 2 * padding[d - 2] - w.size(d) + 1; };
  return x.new_empty({x.size(0), w.size(0), size(2), size(3)});
}

TORCH_LIBRARY_IMPL(aten, Meta, m) { m.impl("convolution", &convolution); }

class SteadyRun : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    config().verify = false;
    config().packed_bytes = int64_t{256} << 20;
    linear_choices().restart("");
    convolution_choices().restart("");
    void* frames[2];
    backtrace(frames, 2);  // the first call loads a library
  }
  void TearDown() override {
    counts = false;
    force_linear_implementation(std::nullopt);
    force_convolution_implementation(std::nullopt);
    linear_choices().restart("");
    convolution_choices().restart("");
    OpsTest::TearDown();
  }

  static std::unique_ptr<GraphExecutor> executor_of(const std::shared_ptr<Model>& model) {
    Result<std::unique_ptr<GraphExecutor>> made = GraphExecutor::Init(model, {});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.status().message());
    return made.ok() ? std::move(made.value()) : nullptr;
  }
  static at::Tensor input_of(const GraphExecutor& executor, size_t i) {
    const graph::Window& window = executor.program().windows[executor.inputs()[i].window];
    const Sizes sizes(window.sizes().begin(), window.sizes().end());
    const bool is_index = static_cast<at::ScalarType>(window.dtype) == at::kLong;
    return is_index ? at::ones(sizes, at::kLong) : numbers(sizes);
  }

  // Nothing of ours in the runs behind the first ones; nothing is measured or packed from Init on.
  static void expect_steady(GraphExecutor& executor) {
    const int64_t measured = linear_counts().measurements + convolution_counts().measurements;
    const int64_t packed = linear_counts().packed_bytes;
    Tensors inputs;
    for (size_t i = 0; i < executor.inputs().size(); ++i) {
      inputs.push_back(input_of(executor, i));
      expect_ok(executor.SetInput(i, view_of(inputs.back())));
    }
    constexpr int kWarm = 3;
    constexpr int kRuns = 20;
    constexpr int kMostRounds = 10;
    Status status = executor.Run();
    for (int run = 1; run < kWarm; ++run) status = executor.Run();
    // Threads take pieces of loops as they come, so one may meet its largest piece late, and need
    // more memory of its own once.
    for (int round = 0; round < kMostRounds; ++round) {
      for (int what = 0; what < 2; ++what) taken.ours[what] = taken.pytorchs[what] = 0;
      counts = true;
      for (int run = 0; run < kRuns && status.ok(); ++run) status = executor.Run();
      counts = false;
      if (taken.ours[0] == 0 && taken.ours[1] == 0) break;
    }
    expect_ok(status);
    EXPECT_EQ(taken.ours[0], 0) << "blocks of memory in " << kRuns << " runs";
    EXPECT_EQ(taken.ours[1], 0) << "locks in " << kRuns << " runs";
    EXPECT_EQ(linear_counts().measurements + convolution_counts().measurements, measured);
    EXPECT_EQ(linear_counts().packed_bytes, packed);
  }
};

TEST_F(SteadyRun, OfAPerceptronTakesNoMemoryAndNoLock) {
  for (const int64_t rows : {1, 4, 64}) {
    SCOPED_TRACE(rows);
    Perceptron net(rows);
    const auto executor = executor_of(net.shared);
    EXPECT_EQ(executor->counts().prepared, 2);
    expect_steady(*executor);
  }
}

TEST_F(SteadyRun, OfEveryImplementationTakesNoMemoryAndNoLock) {
  for (const LinearImplementation implementation :
       {LinearImplementation::kMatvec, LinearImplementation::kPanels, LinearImplementation::kTiles,
        LinearImplementation::kPackedPanels, LinearImplementation::kPackedTiles, LinearImplementation::kPackedBlas}) {
    SCOPED_TRACE(to_string(implementation));
    force_linear_implementation(implementation);
    Perceptron net(8);
    expect_steady(*executor_of(net.shared));
  }
}

TEST_F(SteadyRun, OfATransformerTakesNoMemoryAndNoLockButWhatPyTorchsIndexingTakes) {
  Net net;
  const auto executor = executor_of(transformer(net));
  EXPECT_GE(executor->counts().prepared, 6);
  expect_steady(*executor);
  // So stacks are read rightly.
  EXPECT_EQ(taken.pytorchs[0] > 0, kCounts);
}

TEST_F(SteadyRun, OfConvolutionsTakesNoMemoryAndNoLockButWhatPyTorchsTake) {
  Net net;
  const Value image = get(net.graph.input("image", "f32", {1, 16, 14, 14}));
  const Value wide =
      net.add("aten::conv2d", {image, net.weight({32, 16, 3, 3}), net.weight({32})}, {{"padding", Sizes{1, 1}}});
  const auto model = net.model(net.add("aten::relu", {wide}));
  for (const auto implementation :
       {ConvolutionImplementation::kStock, ConvolutionImplementation::kUnfolded, ConvolutionImplementation::kPacked}) {
    SCOPED_TRACE(static_cast<int>(implementation));
    force_convolution_implementation(implementation);
    const auto executor = executor_of(model);
    EXPECT_EQ(executor->counts().prepared, 1);
    const int64_t before = convolution_counts().runs[static_cast<int>(implementation)];
    expect_steady(*executor);
    if (implementation != ConvolutionImplementation::kStock) {
      EXPECT_GT(convolution_counts().runs[static_cast<int>(implementation)], before);
    }
  }
}

TEST_F(SteadyRun, OfConvolutionsThatKeepFiltersTakesNoMemoryAndNoLockButWhatPyTorchsTake) {
  Net net;
  const Value image = get(net.graph.input("image", "f32", {1, 16, 14, 14}));
  const ComputeGraph::Attributes padded{{"padding", Sizes{1, 1}}};
  // What is between convolutions has its channels last.
  const Value first = net.add("aten::relu", {net.add("aten::conv2d", {image, net.weight({32, 16, 3, 3})}, padded)});
  const Value second = net.add("aten::relu", {net.add("aten::conv2d", {first, net.weight({32, 32, 3, 3})}, padded)});
  const Value third = net.add("aten::relu", {net.add("aten::conv2d", {second, net.weight({32, 1, 3, 3})},
                                                     {{"padding", Sizes{1, 1}}, {"groups", 32}})});
  const auto model = net.model(net.add("aten::conv2d", {third, net.weight({8, 32, 3, 3})}, padded));
  for (const auto implementation : {ConvolutionImplementation::kDepthwise, ConvolutionImplementation::kPanels,
                                    ConvolutionImplementation::kTiles, ConvolutionImplementation::kDirect}) {
    SCOPED_TRACE(to_string(implementation));
    force_convolution_implementation(implementation);
    const auto executor = executor_of(model);
    const int64_t before = convolution_counts().runs[static_cast<int>(implementation)];
    expect_steady(*executor);
    if (implementation != ConvolutionImplementation::kTiles && backend::has_panels()) {
      EXPECT_GT(convolution_counts().runs[static_cast<int>(implementation)], before);
    }
  }
}

TEST_F(SteadyRun, FewRowsByASmallWeightAreOursWithoutMeasuring) {
  for (const int64_t rows : {1, 3, 8, 9}) {
    SCOPED_TRACE(rows);
    Net net;
    const Value x = get(net.graph.input("x", "f32", {rows, 32}));
    const auto model = net.model(net.linear(net.add("aten::relu", {net.linear(x, 32, 128)}), 128, 2));
    const int64_t measured = linear_counts().measurements;
    const auto executor = executor_of(model);
    EXPECT_TRUE(rows > 8 || linear_counts().measurements == measured);
    const int64_t before = linear_counts().runs[static_cast<int>(LinearImplementation::kMatvec)];
    const at::Tensor input = numbers({rows, 32});
    at::Tensor result = at::zeros({rows, 2});
    expect_ok(executor->SetInput(0, view_of(input)));
    expect_ok(executor->Run());
    expect_ok(executor->GetOutput(0, view_of(result)));
    EXPECT_EQ(linear_counts().runs[static_cast<int>(LinearImplementation::kMatvec)] - before, rows <= 8 ? 2 : 0);
    const std::vector<at::Tensor>& w = net.weights;
    EXPECT_TRUE(at::allclose(result, at::linear(at::relu(at::linear(input, w[0], w[1])), w[2], w[3]), 1e-5, 1e-6));
    expect_steady(*executor);
  }
}

// ---- Init

TEST_F(SteadyRun, WeightsArePackedInInitAndOnceForAllExecutors) {
  force_linear_implementation(LinearImplementation::kPackedPanels);
  const int64_t before = linear_counts().packed_bytes;
  {
    Perceptron net(8);
    const auto first = executor_of(net.shared);
    const int64_t packed = linear_counts().packed_bytes - before;
    EXPECT_EQ(packed > 0, backend::has_panels());
    const auto second = executor_of(net.shared);
    EXPECT_EQ(linear_counts().packed_bytes - before, packed);
    const int64_t runs = linear_counts().runs[static_cast<int>(LinearImplementation::kPanels)];
    const at::Tensor x = numbers({8, 256});
    at::Tensor results[] = {at::zeros({8, 256}), at::zeros({8, 256})};
    int executor = 0;
    for (GraphExecutor* const one : {first.get(), second.get()}) {
      expect_ok(one->SetInput(0, view_of(x)));
      expect_ok(one->Run());
      expect_ok(one->GetOutput(0, view_of(results[executor++])));
    }
    EXPECT_EQ(linear_counts().runs[static_cast<int>(LinearImplementation::kPanels)] - runs,
              backend::has_panels() ? 4 : 0);
    expect_same(results[0], results[1]);
    EXPECT_TRUE(at::allclose(results[0], net.expected(x), 1e-4, 1e-4));
  }
  EXPECT_EQ(linear_counts().packed_bytes, before);
}

// The bytes of the file that are in the process's memory.
int64_t bytes_in_memory(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kib = 0;
  bool is_file = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != line.npos) is_file = true;
    if (!is_file || !line.starts_with("Rss:")) continue;
    kib += std::stoll(line.substr(line.find(':') + 1));
    is_file = false;
  }
  return kib << 10;
}

TEST_F(SteadyRun, WeightsOfAFileLeaveMemoryForTheirPackedForms) {
  if (!backend::has_panels()) GTEST_SKIP() << "no packed form of this processor";
  force_linear_implementation(LinearImplementation::kPackedPanels);
  Perceptron net(64);
  const int64_t before = linear_counts().packed_bytes, weights = 2 * 256 * 512 * int64_t{sizeof(float)};
  const std::string path = std::filesystem::temp_directory_path() / ("hetero-packed-" + std::to_string(getpid()));
  expect_ok(graph::save_program(net.shared->program(), path));
  if (!backend::MappedFile::open(path, false).value()->is_on_disk()) GTEST_SKIP() << "files are in memory";
  config().packed_bytes = 1;
  {
    // Those of a program that was made here have no room.
    const auto executor = executor_of(net.shared);
    EXPECT_EQ(linear_counts().packed_bytes, before);
  }
  {
    Result<std::shared_ptr<Model>> model = Model::load(path);
    expect_ok(model.status());
    const int64_t plain = bytes_in_memory(path);
    EXPECT_GE(plain, weights);
    const auto executor = executor_of(model.value());
    EXPECT_EQ(linear_counts().packed_bytes - before, weights);
    // But for what is in pages with something else.
    EXPECT_LE(bytes_in_memory(path), plain - weights + (64 << 10));
    const at::Tensor x = numbers({64, 256});
    at::Tensor result = at::zeros({64, 256});
    expect_ok(executor->SetInput(0, view_of(x)));
    expect_ok(executor->Run());
    expect_ok(executor->GetOutput(0, view_of(result)));
    EXPECT_TRUE(at::allclose(result, net.expected(x), 1e-4, 1e-4));
    // The plain ones are read again where somebody wants them.
    const auto& constants = model.value()->program().constants;
    const auto first = std::ranges::find(constants, "w1", &graph::ProgramConstant::name);
    EXPECT_EQ(std::memcmp(first->bytes.data(), net.weights[0].const_data_ptr(), net.weights[0].nbytes()), 0);
    // A second form of a weight is beside the first one.
    force_linear_implementation(LinearImplementation::kPackedBlas);
    executor_of(model.value());
    EXPECT_EQ(linear_counts().packed_bytes - before, weights);
  }
  EXPECT_EQ(linear_counts().packed_bytes, before);
  config().packed_bytes = weights;  // what was taken is given back
  force_linear_implementation(LinearImplementation::kPackedPanels);
  const auto executor = executor_of(net.shared);
  EXPECT_EQ(linear_counts().packed_bytes - before, weights);
  std::filesystem::remove(path);
}

TEST_F(SteadyRun, TheFirstRunHasTheBitsOfTheHundredth) {
  Perceptron net(64);
  const auto executor = executor_of(net.shared);
  const at::Tensor x = numbers({64, 256});
  at::Tensor first = at::zeros({64, 256}), last = at::zeros({64, 256});
  expect_ok(executor->SetInput(0, view_of(x)));
  expect_ok(executor->Run());
  expect_ok(executor->GetOutput(0, view_of(first)));
  for (int run = 1; run < 100; ++run) expect_ok(executor->Run());
  expect_ok(executor->GetOutput(0, view_of(last)));
  expect_same(first, last);
  EXPECT_TRUE(at::allclose(first, net.expected(x), 1e-4, 1e-4));
}

TEST_F(SteadyRun, ExecutorsThatAreMadeAtOnceShareWhatIsPacked) {
  force_linear_implementation(LinearImplementation::kPackedPanels);
  const int64_t before = linear_counts().packed_bytes;
  Perceptron net(8);
  executor_of(net.shared);
  const int64_t packed = linear_counts().packed_bytes - before;
  Perceptron other(8);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      const auto executor = executor_of(other.shared);
      const at::Tensor x = numbers({8, 256});
      expect_ok(executor->SetInput(0, view_of(x)));
      for (int run = 0; run < 10; ++run) expect_ok(executor->Run());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(linear_counts().packed_bytes - before, 2 * packed);
}

}  // namespace
}  // namespace hetero::ops::testing
