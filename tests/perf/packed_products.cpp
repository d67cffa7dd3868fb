// What a packed weight gains: products of models' sizes by each implementation that keeps one, next
// to ATen's product.
//
// Prints a table: milliseconds of ATen's, and of the others their part of its time. The bias is not
// computed. The implementations take turns, and the least time counts. A loaded machine needs more
// rounds.
//
//   OMP_NUM_THREADS=1 build/tests/perf/packed_products [ROUNDS]

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/measure.h"

namespace hetero::ops {
namespace {

struct Candidate {
  bool runs;
  std::function<void()> run;
};

void compare(int64_t m, int64_t k, int64_t n, int rounds) {
  const at::Tensor x = at::rand({m, k}), w = at::rand({n, k}), weight = w.t();
  at::Tensor y = at::empty({m, n});
  const backend::Gemm gemm{.b_transposed = true,
                           .m = m,
                           .n = n,
                           .k = k,
                           .a = x.const_data_ptr<float>(),
                           .lda = k,
                           .b = w.const_data_ptr<float>(),
                           .ldb = k,
                           .c = y.mutable_data_ptr<float>(),
                           .ldc = n};
  backend::Matvec panels{
      .m = m, .n = n, .k = k, .x = gemm.a, .x_stride = k, .w = gemm.b, .w_stride = k, .y = gemm.c, .y_stride = n};
  backend::Matvec tiles = panels;
  at::Tensor in_panels, in_tiles, of_mkl;
  if (backend::has_panels()) {
    in_panels = at::empty({backend::panel_weight_bytes(panels.element, n, k)}, at::kByte);
    backend::pack_panel_weight(panels, in_panels.mutable_data_ptr());
    panels.packed = in_panels.const_data_ptr();
  }
  if (backend::has_tiles()) {
    in_tiles = at::empty({backend::tile_weight_bytes(tiles.element, n, k)}, at::kByte);
    backend::pack_tile_weight(tiles, in_tiles.mutable_data_ptr());
    tiles.packed = in_tiles.const_data_ptr();
  }
  if (has_packed_sgemm()) of_mkl = packed_b(gemm);
  const Candidate candidates[] = {
      {true, [&] { at::mm_out(y, x, weight); }},
      {of_mkl.defined(), [&] { sgemm_packed(gemm, of_mkl.const_data_ptr()); }},
      {in_panels.defined(), [&] { backend::panel_gemm(panels); }},
      {in_tiles.defined(), [&] { backend::tile_gemm(tiles, &sgemm); }},
  };
  std::vector<double> least(std::size(candidates), 1e9);
  for (int round = 0; round < rounds; ++round) {
    const Measured measured = measure(std::size(candidates), [&](size_t i) {
      if (candidates[i].runs) candidates[i].run();
    });
    for (size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], measured.seconds[i]);
  }
  std::printf("| %ld | %ld | %ld | %.2f |", m, k, n, least[0] * 1e3);
  for (size_t i = 1; i < least.size(); ++i) {
    if (candidates[i].runs) {
      std::printf(" %.2f |", least[i] / least[0]);
    } else {
      std::printf(" |");
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace hetero::ops

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 5;
  std::printf(
      "| rows | k | n | ATen, ms | packed by MKL | packed panels | packed tiles |\n|---|---|---|---|---|---|---|\n");
  constexpr int64_t kWeights[][2] = {{384, 1152}, {384, 1536}, {1536, 384}, {512, 2048},
                                     {768, 768},  {768, 3072}, {3072, 768}};
  for (const auto& [k, n] : kWeights) {
    for (const int64_t m : {49, 77, 128, 197, 512}) hetero::ops::compare(m, k, n, rounds);
  }
}
