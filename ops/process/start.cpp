#include "ops/process/start.h"
#include "ops/kernels/device_kernel.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <exception>

#include "graph/ir/kernel_error.h"
#include "ops/fused/functions.h"
#include "ops/memory/offered_memory.h"
#include "ops/process/accelerator.h"
#include "ops/process/device.h"
#include "ops/process/option_hooks.h"
#include "ops/process/torch_accelerator.h"
#include "ops/settings/parallel.h"
#include "ops/tensor/storage.h"

namespace hetero {
namespace {

// torch's errors have the stack in what(), where Python does not keep it out.
std::string words_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

Status start_once() {
  try {
    ops::register_process();
    ops::make_chosen_accelerator();
  } catch (const c10::Error& error) {
    return Status(ErrorClass::kUsage, error.what_without_backtrace(), std::current_exception());
  }
  return Status();
}

}  // namespace

void ops::register_process() {
  static const bool registered = [] {
    load_options();  // may throw, so before anything is registered
    register_storage(make_chosen_accelerator);
    register_offers();
    register_device();
    connect_thread_pool();
    choose_instruction_set();
    graph::set_exception_words(&words_of);
    connect_kernel_settings();
    c10::register_privateuse1_backend("hetero");
    keep_cuda_the_accelerator();
    return true;
  }();
  (void)registered;
}

Status start() {
  static const Status status = start_once();
  return status;
}

}  // namespace hetero
