// Runs generated CUDA kernels on the CPU: the system's g++ compiles their text, and a block's threads are fibers that take turns at barriers.
//
//   CudaEmulation emulation;
//   const size_t which = emulation.add(kernel, space, aligned);
//   REQUIRE(emulation.compile() == "");          // all kernels in one go
//   emulation.run(which, operands, numbers);
//
// Nothing is rounded together (-ffp-contract=off), as on the GPU.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/fused_source.h"

namespace hetero::backend::testing {

// Whether there is a compiler; says so on stderr where there is none.
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
  void run(const Source& source, const RowSpace& space, void* const* operands, const Number* numbers) const;

  std::vector<Kernel> kernels_;
  std::vector<Source> sources_;
  std::string folder_;
  void* library_ = nullptr;
};

}  // namespace hetero::backend::testing
