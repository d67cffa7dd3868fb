// The cuda device's own promises. On a machine without a GPU only the refusal can be tested.

#include "backend/cuda/cuda_device.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "tests/backend/catch.h"

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
  if (device == nullptr) return;
  std::vector<int32_t> host(size_t{20} << 20);
  std::iota(host.begin(), host.end(), 0);
  std::vector<int32_t> back(host.size());
  const size_t bytes = host.size() * sizeof(int32_t);
  Result<Block> first = device->allocate(bytes);
  Result<Block> second = device->allocate(bytes);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
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
  REQUIRE(device->counters().bytes_in == static_cast<int64_t>(bytes));
  REQUIRE(device->counters().bytes_out == static_cast<int64_t>(bytes));
}

TEST_CASE("a task runs on the calling thread with its queue's stream current") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (device == nullptr) return;
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

TEST_CASE("a request beyond the GPU's memory fails with figures and the device stays usable") {
  const std::unique_ptr<CudaDevice> device = first_gpu();
  if (device == nullptr) return;
  const Result<Block> refused = device->allocate(size_t{1} << 46);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(device->allocate(1 << 20).ok());
  REQUIRE(device->synchronize().ok());
}

}  // namespace
}  // namespace hetero::backend
