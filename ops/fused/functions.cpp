#include "ops/fused/functions.h"

#include <ATen/Version.h>
#include <dlfcn.h>

#include <memory>
#include <string>

namespace hetero::ops {

void* vml_function(const char* name) {
  // libtorch_cpu may have been loaded without RTLD_GLOBAL; this library is linked to it.
  static void* library = [] {
    void* found = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return found != nullptr ? found : RTLD_DEFAULT;
  }();
  return dlsym(library, name);
}

namespace {

// By the functions for this CPU.
void fill(FunctionTable& table) {
#if defined(__x86_64__)
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") return AVX512::fill(table);
  if (capability == "AVX2") return AVX2::fill(table);
#endif
  DEFAULT::fill(table);
}

}  // namespace

const FunctionTable& functions() {
  // Leaked: plans point to its functions.
  static const FunctionTable* table = [] {
    auto* made = new FunctionTable{};
    fill(*made);
    add_formulas(*made);
    return made;
  }();
  return *table;
}

}  // namespace hetero::ops
