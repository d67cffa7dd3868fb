// Runs CUDA kernels on the CPU: generated ones, whose text the system's g++ compiles, and programs
// of the interpreter, which the build has compiled. A block's threads are fibers that take turns at
// barriers (cuda_threads.h).
//
//   CudaEmulation emulation;
//   const size_t which = emulation.add(kernel, space, aligned);
//   REQUIRE(emulation.compile() == "");          // all kernels in one go
//   emulation.run(which, operands, numbers);
//   emulation.interpret(which, operands, numbers);   // this needs no compile()
//
// Nothing is rounded together (-ffp-contract=off), as on the GPU.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/fused/source.h"

namespace hetero::backend::testing {

// Whether kernels can be run at all, and whether generated ones can; each says so on stderr where
// not.
bool has_fibers();
bool has_compiler();

class CudaEmulation {
 public:
  // Of the pretended GPU: few, so that grids have strides.
  static constexpr int kMultiprocessors = 2;

  CudaEmulation() = default;
  CudaEmulation(const CudaEmulation&) = delete;
  CudaEmulation& operator=(const CudaEmulation&) = delete;
  ~CudaEmulation();

  // REQUIRES: a legal kernel and space; cuda_refusal(kernel) is null.
  size_t add(const FusedKernel& kernel, const FusedSpace& space, bool aligned);
  // What the compiler said, where it failed.
  std::string compile();
  void run(size_t which, void* const* operands, const Number* numbers) const;
  // False where the kernel, or a stage of it, is too large for the interpreter; then nothing is
  // complete.
  bool interpret(size_t which, void* const* operands, const Number* numbers) const;
  // The largest of kInterpreterSizes that its stages need; -1 where one is too large.
  int interpreter_size(size_t which) const;

  // The texts of all kernels, and how many of their stages took each way.
  std::vector<std::string> texts() const;
  struct Ways {
    int entries = 0, warps = 0, blocks = 0, parts = 0, vectors = 0, stages = 0;
  };
  Ways ways() const;

 private:
  using Entry = void (*)(unsigned blocks, const uint64_t* words);
  struct Source {
    CudaSource source;
    std::vector<Entry> entries;
  };
  struct Kernel {
    CudaStages stages;
    std::vector<size_t> sources;  // of each stage
  };
  // run(stage, its source, its operands) for each stage.
  template <typename Run>
  void each_stage(size_t which, void* const* operands, Run run) const;
  void run(const Source& source, const RowSpace& space, void* const* operands, const Number* numbers) const;
  static bool interpret(const CudaStage& stage, const CudaSource& source, void* const* operands, const Number* numbers);

  std::vector<Kernel> kernels_;
  std::vector<Source> sources_;
  std::string folder_;
  void* library_ = nullptr;
};

}  // namespace hetero::backend::testing
