#include "backend/cuda/fused/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "backend/cuda/fused/library_function.h"

namespace hetero::backend {
namespace {

constexpr const char* kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

void* open_library() {
  for (const int loaded : {RTLD_NOLOAD, 0}) {
    for (const char* name : kLibraries) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | loaded)) return library;
    }
  }
  return nullptr;
}

}  // namespace

const Nvrtc* Nvrtc::get() {
  // Leaked: threads may compile until the process ends.
  static const Nvrtc* const opened = []() -> const Nvrtc* {
    auto* made = new Nvrtc;
    if (made->open()) return made;
    delete made;
    return nullptr;
  }();
  return opened;
}

bool Nvrtc::open() {
  void* const library = open_library();
  if (library == nullptr) return false;
  Functions& f = functions_;
  int major = 0, minor = 0;
  const bool found = find_function(library, "nvrtcVersion", f.version) &&
                     find_function(library, "nvrtcGetNumSupportedArchs", f.architecture_count) &&
                     find_function(library, "nvrtcGetSupportedArchs", f.architectures) &&
                     find_function(library, "nvrtcCreateProgram", f.create) &&
                     find_function(library, "nvrtcDestroyProgram", f.destroy) &&
                     find_function(library, "nvrtcCompileProgram", f.compile) &&
                     find_function(library, "nvrtcGetCUBINSize", f.cubin_size) &&
                     find_function(library, "nvrtcGetCUBIN", f.cubin) &&
                     find_function(library, "nvrtcGetProgramLogSize", f.log_size) &&
                     find_function(library, "nvrtcGetProgramLog", f.log) && f.version(&major, &minor) == 0;
  if (!found) {
    dlclose(library);
    return false;
  }
  version_ = std::to_string(major) + "." + std::to_string(minor);
  return true;
}

bool Nvrtc::supports(ComputeCapability capability) const {
  int count = 0;
  if (functions_.architecture_count(&count) != 0 || count <= 0) return false;
  std::vector<int> list(static_cast<size_t>(count));
  if (functions_.architectures(list.data()) != 0) return false;
  return std::ranges::find(list, 10 * capability.major + capability.minor) != list.end();
}

std::string Nvrtc::log_of(Program program) const {
  size_t bytes = 0;
  if (functions_.log_size(program, &bytes) != 0 || bytes < 2) return "no message";
  std::string text(bytes, '\0');
  if (functions_.log(program, text.data()) != 0) return "no message";
  text.resize(bytes - 1);  // it ends with a zero
  return text;
}

Result<std::string> Nvrtc::compile(const std::string& text, ComputeCapability capability) const {
  const std::string architecture =
      "--gpu-architecture=sm_" + std::to_string(capability.major) + std::to_string(capability.minor);
  const char* const options[] = {architecture.c_str(), "--std=c++17", "--fmad=false"};
  Program program = nullptr;
  if (functions_.create(&program, text.c_str(), "fused.cu", 0, nullptr, nullptr) != 0) {
    return Status(ErrorClass::kDevice, "NVRTC could not create a program");
  }
  std::string code;
  std::string why;
  size_t bytes = 0;
  if (functions_.compile(program, static_cast<int>(std::size(options)), options) != 0 ||
      functions_.cubin_size(program, &bytes) != 0) {
    why = log_of(program);
  } else {
    code.resize(bytes);
    if (functions_.cubin(program, code.data()) != 0) why = "it gave no code";
  }
  functions_.destroy(&program);
  if (!why.empty()) return Status(ErrorClass::kDevice, "NVRTC could not compile a fused kernel: " + why);
  return code;
}

}  // namespace hetero::backend
