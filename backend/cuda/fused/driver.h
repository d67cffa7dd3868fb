// The CUDA driver: loads and launches code that was compiled at run time.
//
// The library is opened when it is first needed, because a machine without a GPU has none.
//
//   const CudaDriver* driver = CudaDriver::get();            // null if there is none
//   DriverMachine machine(*driver, multiprocessors, allocate);
//
// Thread safety: any thread, with the GPU's primary context current.
// Ownership: modules stay loaded. The machine releases what it allocated.

#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/fused/engine.h"
#include "backend/cuda/fused/nvrtc.h"
#include "backend/device/device.h"

namespace hetero::backend {

class CudaDriver {
 public:
  static const CudaDriver* get();

  // Errors: kDevice.
  Result<std::vector<void*>> load(const std::string& code, const std::vector<std::string>& names) const;
  Status launch(void* function, unsigned blocks, unsigned threads, void* arguments, void* stream) const;

 private:
  using Code = int;  // 0 is success
  struct Functions {
    Code (*load)(void** module, const void* image);
    Code (*unload)(void* module);
    Code (*function)(void** function, void* module, const char* name);
    Code (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                   void** extra);
    Code (*message)(Code code, const char** text);
    Code (*version)(int* version);
  };

  bool open();
  Status failure(Code code, const char* what) const;

  Functions functions_{};
};

class DriverMachine final : public CudaMachine {
 public:
  using Allocate = std::function<Result<Block>(size_t bytes)>;
  DriverMachine(const CudaDriver& driver, int multiprocessors, Allocate allocate)
      : driver_(driver), multiprocessors_(multiprocessors), allocate_(std::move(allocate)) {}

  int multiprocessors() const override { return multiprocessors_; }
  Result<std::vector<void*>> load(const std::string& code, const std::vector<std::string>& names) override {
    return driver_.load(code, names);
  }
  Status launch(void* function, unsigned blocks, unsigned threads, void* arguments, void* stream) override {
    return driver_.launch(function, blocks, threads, arguments, stream);
  }
  Result<void*> allocate(size_t bytes) override;

 private:
  const CudaDriver& driver_;
  const int multiprocessors_;
  const Allocate allocate_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

class NvrtcCompiler final : public CudaCompiler {
 public:
  NvrtcCompiler(const Nvrtc& nvrtc, ComputeCapability capability) : nvrtc_(nvrtc), capability_(capability) {}

  std::string target() const override {
    return "sm_" + std::to_string(10 * capability_.major + capability_.minor) + " nvrtc " + nvrtc_.version();
  }
  Result<std::string> compile(const std::string& text) override { return nvrtc_.compile(text, capability_); }

 private:
  const Nvrtc& nvrtc_;
  const ComputeCapability capability_;
};

}  // namespace hetero::backend
