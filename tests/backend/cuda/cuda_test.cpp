// The cuda device's own promises. On a machine without a GPU only the refusal can be tested.

#include "backend/cuda/cuda_device.h"
#include "backend/device/piece_copies.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu/fused/launch.h"
#include "backend/cuda/fused/driver.h"
#include "backend/cuda/fused/engine.h"
#include "backend/cuda/fused/interpreter.h"
#include "backend/cuda/fused/nvrtc.h"
#include "backend/fused/call.h"
#include "backend/registry/registry.h"
#include "tests/backend/cpu/fused/fused_program.h"
#include "tests/backend/cpu/fused/portable_functions.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

// The first GPU, or null after checking that its absence is reported as promised.
std::unique_ptr<CudaDevice> first_gpu() {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::create();
  if (device.ok()) return std::move(device.value());
  REQUIRE(device.status().error_class() == ErrorClass::kDevice);
  REQUIRE(device.status().message().find("no CUDA device") == 0);
  return nullptr;
}

// Says at the end of the program how many tests did not run.
bool is_skipped(bool lacks_gpu) {
  struct Skipped {
    ~Skipped() { std::printf("%d tests skipped: there is no GPU\n", count); }
    int count = 0;
  };
  if (!lacks_gpu) return false;
  static Skipped skipped;
  ++skipped.count;
  return true;
}

// Memory of the host, once pageable and once pinned.
class HostMemories {
 public:
  explicit HostMemories(size_t bytes) : pageable_(bytes) {
    REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned_), bytes) == cudaSuccess);
  }
  ~HostMemories() { cudaFreeHost(pinned_); }
  std::array<char*, 2> all() { return {pageable_.data(), pinned_}; }
  char* pinned() const { return pinned_; }

 private:
  std::vector<char> pageable_;
  char* pinned_ = nullptr;
};

TEST_CASE("a GPU that the machine lacks is refused with a clear sentence") {
  const auto device = CudaDevice::create(1000);
  REQUIRE_FALSE(device.ok());
  REQUIRE(device.status().error_class() == ErrorClass::kDevice);
  REQUIRE(device.status().message().find("no CUDA device") == 0);
  if (first_gpu() == nullptr) {
    const Status status = choose_accelerator("cuda");
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.message().find("no CUDA device") == 0);
    REQUIRE(accelerator() == nullptr);
  }
}

TEST_CASE("pageable bytes of several staging buffers go to the GPU and come back") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  std::vector<int32_t> host(size_t{20} << 20);
  std::iota(host.begin(), host.end(), 0);
  std::vector<int32_t> back(host.size());
  const size_t bytes = host.size() * sizeof(int32_t);
  Result<Block> first = device->allocate(bytes);
  Result<Block> second = device->allocate(bytes);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  const DeviceCounters before = device->counters();  // the device has measured its link
  const auto copied_in = device->create_event();
  const auto moved = device->create_event();
  REQUIRE(device->queue(QueueKind::kHostToDevice).copy(first.value().data(), host.data(), bytes).ok());
  REQUIRE(device->queue(QueueKind::kHostToDevice).record(*copied_in).ok());
  Queue& compute = device->queue(QueueKind::kCompute);
  REQUIRE(compute.wait(*copied_in).ok());
  REQUIRE(compute.copy(second.value().data(), first.value().data(), bytes).ok());
  REQUIRE(compute.record(*moved).ok());
  Queue& out = device->queue(QueueKind::kDeviceToHost);
  REQUIRE(out.wait(*moved).ok());
  REQUIRE(out.copy(back.data(), second.value().data(), bytes).ok());
  REQUIRE(out.synchronize().ok());
  REQUIRE(back == host);
  REQUIRE(device->counters().bytes_in - before.bytes_in == static_cast<int64_t>(bytes));
  REQUIRE(device->counters().bytes_out - before.bytes_out == static_cast<int64_t>(bytes));
}

TEST_CASE("threads copy pageable bytes on one queue while its staging buffers are made and given back") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kCount = 1000;
  constexpr int kThreads = 16;  // more than there are buffers
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<int32_t> host(kCount), back(kCount);
      const size_t bytes = kCount * sizeof(int32_t);
      const Result<Block> block = device->allocate(bytes);
      Queue& queue = device->queue(QueueKind::kCompute);
      bool ok = block.ok();
      for (int round = 0; round < 50 && ok; ++round) {
        std::iota(host.begin(), host.end(), 1000 * t + round);
        ok = queue.copy(block.value().data(), host.data(), bytes).ok() &&
             queue.copy(back.data(), block.value().data(), bytes).ok() && queue.synchronize().ok() && back == host;
      }
      wrong += !ok;
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
}

TEST_CASE("timed events tell what the GPU took") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kBytes = size_t{64} << 20;
  Result<Block> first = device->allocate(kBytes);
  Result<Block> second = device->allocate(kBytes);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  Queue& compute = device->queue(QueueKind::kCompute);
  const auto begin = device->create_timed_event();
  const auto end = device->create_timed_event();
  for (int i = 0; i < 2; ++i) {
    REQUIRE(compute.record(*begin).ok());
    REQUIRE(compute.copy(second.value().data(), first.value().data(), kBytes).ok());
    REQUIRE(compute.record(*end).ok());
    REQUIRE(compute.synchronize().ok());
  }
  const Result<double> seconds = device->seconds_between(*begin, *end);
  REQUIRE(seconds.ok());
  REQUIRE(seconds.value() > kBytes / 20e12);  // no GPU moves as much
  REQUIRE(seconds.value() < 1);
  const auto untimed = device->create_event();
  REQUIRE(compute.record(*untimed).ok());
  REQUIRE(compute.synchronize().ok());
  REQUIRE_FALSE(device->seconds_between(*begin, *untimed).ok());
  REQUIRE(device->seconds_between(*begin, *end).ok());
}

TEST_CASE("a batch of small copies goes to the GPU and comes back, from pageable and from pinned memory") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kCopies = 30, kCount = 33;
  const size_t bytes = kCount * sizeof(int32_t);
  HostMemories memories(kCopies * bytes);
  for (char* const memory : memories.all()) {
    auto* const host = reinterpret_cast<int32_t*>(memory);
    std::iota(host, host + kCopies * kCount, 7);
    std::vector<int32_t> back(kCopies * kCount);
    std::vector<Block> blocks;
    std::vector<CopyRange> in;
    std::vector<CopyRange> out;
    for (size_t i = 0; i < kCopies; ++i) {
      Result<Block> block = device->allocate(bytes);
      REQUIRE(block.ok());
      blocks.push_back(std::move(block.value()));
      in.push_back({blocks[i].data(), host + i * kCount, bytes});
      out.push_back({back.data() + i * kCount, blocks[i].data(), bytes});
    }
    const int64_t before = device->counters().copy_batches;
    REQUIRE(device->queue(QueueKind::kHostToDevice).copy_batch(in).ok());
    REQUIRE(device->queue(QueueKind::kHostToDevice).synchronize().ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).copy_batch(out).ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).synchronize().ok());
    REQUIRE(device->counters().copy_batches == before + 2);
    REQUIRE(std::equal(back.begin(), back.end(), host));
  }
}

TEST_CASE("pieces of more bytes than a staging buffer go in a few batches, and a large one by itself") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kPieces = 700, kPiece = 16 << 10, kLarge = 5 << 20, kAll = 2 * kPieces * kPiece + kLarge;
  Result<Block> block = device->allocate(2 * kAll);
  REQUIRE(block.ok());
  HostMemories memories(kAll);
  for (char* const host : memories.all()) {
    std::iota(host, host + kAll, 0);
    std::vector<char> back(kAll);
    char* const target = host == memories.pinned() ? host : back.data();
    std::vector<CopyRange> in, out;
    // Scattered in the device: pieces backwards, with gaps.
    char* there = static_cast<char*>(block.value().data()) + 2 * kAll;
    size_t here = 0;
    for (size_t i = 0; i <= 2 * kPieces; ++i) {
      const size_t bytes = i == kPieces ? kLarge : kPiece;
      there -= bytes + 64;
      in.push_back({there, host + here, bytes});
      out.push_back({target + here, there, bytes});
      here += bytes;
    }
    const std::vector<char> expected(host, host + kAll);
    const DeviceCounters before = device->counters();
    REQUIRE(device->queue(QueueKind::kHostToDevice).copy_batch(in).ok());
    REQUIRE(device->queue(QueueKind::kHostToDevice).synchronize().ok());
    std::fill(target, target + kAll, '\0');
    REQUIRE(device->queue(QueueKind::kDeviceToHost).copy_batch(out).ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).synchronize().ok());
    const DeviceCounters after = device->counters();
    // 700 pieces are 11 MiB, three buffers, before the large one and behind it.
    CHECK(after.copy_batches - before.copy_batches == (host == memories.pinned() ? 2 : 12));
    CHECK(std::equal(expected.begin(), expected.end(), target));
  }
}

TEST_CASE("many small pieces are copied by one kernel for each staging buffer, from any memory of the host") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  // 9 MiB, of sizes and at addresses that fit no word.
  constexpr size_t kPieces = 600, kPiece = (16 << 10) - 8, kAll = kPieces * kPiece;
  Result<Block> block = device->allocate(2 * kAll);
  REQUIRE(block.ok());
  HostMemories memories(kAll);
  for (char* const host : memories.all()) {
    std::iota(host, host + kAll, 0);
    const std::vector<char> expected(host, host + kAll);
    std::vector<CopyRange> in, out;
    for (size_t i = 0; i < kPieces; ++i) {
      char* const there = static_cast<char*>(block.value().data()) + 2 * kPiece * (i * 7 % kPieces) + i % 5;
      const size_t bytes = i == 3 ? 0 : kPiece - i % 3;
      in.push_back({there, host + i * kPiece, bytes});
      out.push_back({host + i * kPiece, there, bytes});
    }
    REQUIRE(is_scattered(in));
    const DeviceCounters before = device->counters();
    const Result<bool> scattered = copy_scattered(device->queue(QueueKind::kHostToDevice), in);
    REQUIRE(scattered.ok());
    REQUIRE(device->queue(QueueKind::kHostToDevice).synchronize().ok());
    for (const CopyRange& range : out) {
      std::fill_n(static_cast<char*>(range.destination), range.bytes, '\0');
    }
    const Result<bool> gathered = copy_scattered(device->queue(QueueKind::kDeviceToHost), out);
    REQUIRE(gathered.ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).synchronize().ok());
    CHECK(std::equal(expected.begin(), expected.end(), host));
    const DeviceCounters after = device->counters();
    CHECK(after.copies_in - before.copies_in == kPieces - 1);
    CHECK(after.bytes_in - before.bytes_in == after.bytes_out - before.bytes_out);
    // Without nvcc when this was built, or without a driver, they are batches of copies.
    const int64_t transfers = host == memories.pinned() ? 1 : 3;
    CHECK(after.copy_batches - before.copy_batches == 2 * transfers);
    CHECK(after.launches - before.launches == (scattered.value() ? 2 * transfers : 0));
    CHECK(gathered.value() == scattered.value());
  }
}

// A bench: hetero_backend_tests "[pieces-bench]".
TEST_CASE("what many small pieces take by one kernel and by batches of copies", "[.][pieces-bench]") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kAll = size_t{64} << 20;
  Result<Block> block = device->allocate(2 * kAll);
  REQUIRE(block.ok());
  HostMemories memories(kAll);
  std::printf(
      "| memory | direction | bytes a piece | by the kernel, GB/s | by batches, GB/s |\n|---|---|---|---|---|\n");
  for (char* const host : memories.all()) {
    std::fill(host, host + kAll, 'a');
    for (const size_t piece : {size_t{512}, size_t{4} << 10, size_t{16} << 10, size_t{64} << 10}) {
      std::vector<CopyRange> in, out;
      for (size_t i = 0, count = kAll / piece; i < count; ++i) {
        char* const there = static_cast<char*>(block.value().data()) + 2 * piece * (i * 7 % count);
        in.push_back({there, host + i * piece, piece});
        out.push_back({host + i * piece, there, piece});
      }
      for (const bool into_device : {true, false}) {
        Queue& queue = device->queue(into_device ? QueueKind::kHostToDevice : QueueKind::kDeviceToHost);
        const std::vector<CopyRange>& ranges = into_device ? in : out;
        double rates[2] = {};  // the best of some: GB/s
        for (int round = 0; round < 10; ++round) {
          const bool by_kernel = round % 2 == 0;
          const auto begin = std::chrono::steady_clock::now();
          if (by_kernel) {
            const Result<bool> done = copy_scattered(queue, ranges);
            REQUIRE((done.ok() && done.value()));
          } else {
            REQUIRE(queue.copy_batch(ranges).ok());
          }
          REQUIRE(queue.synchronize().ok());
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          rates[by_kernel ? 0 : 1] = std::max(rates[by_kernel ? 0 : 1], kAll / took.count() / 1e9);
        }
        std::printf("| %s | %s | %zu | %.1f | %.1f |\n", host == memories.pinned() ? "pinned" : "pageable",
                    into_device ? "to the GPU" : "from the GPU", piece, rates[0], rates[1]);
      }
    }
  }
}

TEST_CASE("few or large pieces, and those within one memory, are no work for the kernel") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kPiece = 1024;
  Result<Block> block = device->allocate(64 * kPiece);
  REQUIRE(block.ok());
  auto* const there = static_cast<char*>(block.value().data());
  std::vector<char> host(32 * kPiece, 'a');
  std::vector<CopyRange> few, within;
  for (size_t i = 0; i < kLeastPieces; ++i) {
    if (i > 0) few.push_back({there + 2 * i * kPiece, host.data() + i * kPiece, kPiece});
    within.push_back({there + 2 * i * kPiece + kPiece, there + 2 * i * kPiece, kPiece});
  }
  Queue& queue = device->queue(QueueKind::kHostToDevice);
  for (const auto& ranges : {few, within}) {
    const Result<bool> copied = copy_scattered(queue, ranges);
    REQUIRE(copied.ok());
    CHECK_FALSE(copied.value());
  }
  REQUIRE(queue.synchronize().ok());
}

TEST_CASE("a task runs on the calling thread with its queue's stream current") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  static std::vector<void*> hooked;
  set_stream_hook([](void* stream) { hooked.push_back(stream); });
  void* stream = nullptr;
  const Task task = {[](void* context) { *static_cast<void**>(context) = CudaDevice::current_stream(); }, &stream};
  REQUIRE(device->queue(QueueKind::kCompute).launch(task).ok());
  set_stream_hook(nullptr);
  REQUIRE(stream != nullptr);
  REQUIRE(hooked == std::vector<void*>{stream, nullptr});
  REQUIRE(CudaDevice::current_stream() == nullptr);
}

TEST_CASE("queues start after what a stream of the caller has, and it goes on after what they have") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kBytes = 16 << 20;
  auto block = device->allocate(kBytes);
  REQUIRE(block.ok());
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 2 * kBytes) == cudaSuccess);
  auto* const from = static_cast<std::byte*>(pinned);
  std::byte* const to = from + kBytes;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  Queue& queue = device->queue(QueueKind::kCompute);
  for (const int value : {1, 2, 3}) {
    std::memset(from, value, kBytes);
    std::memset(to, 0, kBytes);
    // The stream brings the bytes, the queue changes the first of them, the stream takes them back.
    REQUIRE(cudaMemcpyAsync(block.value().data(), from, kBytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    const DeviceCounters before = device->counters();
    REQUIRE(device->wait_for_stream(stream).ok());
    const std::vector<std::byte> changed(8, std::byte{77});
    REQUIRE(queue.copy(block.value().data(), changed.data(), changed.size()).ok());
    REQUIRE(device->let_stream_wait(stream).ok());
    CHECK(device->counters().events_waited - before.events_waited == kQueueKinds);
    CHECK(device->counters().events_recorded - before.events_recorded == kQueueKinds);
    REQUIRE(cudaMemcpyAsync(to, block.value().data(), kBytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(std::all_of(to, to + 8, [](std::byte byte) { return byte == std::byte{77}; }));
    CHECK(std::all_of(to + 8, to + kBytes, [&](std::byte byte) { return byte == static_cast<std::byte>(value); }));
    REQUIRE(queue.synchronize().ok());
  }
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("a request beyond the GPU's memory fails with figures and the device stays usable") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  const Result<Block> refused = device->allocate(size_t{1} << 46);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(device->allocate(1 << 20).ok());
  REQUIRE(device->synchronize().ok());
}

MapFunction named_add() {
  return {testing::kAdd<float>.pointer, {MapOperation::kAdd, EntryType::kFloat32, {}, NumberForm::kNone}};
}

TEST_CASE("the library carries the interpreter of fused kernels as code for GPUs") {
  const std::string_view code = fused_interpreter_code();
  if (code.empty()) {
    WARN("nvcc is older than 12.1: there is no interpreter");
    return;
  }
  // The mark of a "fat binary", in which nvcc puts code for several GPUs.
  uint32_t mark = 0;
  std::memcpy(&mark, code.data(), sizeof(mark));
  REQUIRE(mark == 0xBA55ED50);
  REQUIRE(code.size() > 10000);
}

// Runs a call twice on the GPU, each time within a task.
template <typename Run>
void run_on(Queue& queue, const FusedCall& call, Run run) {
  struct Context {
    const FusedCall& call;
    Run& run;
    Status status;
  };
  for (int round = 0; round < 2; ++round) {
    Context context{call, run, {}};
    const auto task = [](void* it) {
      auto& self = *static_cast<Context*>(it);
      self.status = self.run(self.call);
    };
    REQUIRE(queue.launch({task, &context}).ok());
    INFO((context.status.ok() ? "" : context.status.message()));
    REQUIRE(context.status.ok());
  }
}

TEST_CASE("a GPU runs fused kernels, interpreted and compiled: entries, sums of rows, and their total") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  Reducer sum = testing::kSum<float, float>;
  sum.formula = {ReduceOperation::kSum, EntryType::kFloat32};
  constexpr int64_t kRows = 100, kRow = 3000;
  testing::KernelBuilder b;
  const uint16_t both = b.map(named_add(), 4, {b.load(0, 4), b.load(0, 4)});
  const uint16_t by_row = b.reduce(sum, 4, both);
  b.store(1, both);
  b.store(2, by_row);
  b.store(3, b.total(sum, 4, by_row));
  FusedSpace space = testing::dense_space({kRows, kRow}, 1, 4, 4);
  std::fill_n(space.operands[2].strides, 2, 0);
  space.operands[2].strides[0] = 4;
  std::fill_n(space.operands[3].strides, 2, 0);
  FusedLaunch launch;
  REQUIRE(prepare_fused(b.kernel, space, launch).ok());

  std::vector<float> host(kRows * kRow);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i % 7);  // whose sums are exact
  std::vector<std::vector<float>> expected{host, std::vector<float>(host.size()), std::vector<float>(kRows), {0.0f}};
  std::vector<void*> on_host;
  for (std::vector<float>& it : expected) on_host.push_back(it.data());
  REQUIRE(run_fused(launch, on_host.data(), nullptr));

  std::vector<Block> blocks;
  std::vector<void*> operands;
  for (const std::vector<float>& it : expected) {
    Result<Block> block = device->allocate(it.size() * sizeof(float));
    REQUIRE(block.ok());
    operands.push_back(block.value().data());
    blocks.push_back(std::move(block.value()));
  }
  Queue& compute = device->queue(QueueKind::kCompute);
  REQUIRE(compute.copy(operands[0], host.data(), host.size() * sizeof(float)).ok());
  const auto check = [&](const char* way, auto run) {
    INFO(way);
    for (size_t o = 1; o < expected.size(); ++o) {
      const std::vector<float> none(expected[o].size(), -1.0f);
      REQUIRE(compute.copy(operands[o], none.data(), none.size() * sizeof(float)).ok());
      REQUIRE(compute.synchronize().ok());
    }
    launch.device_part.clear();
    run_on(compute, {b.kernel, space, launch, operands.data(), nullptr}, run);
    for (size_t o = 1; o < expected.size(); ++o) {
      std::vector<float> back(expected[o].size());
      REQUIRE(compute.copy(back.data(), operands[o], back.size() * sizeof(float)).ok());
      REQUIRE(compute.synchronize().ok());
      const bool same = back == expected[o];
      REQUIRE(same);
    }
  };
  if (device->can_fuse(b.kernel)) {
    check("by the device", [&](const FusedCall& call) { return device->run_fused(call).status(); });
  } else {
    WARN("this machine has neither an interpreter nor NVRTC for its GPU: fused kernels were not run");
  }

  const CudaDriver* const driver = CudaDriver::get();
  const Nvrtc* const nvrtc = Nvrtc::get();
  if (driver == nullptr) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  ComputeCapability capability;
  REQUIRE(cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
  DriverMachine machine(*driver, 16, [&](size_t bytes) { return device->allocate(bytes); });
  FusedEngine interpreting(machine, nullptr, {.interpreter = fused_interpreter_code()});
  if (interpreting.has_interpreter()) {
    check("interpreted", [&](const FusedCall& call) { return interpreting.run(call, CudaDevice::current_stream()); });
    CHECK(interpreting.counters().interpreted > 0);
  }
  if (nvrtc != nullptr && nvrtc->supports(capability)) {
    NvrtcCompiler compiler(*nvrtc, capability);
    FusedEngine compiling(machine, &compiler, {});
    check("compiled", [&](const FusedCall& call) { return compiling.run(call, CudaDevice::current_stream()); });
    CHECK(compiling.counters().compiled > 0);
  }
}

// Sets the bytes of a block, on the stream of the task.
struct Fill {
  void* data;
  int byte;
  size_t bytes;
  Task task() {
    return {[](void* context) {
              const Fill& self = *static_cast<Fill*>(context);
              auto* const stream = static_cast<cudaStream_t>(CudaDevice::current_stream());
              (void)cudaMemsetAsync(self.data, self.byte, self.bytes, stream);
            },
            this};
  }
};

TEST_CASE("a segment is a graph, which runs when it is launched and as often, with what was recorded") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  constexpr size_t kBytes = 1024;
  Result<Block> block = device->allocate(kBytes);
  REQUIRE(block.ok());
  Queue& compute = device->queue(QueueKind::kCompute);
  Fill whole{block.value().data(), 1, kBytes};
  Fill half{block.value().data(), 2, kBytes / 2};
  Fill erase{block.value().data(), 0, kBytes};
  const auto bytes = [&] {
    std::vector<char> back(kBytes);
    REQUIRE(compute.copy(back.data(), block.value().data(), kBytes).ok());
    REQUIRE(compute.synchronize().ok());
    return std::pair<int, int>(back.front(), back.back());
  };
  REQUIRE(compute.launch(erase.task()).ok());
  Result<std::unique_ptr<Segment>> segment = compute.record_segment(std::vector<Task>{whole.task(), half.task()});
  INFO((segment.ok() ? "" : segment.status().message()));
  REQUIRE(segment.ok());
  REQUIRE(segment.value() != nullptr);
  REQUIRE(bytes() == std::pair(0, 0));
  whole.byte = 7;  // recorded is what it was
  const int64_t launches = device->counters().launches;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(compute.launch(erase.task()).ok());
    REQUIRE(compute.launch_segment(*segment.value()).ok());
    REQUIRE(bytes() == std::pair(2, 1));
  }
  REQUIRE(device->counters().launches - launches == 6);
  const Status elsewhere = device->queue(QueueKind::kCompute2).launch_segment(*segment.value());
  REQUIRE(elsewhere.error_class() == ErrorClass::kUsage);
}

TEST_CASE("what a graph cannot hold is refused, and the queue works on") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  Queue& compute = device->queue(QueueKind::kCompute);
  const Task waits = {[](void*) {
                        (void)cudaStreamSynchronize(static_cast<cudaStream_t>(CudaDevice::current_stream()));
                        (void)cudaGetLastError();
                      },
                      nullptr};
  REQUIRE_FALSE(compute.record_segment(std::vector<Task>{waits}).ok());
  const Task allocates = {[](void* context) { (void)static_cast<CudaDevice*>(context)->allocate(64); }, device.get()};
  REQUIRE_FALSE(compute.record_segment(std::vector<Task>{allocates}).ok());
  Result<Block> block = device->allocate(64);
  REQUIRE(block.ok());
  Fill fill{block.value().data(), 5, 64};
  REQUIRE(compute.launch(fill.task()).ok());
  Result<std::unique_ptr<Segment>> segment = compute.record_segment(std::vector<Task>{fill.task()});
  REQUIRE(segment.ok());
  REQUIRE(compute.launch_segment(*segment.value()).ok());
  REQUIRE(compute.synchronize().ok());
}

TEST_CASE("what launches and copies cost beside their work is measured when the device is made") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (is_skipped(device == nullptr)) return;
  const Capabilities& rates = device->capabilities();
  REQUIRE(rates.launch_latency > 1e-8);
  REQUIRE(rates.launch_latency < 1e-3);
  REQUIRE(rates.copy_latency > 1e-8);
  REQUIRE(rates.copy_latency < 1e-3);
  // The guesses that stay where nothing can be measured.
  REQUIRE(rates.launch_latency != 5e-6);
  REQUIRE(rates.copy_latency != 10e-6);
  REQUIRE((rates.flops_half == 0 || rates.flops_half > rates.flops));
}

}  // namespace
}  // namespace hetero::backend
