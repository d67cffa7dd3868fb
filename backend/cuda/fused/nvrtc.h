// NVRTC, NVIDIA's compiler for CUDA source, opened when it is first needed. Programs run without
// it, and without a GPU.
//
//   const Nvrtc* nvrtc = Nvrtc::get();                     // null if the machine has none
//   Result<std::string> code = nvrtc->compile(text, {9, 0});   // a cubin
//
// The library is searched by the names of the supported versions: first among the libraries that
// the process has loaded (PyTorch brings one), then in the system's paths.
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
  // Compiles machine code for GPUs of this capability. Operations share a rounding only if the
  // source says so. Errors: kDevice, with the compiler's message.
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
