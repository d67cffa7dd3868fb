#include "tests/backend/cuda_emulation.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "backend/cuda/fused_text.h"

namespace hetero::backend::testing {
namespace {

// What CUDA has and C++ lacks.
constexpr const char* kPrelude = R"prelude(
#include <ucontext.h>
#include <functional>
#include <memory>
#include <vector>
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#define __grid_constant__
struct Index3 { unsigned x; };
static Index3 threadIdx, blockIdx, gridDim;

namespace emulation {
constexpr unsigned kThreads = 256;
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
};
static Fiber fibers[kThreads];
static ucontext_t scheduler;
static const std::function<void()>* body;
static void run_fiber() {
  (*body)();
  fibers[threadIdx.x].done = true;
  swapcontext(&fibers[threadIdx.x].context, &scheduler);
}
// The other threads come to the same barrier before this one goes on.
static void barrier() {
  const unsigned own = threadIdx.x;
  swapcontext(&fibers[own].context, &scheduler);
  threadIdx.x = own;
}
static void run_block(const std::function<void()>& work) {
  constexpr size_t kStack = 64 << 10;
  body = &work;
  for (Fiber& it : fibers) {
    if (!it.stack) it.stack.reset(new char[kStack]);
    it.done = false;
    getcontext(&it.context);
    it.context.uc_stack.ss_sp = it.stack.get();
    it.context.uc_stack.ss_size = kStack;
    it.context.uc_link = nullptr;
    makecontext(&it.context, run_fiber, 0);
  }
  for (unsigned left = kThreads; left > 0;) {
    for (unsigned t = 0; t < kThreads; ++t) {
      if (fibers[t].done) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
      left -= fibers[t].done;
    }
  }
}
static void run(unsigned blocks, bool has_barriers, const std::function<void()>& work) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    if (has_barriers) {
      run_block(work);
      continue;
    }
    for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) work();
  }
}
}  // namespace emulation
#define __syncthreads() emulation::barrier()
#define __syncwarp() emulation::barrier()
)prelude";

std::string without(std::string text, const std::string& part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

char* align16(std::vector<char>& memory) {
  return memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16;
}

std::string entry_name(size_t source, size_t entry) {
  return "emulated_" + std::to_string(source) + "_" + std::to_string(entry);
}

}  // namespace

bool has_compiler() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kFollowsFibers = false;
#else
  constexpr bool kFollowsFibers = true;
#endif
  static const bool found = [] {
    const char* const why = !kFollowsFibers                                     ? "sanitizers do not follow fibers"
                            : std::system("g++ --version >/dev/null 2>&1") != 0 ? "g++ was not found"
                                                                                : nullptr;
    if (why != nullptr) std::fprintf(stderr, "%s: generated CUDA kernels are not run\n", why);
    return why == nullptr;
  }();
  return found;
}

CudaEmulation::~CudaEmulation() {
  if (library_ != nullptr) dlclose(library_);
  if (folder_.empty()) return;
  for (const char* name : {"/kernels.cpp", "/kernels.so", "/errors"}) unlink((folder_ + name).c_str());
  rmdir(folder_.c_str());
}

size_t CudaEmulation::add(const FusedKernel& kernel, const FusedSpace& space, bool aligned) {
  FusedLaunch launch;
  if (!prepare_fused(kernel, space, launch).ok()) std::abort();
  Kernel& made = kernels_.emplace_back();
  made.stages = cuda_stages(kernel, space, launch);
  for (const CudaStage& stage : made.stages.stages) {
    const CudaVariant variant = choose_variant(stage.kernel, stage.space, aligned, kMultiprocessors);
    made.sources.push_back(sources_.size());
    sources_.push_back({write_source(stage.kernel, variant), {}});
  }
  return kernels_.size() - 1;
}

std::string CudaEmulation::compile() {
  char folder[] = "/tmp/hetero_emulation_XXXXXX";
  if (mkdtemp(folder) == nullptr) return "no folder for temporary files";
  folder_ = folder;
  std::string text = std::string(kPrelude) + kFusedHead;
  for (size_t s = 0; s < sources_.size(); ++s) {
    const std::string space = "source_" + std::to_string(s);
    const std::string body = without(without(sources_[s].source.text, kFusedHead), "extern \"C\" ");
    text += "namespace " + space + " {\n" + body + "}\n";
    for (size_t e = 0; e < sources_[s].source.entries.size(); ++e) {
      const bool has_barriers =
          body.find("synchronize_group") != std::string::npos || body.find("reduce_group") != std::string::npos;
      text += "extern \"C\" void " + entry_name(s, e) + "(unsigned blocks, const unsigned long long* words) {\n  " +
              space + "::Arguments a;\n  memcpy(&a, words, sizeof(a));\n  emulation::run(blocks, " +
              (has_barriers ? "true" : "false") + ", [&] { " + space + "::" + sources_[s].source.entries[e].name +
              "(a); });\n}\n";
    }
  }
  std::ofstream(folder_ + "/kernels.cpp") << text;
  const std::string command = "g++ -std=c++20 -O1 -fPIC -shared -w -ffp-contract=off -fno-strict-aliasing " + folder_ +
                              "/kernels.cpp -o " + folder_ + "/kernels.so 2> " + folder_ + "/errors";
  if (std::system(command.c_str()) != 0) return "g++ failed:\n" + read(folder_ + "/errors").substr(0, 4000);
  library_ = dlopen((folder_ + "/kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return std::string("dlopen: ") + dlerror();
  for (size_t s = 0; s < sources_.size(); ++s) {
    for (size_t e = 0; e < sources_[s].source.entries.size(); ++e) {
      sources_[s].entries.push_back(reinterpret_cast<Entry>(dlsym(library_, entry_name(s, e).c_str())));
    }
  }
  return "";
}

void CudaEmulation::run(size_t which, void* const* operands, const Number* numbers) const {
  const CudaStages& stages = kernels_[which].stages;
  std::vector<char> temporaries(static_cast<size_t>(stages.temporary_bytes) + 16);
  char* const base = align16(temporaries);
  for (size_t s = 0; s < stages.stages.size(); ++s) {
    std::vector<void*> addresses;
    for (const StageOperand& it : stages.stages[s].operands) {
      addresses.push_back(it.is_temporary ? base + it.offset : operands[it.operand]);
    }
    run(sources_[kernels_[which].sources[s]], stages.stages[s].space, addresses.data(), numbers);
  }
}

void CudaEmulation::run(const Source& source, const RowSpace& space, void* const* operands,
                        const Number* numbers) const {
  const CudaLaunch launch = plan_launch(source.source, space, kMultiprocessors);
  std::vector<char> states(static_cast<size_t>(launch.state_bytes) + 16);
  std::vector<uint64_t> words(source.source.arguments.size());
  fill_arguments(source.source, space, launch, operands, numbers, align16(states), words.data());
  for (size_t e = 0; e < source.entries.size(); ++e) {
    source.entries[e](static_cast<unsigned>(launch.blocks(source.source.entries[e])), words.data());
  }
}

std::vector<std::string> CudaEmulation::texts() const {
  std::vector<std::string> result;
  for (const Source& it : sources_) result.push_back(it.source.text);
  return result;
}

CudaEmulation::Ways CudaEmulation::ways() const {
  Ways ways;
  for (const Source& it : sources_) {
    const CudaVariant& variant = it.source.variant;
    ways.entries += !variant.by_rows;
    ways.parts += variant.parts;
    ways.warps += variant.by_rows && !variant.parts && variant.group == 32;
    ways.blocks += variant.by_rows && !variant.parts && variant.group == kCudaThreads;
    ways.vectors += variant.vector > 1;
  }
  for (const Kernel& it : kernels_) ways.stages += it.stages.stages.size() > 1;
  return ways;
}

}  // namespace hetero::backend::testing
