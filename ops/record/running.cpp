#include "ops/record/running.h"

#include <new>

namespace hetero::ops {
namespace {

struct Running {
  std::recursive_mutex mutex;
  std::vector<const TraceSlice*> slices;
};
Running& running() {
  static auto* instance = new Running;
  return *instance;
}

}  // namespace

std::recursive_mutex& executor_mutex() { return running().mutex; }

void renew_executor_mutex() { new (&running().mutex) std::recursive_mutex; }

std::vector<const TraceSlice*>& running_slices() { return running().slices; }

std::string line_of(uint32_t sequence) {
  if (running_slices().empty()) return "";
  const NodeNotes& notes = running_slices().back()->notes;
  const auto found = notes.find(sequence);
  return found == notes.end() ? std::string() : found->second.line;
}

}  // namespace hetero::ops
