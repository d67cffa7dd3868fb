#include "ops/settings/parallel.h"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "backend/base/parallel.h"
#include "backend/base/range_pieces.h"
#include "backend/base/rounding.h"
#include "backend/threads/helpers.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();  // graph_task.h: -1 outside of a backward pass
}

namespace hetero::ops {
namespace {

// omp_pause_resource(omp_pause_soft, host), of the OpenMP that torch brings; nothing where it is
// older than OpenMP 5.
void release_openmp_pool() {
  static const auto pause = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_DEFAULT, "omp_pause_resource"));
  static const auto host = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_initial_device"));
  constexpr int kSoft = 1;
  if (pause != nullptr && host != nullptr) pause(kSoft, host());
}

std::atomic<int> chosen_threads{0};
thread_local bool is_worker = false;

// MKL's own count, for the calling thread, and returns what it was; nothing where torch has another
// BLAS.
int set_blas_threads(int threads) {
  static const auto set = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
  return set != nullptr ? set(threads) : 0;
}

void set_openmp_threads(int threads) {
  static const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(threads);
}

// The calling thread runs a body of a loop, where everything stays on its thread.
thread_local bool in_loop = false;

class InLoop {
 public:
  InLoop() : threads_(at::get_num_threads()), blas_threads_(set_blas_threads(1)) {
    set_openmp_threads(1);
    in_loop = true;
  }
  ~InLoop() {
    in_loop = false;
    set_openmp_threads(threads_);
    set_blas_threads(blas_threads_);
  }
  InLoop(const InLoop&) = delete;

 private:
  const int threads_, blas_threads_;
};

void begin_helper() {
  (void)at::get_num_threads();  // which sets it the first time
  set_openmp_threads(1);
  set_blas_threads(1);
  in_loop = true;
}

using Clock = std::chrono::steady_clock;

// As long as threads of GCC's OpenMP wait with their cores for the next region, and more.
constexpr std::chrono::milliseconds kOpenMpWaits{20};
thread_local Clock::time_point openmp_waits_until{};

// The helpers of a thread. Those of the main thread stay when the process ends, beside static
// destructors.
struct Team {
  backend::Helpers* helpers = nullptr;
  int64_t threads = 0;  // that it was made for

  ~Team();
};
thread_local bool team_is_gone = false;
Team& team_here() {
  static thread_local Team team;
  return team;
}
Team::~Team() {
  team_is_gone = true;
  if (::getpid() != ::gettid()) delete helpers;
}

int64_t threads_here() { return in_loop || at::in_parallel_region() ? 1 : at::get_num_threads(); }

// With helpers, or on ATen's threads, each with a share.
void run_in_pieces(int64_t begin, int64_t end, int64_t grain, backend::RangeFunction body) {
  const int64_t most = team_is_gone ? 1 : threads_here();
  const int64_t threads = std::min(most, backend::divide_up(end - begin, grain));
  if (threads <= 1) return body(begin, end);
  backend::RangePieces pieces(begin, end, grain, threads);
  if (Clock::now() < openmp_waits_until) {
    at::parallel_for(0, threads, 1, [&](int64_t share, int64_t) { pieces.work(share, body); });
    return;
  }
  Team& team = team_here();
  if (team.threads != most) {
    delete std::exchange(team.helpers, nullptr);
    team.helpers = new backend::Helpers(most - 1, &begin_helper);
    team.threads = most;
  }
  const InLoop here;
  team.helpers->run(pieces, threads, body);
}

// ATen's OpenMP gives each thread one range. Its other pools may run one after the other.
void run_each_at_once([[maybe_unused]] int64_t members, backend::RangeFunction body) {
#if AT_PARALLEL_OPENMP
  const OpenMpScope openmp;
  at::parallel_for(0, members, 1, [&](int64_t begin, int64_t end) { body(begin, end); });
#else
  body(0, members);
#endif
}

}  // namespace

void connect_thread_pool() {
  static const backend::ParallelPool pool{run_in_pieces, threads_here, run_each_at_once};
  backend::set_parallel_pool(&pool);
  backend::set_worker_start_hook([] { is_worker = true; });
  backend::set_thread_count_hook(use_threads_here);
}

void end_openmp() {
  if (!in_loop && at::get_num_threads() > 1) openmp_waits_until = Clock::now() + kOpenMpWaits;
}

void begin_openmp() {
  if (in_loop || team_is_gone) return;
  end_openmp();
  if (Team& team = team_here(); team.helpers != nullptr) team.helpers->rest();
}

KernelScope::~KernelScope() {
  const bool own_thread = c10::AutogradState::get_tls_state().get_multithreading_enabled();
  if (own_thread && torch::autograd::get_current_graph_task_id() != -1) release_openmp_pool();
}

void try_to_keep_backward_here() {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  // In a backward pass it is for who began that.
  if (state.get_inference_mode() || torch::autograd::get_current_graph_task_id() != -1) return;
  state.set_multithreading_enabled(false);
  backward_is_here = true;
}

void use_threads_here(int threads) {
  // Asking also lets ATen set the thread's count for the first time.
  if (at::get_num_threads() == threads) return;
  set_openmp_threads(threads);
  set_blas_threads(threads);
}

void choose_thread_count() { chosen_threads.store(at::get_num_threads(), std::memory_order_relaxed); }

void follow_thread_count() {
  if (!is_worker) return;
  const int threads = chosen_threads.load(std::memory_order_relaxed);
  if (threads > 0 && threads != at::get_num_threads()) at::set_num_threads(threads);
}

}  // namespace hetero::ops
