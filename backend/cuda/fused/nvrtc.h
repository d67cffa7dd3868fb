// NVRTC, NVIDIA's compiler for CUDA source, opened when it is first needed: programs run without
// it, and without a GPU.
//
//   const Nvrtc* nvrtc = Nvrtc::get();                     // null where the machine has none
//   Result<std::string> code = nvrtc->compile(text, {9, 0});   // a cubin
//
// The library is looked for by the names of the versions that are supported, among what the process
// has loaded already (PyTorch brings one) and where the system looks for libraries.
//
// Thread safety: any thread.

#pragma once

#include <string>

#include "backend/base/status.h"

namespace hetero::backend {

struct ComputeCapability {
  int major = 0;
  int minor = 0;
  bool operator==(const ComputeCapability&) const = default;
};

class Nvrtc {
 public:
  static const Nvrtc* get();

  // "12.4"
  const std::string& version() const { return version_; }
  bool supports(ComputeCapability capability) const;
  // Machine code for GPUs of this capability. Nothing is rounded together that the text does not
  // round together.
  // Errors: kDevice, with what the compiler says.
  Result<std::string> compile(const std::string& text, ComputeCapability capability) const;

 private:
  using Program = struct NvrtcProgram*;
  using Code = int;  // 0 is success
  struct Functions {
    Code (*version)(int* major, int* minor);
    Code (*architecture_count)(int* count);
    Code (*architectures)(int* list);
    Code (*create)(Program* program, const char* text, const char* name, int headers, const char* const* header_texts,
                   const char* const* header_names);
    Code (*destroy)(Program* program);
    Code (*compile)(Program program, int options, const char* const* list);
    Code (*cubin_size)(Program program, size_t* bytes);
    Code (*cubin)(Program program, char* to);
    Code (*log_size)(Program program, size_t* bytes);
    Code (*log)(Program program, char* to);
  };

  bool open();
  std::string log_of(Program program) const;

  Functions functions_{};
  std::string version_;
};

}  // namespace hetero::backend
