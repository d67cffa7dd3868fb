#include "tests/graph/remote_kernel.h"

#ifdef HETERO_WITH_CUDA

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "graph/graph.h"

namespace hetero::graph::testing {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Of a buffer that some operands look at: as much of it as they reach.
struct Copy {
  std::vector<std::byte> bytes;
  bool is_written = false;
};

}  // namespace

void call_where_it_lies(const Invocation& call, KernelFunction kernel) {
  const auto stream = static_cast<cudaStream_t>(backend::CudaDevice::current_stream());
  if (stream == nullptr) return kernel(call);
  cudaStreamCaptureStatus recorded = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &recorded));
  if (recorded != cudaStreamCaptureStatusNone) throw std::runtime_error("a loop of the host cannot be recorded");
  std::map<void*, Copy> copies;
  for (int k = 0; k < call.node->operand_count; ++k) {
    Copy& copy = copies[call.data[k]];
    const auto reach = static_cast<size_t>((*call.windows)[call.operands[k].window].last_byte);
    copy.bytes.resize(std::max({copy.bytes.size(), reach, size_t{1}}));
    copy.is_written = copy.is_written || call.operands[k].writes();
  }
  for (auto& [data, copy] : copies) {
    check(cudaMemcpyAsync(copy.bytes.data(), data, copy.bytes.size(), cudaMemcpyDeviceToHost, stream));
  }
  check(cudaStreamSynchronize(stream));
  std::vector<void*> on_host;
  for (int k = 0; k < call.node->operand_count; ++k) on_host.push_back(copies[call.data[k]].bytes.data());
  Invocation here = call;
  here.data = on_host.data();
  kernel(here);
  for (const auto& [data, copy] : copies) {
    if (!copy.is_written) continue;
    check(cudaMemcpyAsync(data, copy.bytes.data(), copy.bytes.size(), cudaMemcpyHostToDevice, stream));
  }
  check(cudaStreamSynchronize(stream));
}

}  // namespace hetero::graph::testing

#else

namespace hetero::graph::testing {

void call_where_it_lies(const Invocation& call, KernelFunction kernel) { kernel(call); }

}  // namespace hetero::graph::testing

#endif
