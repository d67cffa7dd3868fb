// FusedEngine: runs fused kernels on a GPU. It finds or makes a kernel's code (source.h) and
// launches it. Until there is code, the precompiled interpreter runs the kernel (interpreter.h).
//
//   FusedEngine engine(machine, &compiler,
//                      {.cache_folder = KernelCache::default_folder(),
//                       .interpreter = fused_interpreter_code()});
//   if (engine.can_fuse(kernel)) engine.run(call, stream);
//
// A launch takes the first of these that is available:
//
//   loaded code       FusedLaunch::device_part holds what is known of a launch. From its second run
//                     on, a run fills in the arguments and launches, without a lock and without
//                     allocating
//   code on disk      found by the first run (kernel_cache.h)
//   the interpreter   at once, and without locks. A thread of the engine compiles the code
//                     meanwhile, from the third run on or on request (prepare). If compiling fails,
//                     stderr is told once, and the interpreter goes on
//   waiting for code  if the kernel is too large for the interpreter, or there is none
//
// Launches with equal source share code; sizes and numbers are arguments. Only kernels that pass
// values on between launches (totals, rows that several blocks share) take a lock, because those of
// one stream share memory of the engine.
//
// Two interfaces hide the GPU and the compiler, so everything here is tested without either.
//
// Thread safety: any thread. In a forked child the engine runs nothing.
// Ownership: `machine` and `compiler` outlive the engine; launches may outlive it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/base/status.h"
#include "backend/cpu/fused/launch.h"
#include "backend/cuda/fused/kernel_cache.h"
#include "backend/cuda/fused/source.h"
#include "backend/fused/call.h"

namespace hetero::backend {

// The GPU that loads and runs code. REQUIRES: the device is current.
class CudaMachine {
 public:
  virtual ~CudaMachine() = default;
  virtual int multiprocessors() const = 0;
  // The functions of these names, in order. They stay loaded as long as the machine lives. Threads
  // may load different code at the same time.
  virtual Result<std::vector<void*>> load(const std::string& code, const std::vector<std::string>& names) = 0;
  // `arguments`: the bytes of the function's one parameter. Copied before this returns.
  virtual Status launch(void* function, unsigned blocks, unsigned threads, void* arguments, void* stream) = 0;
  // Memory that stays until the machine dies.
  virtual Result<void*> allocate(size_t bytes) = 0;
};

class CudaCompiler {
 public:
  virtual ~CudaCompiler() = default;
  // The GPU's architecture and the compiler's version: code depends on these and on its source.
  virtual std::string target() const = 0;
  virtual Result<std::string> compile(const std::string& text) = 0;
};

class FusedEngine {
 public:
  struct Options {
    std::string cache_folder = {};                               // "" for none
    std::string_view interpreter = {};                           // its code; "" for none
    std::function<void(const std::string& sentence)> warn = {};  // stderr, where there is none
  };
  struct Counters {
    int64_t launches = 0;     // of functions
    int64_t interpreted = 0;  // of these, the interpreter's
    int64_t compiled = 0;
    int64_t failed = 0;  // to compile or to load
    int64_t from_disk = 0;
    int64_t loaded = 0;
    int64_t planned = 0;  // launches of which nothing was known
  };

  // `compiler` may be null; the interpreter then runs everything. An interpreter that the machine
  // refuses counts as none. REQUIRES: the device is current.
  FusedEngine(CudaMachine& machine, CudaCompiler* compiler, Options options);
  FusedEngine(const FusedEngine&) = delete;
  FusedEngine& operator=(const FusedEngine&) = delete;
  // Waits for running compilations.
  ~FusedEngine();

  bool has_interpreter() const { return !interpreter_.empty(); }
  bool can_fuse(const FusedKernel& kernel) const;

  // Enqueues the kernel on the stream. Sets `*provisional`, if given, when a later run will do
  // better because code is being compiled, or will be. REQUIRES: can_fuse(call.kernel); the device
  // is current. Errors: kDevice if the driver fails, or the compiler for a kernel that cannot be
  // interpreted.
  Status run(const FusedCall& call, void* stream, bool* provisional = nullptr);

  // Compiles in the background the code that runs of this launch with aligned operands need.
  // Ignores addresses and numbers.
  void prepare(const FusedCall& call);
  // Blocks until everything requested is compiled, or has failed.
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
  bool find_on_disk(Code& code);
  Status compile(Code& code);
  Status fail(Code& code, Status why);
  enum class Wait : uint8_t { kNo, kYes };
  Status load(const std::shared_ptr<Code>& code, Wait wait);
  void hasten(const std::shared_ptr<Code>& code);
  void ask_for(const std::shared_ptr<Code>& code);
  bool is_provisional(const Variant& variant) const;
  Status run_plan(Plan& plan, const FusedCall& call, void* stream, bool* provisional);
  Status run_stage(const Variant& variant, const Stage& stage, void* const* operands, const Number* numbers,
                   char* states, void* stream);
  Status run_code(const Variant& variant, const Stage& stage, void* const* operands, const Number* numbers,
                  char* states, void* stream);
  Status run_program(const Variant& variant, void* const* operands, const Number* numbers, char* states, void* stream);
  Status launch(void* function, int64_t blocks, uint64_t* words, void* stream);
  Result<char*> memory(int64_t bytes, void* stream);
  void start_thread();
  void stop_thread();
  void compile_in_background();

  CudaMachine& machine_;
  CudaCompiler* const compiler_;
  const KernelCache cache_;
  const std::function<void(const std::string&)> warn_;
  std::vector<void*> interpreter_;  // its functions, by size; empty where there is none
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
  struct Memory {
    void* stream;
    char* data;
    int64_t bytes;
  };
  std::vector<Memory> memories_;  // of each stream that has needed some: a few

  std::atomic<bool> warned_{false};
  std::atomic<int64_t> launches_{0}, interpreted_{0}, compiled_{0}, failed_{0}, from_disk_{0}, loaded_{0}, planned_{0};
};

}  // namespace hetero::backend
