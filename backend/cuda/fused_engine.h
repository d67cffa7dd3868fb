// FusedEngine: runs fused kernels on a GPU. It finds or makes the code of a kernel (fused_source.h) and launches it.
//
//   FusedEngine engine(machine, compiler, {.cache_folder = KernelCache::default_folder()});
//   if (engine.can_fuse(kernel)) engine.run(call, stream);
//
// What is known of a launch stands beside it (FusedLaunch::device_part): from its second run on, a run fills in the arguments and launches, without a
// lock and without allocating. Only kernels that pass something on between launches (totals, rows that several blocks share) take a lock, since they
// share the engine's memory.
//
// Code is one for all launches whose source is the same: sizes and numbers are arguments. It comes from the disk (kernel_cache.h) or from the
// compiler. The first launch that needs it waits for it; code that is asked for ahead (prepare) is made by a thread of the engine.
//
// What touches the GPU and the compiler stands behind two interfaces, so that everything here is tested without either.
//
// Thread safety: any thread. In a forked child the engine runs nothing. Ownership: `machine` and `compiler` outlive the engine; launches may outlive
// it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/cpu/fused_launch.h"
#include "backend/cuda/fused_source.h"
#include "backend/cuda/kernel_cache.h"
#include "backend/status.h"

namespace hetero::backend {

// The GPU that code is loaded into and runs on. Called where the device is current.
class CudaMachine {
 public:
  virtual ~CudaMachine() = default;
  virtual int multiprocessors() const = 0;
  // The functions of these names, in order. They stay loaded as long as the machine lives.
  virtual Result<std::vector<void*>> load(const std::string& code, const std::vector<std::string>& names) = 0;
  // `arguments`: the bytes of the function's one parameter. Copied before this returns.
  virtual Status launch(void* function, unsigned blocks, unsigned threads, void* arguments, void* stream) = 0;
  // Memory that stays until the machine dies.
  virtual Result<void*> allocate(size_t bytes) = 0;
};

class CudaCompiler {
 public:
  virtual ~CudaCompiler() = default;
  // What code depends on beside its source: the GPU's architecture, and the compiler's version.
  virtual std::string target() const = 0;
  virtual Result<std::string> compile(const std::string& text) = 0;
};

class FusedEngine {
 public:
  struct Options {
    std::string cache_folder;  // "" for none
  };
  struct Counters {
    int64_t launches = 0;  // of functions
    int64_t compiled = 0;
    int64_t from_disk = 0;
    int64_t loaded = 0;
    int64_t planned = 0;  // launches of which nothing was known
  };

  FusedEngine(CudaMachine& machine, CudaCompiler& compiler, Options options);
  FusedEngine(const FusedEngine&) = delete;
  FusedEngine& operator=(const FusedEngine&) = delete;
  // Waits for what is being compiled.
  ~FusedEngine();

  static bool can_fuse(const FusedKernel& kernel) { return cuda_refusal(kernel) == nullptr; }

  // Enqueues the kernel on the stream. REQUIRES: can_fuse(call.kernel); the device is current.
  // Errors: kDevice, where the compiler or the driver fails.
  Status run(const FusedCall& call, void* stream);

  // Has the code compiled in the background that runs of this launch with aligned operands need. Addresses and numbers are not looked at.
  void prepare(const FusedCall& call);
  // Blocks until everything that was asked for is compiled, or failed to be.
  void wait_until_compiled();

  Counters counters() const;

 private:
  struct Code;
  struct Plan;
  struct Stage;
  struct Variant;

  std::unique_ptr<Plan> make_plan(const FusedKernel& kernel, const FusedSpace& space, const FusedLaunch& launch);
  Variant* make_variant(Stage& stage, bool aligned);
  Result<Variant*> ready_variant(Stage& stage, bool aligned);
  std::shared_ptr<Code> code_of(const CudaSource& source);
  Status compile(Code& code);
  Status load(Code& code);
  Status run_plan(Plan& plan, const FusedCall& call, void* stream);
  Status run_stage(const Variant& variant, const Stage& stage, void* const* operands, const Number* numbers,
                   char* states, void* stream);
  Result<char*> memory(int64_t bytes);
  void start_thread();
  void stop_thread();
  void compile_in_background();

  CudaMachine& machine_;
  CudaCompiler& compiler_;
  const KernelCache cache_;
  const int64_t identity_;
  const int created_in_fork_generation_;

  std::mutex mutex_;  // of what follows, and of making variants
  std::unordered_map<std::string, std::shared_ptr<Code>> codes_;
  std::deque<std::shared_ptr<Code>> wanted_;
  std::condition_variable changed_;
  std::once_flag started_;
  std::unique_ptr<std::thread> thread_;
  bool stop_ = false;
  bool compiling_ = false;

  std::mutex memory_mutex_;  // held while kernels that use the memory are enqueued
  char* memory_ = nullptr;
  int64_t memory_bytes_ = 0;

  std::atomic<int64_t> launches_{0}, compiled_{0}, from_disk_{0}, loaded_{0}, planned_{0};
};

}  // namespace hetero::backend
