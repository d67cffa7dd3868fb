// What a kernel threw, as a Status: its message begins with the operator's name, and the exception is kept.
//
// Thread safety: any thread.

#pragma once

#include <exception>
#include <string>

#include "backend/status.h"

namespace hetero::graph {

// REQUIRES: an exception is being handled.
inline Status kernel_error(const std::string& where) {
  const std::exception_ptr error = std::current_exception();
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return {ErrorClass::kKernel, where + ": " + known.what(), error};
  } catch (...) {
    return {ErrorClass::kKernel, where + ": it threw an unknown exception", error};
  }
}

}  // namespace hetero::graph
