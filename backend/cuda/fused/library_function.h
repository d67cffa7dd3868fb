// Looks up a function in a library that was opened at run time, for driver.h and nvrtc.h.
//
// Thread safety: pure.

#pragma once

#include <dlfcn.h>

namespace hetero::backend {

// False, and null, if the library has no function of this name.
template <typename Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace hetero::backend
