#include "graph/run/preparation.h"

#include <mutex>
#include <unordered_map>

namespace hetero::graph {
namespace {

struct Preparations {
  std::mutex mutex;
  std::unordered_map<KernelFunction, KernelFunction> by_kernel;
};

// Leaked on purpose, as the op table is.
Preparations& preparations() {
  static auto* const preparations = new Preparations;
  return *preparations;
}

}  // namespace

void set_preparation(KernelFunction kernel, KernelFunction prepare) {
  Preparations& all = preparations();
  const std::lock_guard lock(all.mutex);
  all.by_kernel[kernel] = prepare;
}

KernelFunction preparation_of(KernelFunction kernel) {
  Preparations& all = preparations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_kernel.find(kernel);
  return found == all.by_kernel.end() ? nullptr : found->second;
}

}  // namespace hetero::graph
