#include "backend/cuda/fused/driver.h"

#include <dlfcn.h>

#include "backend/cuda/fused/library_function.h"

namespace hetero::backend {
namespace {

// The first version whose kernels take as many argument bytes as fused ones have (32,764).
constexpr int kOldestDriver = 12010;

}  // namespace

const CudaDriver* CudaDriver::get() {
  // Leaked: kernels are launched until the process ends.
  static const CudaDriver* const opened = []() -> const CudaDriver* {
    auto* made = new CudaDriver;
    if (made->open()) return made;
    delete made;
    return nullptr;
  }();
  return opened;
}

bool CudaDriver::open() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  Functions& f = functions_;
  int version = 0;
  const bool found =
      find_function(library, "cuModuleLoadData", f.load) && find_function(library, "cuModuleUnload", f.unload) &&
      find_function(library, "cuModuleGetFunction", f.function) && find_function(library, "cuLaunchKernel", f.launch) &&
      find_function(library, "cuGetErrorString", f.message) &&
      find_function(library, "cuDriverGetVersion", f.version) && f.version(&version) == 0 && version >= kOldestDriver;
  if (!found) dlclose(library);
  return found;
}

Status CudaDriver::failure(Code code, const char* what) const {
  const char* text = nullptr;
  if (functions_.message(code, &text) != 0 || text == nullptr) text = "unknown error";
  return Status(ErrorClass::kDevice, std::string("cuda: ") + what + " failed: " + text);
}

Result<std::vector<void*>> CudaDriver::load(const std::string& code, const std::vector<std::string>& names) const {
  void* module = nullptr;
  if (const Code error = functions_.load(&module, code.data())) return failure(error, "cuModuleLoadData");
  std::vector<void*> functions;
  for (const std::string& name : names) {
    void*& function = functions.emplace_back(nullptr);
    if (const Code error = functions_.function(&function, module, name.c_str())) {
      functions_.unload(module);
      return failure(error, "cuModuleGetFunction");
    }
  }
  return functions;
}

Status CudaDriver::launch(void* function, unsigned blocks, unsigned threads, void* arguments, void* stream) const {
  void* parameters[] = {arguments};
  const Code error = functions_.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
  return error == 0 ? Status() : failure(error, "cuLaunchKernel");
}

Result<void*> DriverMachine::allocate(size_t bytes) {
  Result<Block> block = allocate_(bytes);
  if (!block.ok()) return block.status();
  const std::lock_guard lock(mutex_);
  return blocks_.emplace_back(std::move(block.value())).data();
}

}  // namespace hetero::backend
