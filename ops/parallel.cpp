#include "ops/parallel.h"

#include <ATen/Parallel.h>

#include "backend/parallel.h"

namespace hetero::ops {
namespace {

// How many threads the main program uses; a device's worker threads must use as many, or sums would be cut differently.
int chosen_threads = 0;

}  // namespace

void connect_thread_pool() {
  static const backend::ParallelPool pool{
      [](int64_t begin, int64_t end, int64_t grain, backend::RangeFunction body) {
        at::parallel_for(begin, end, grain, [&](int64_t from, int64_t to) { body(from, to); });
      },
      [] { return static_cast<int64_t>(at::get_num_threads()); }};
  backend::set_parallel_pool(&pool);
  chosen_threads = at::get_num_threads();
  backend::set_worker_start_hook([] { at::set_num_threads(chosen_threads); });
}

}  // namespace hetero::ops
