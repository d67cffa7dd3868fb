#include "ops/kernels/packed_product.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "ops/kernels/blas.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using Implementation = LinearImplementation;
using backend::Element;
using backend::Matvec;

backend::Gemm gemm_of(const Matvec& call) {
  return {.a_transposed = call.x_columns,
          .b_transposed = !call.columns,
          .accumulate = call.bias != nullptr,
          .m = call.m,
          .n = call.n,
          .k = call.k,
          .a = static_cast<const float*>(call.x),
          // The stride of a single row may be any number.
          .lda = std::max(call.x_stride, call.x_columns ? call.m : call.k),
          .b = static_cast<const float*>(call.w),
          .ldb = call.w_stride,
          .c = static_cast<float*>(call.y),
          .ldc = std::max(call.y_stride, call.n)};
}

}  // namespace

bool fits_blas(const Matvec& call) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return std::max({call.m, call.n, call.k, call.x_stride, call.w_stride, call.y_stride}) <= kMost;
}

backend::Gemm gemm_over_bias(const Matvec& call) {
  constexpr int64_t kCopiedPerThread = 32 << 10;
  const backend::Gemm gemm = gemm_of(call);
  if (call.bias != nullptr) {
    backend::parallel_for(0, call.m, std::max<int64_t>(1, kCopiedPerThread / call.n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::copy_n(static_cast<const float*>(call.bias), call.n, gemm.c + row * gemm.ldc);
      }
    });
  }
  return gemm;
}

bool may_use_tiles(Element element) {
  return config().tiles.load(std::memory_order_relaxed) && backend::has_tiles_for(element) && has_sgemm();
}

bool can_multiply_packed(Implementation implementation, const Matvec& call) {
  switch (implementation) {
    case Implementation::kPackedTiles:
      return may_use_tiles(call.element);
    case Implementation::kPackedBlas:
      return call.element == Element::kFloat32 && fits_blas(call) && has_packed_sgemm();
    case Implementation::kPackedPanels:
      return backend::has_panels();
    default:
      return false;
  }
}

PackedForm form_of(Implementation implementation) {
  switch (implementation) {
    case Implementation::kPackedTiles:
      return PackedForm::kTiles;
    case Implementation::kPackedBlas:
      return PackedForm::kBlas;
    default:
      return PackedForm::kPanels;
  }
}

int64_t packed_space(Implementation implementation, const Matvec& call) {
  switch (implementation) {
    case Implementation::kPackedTiles:
      return backend::tile_weight_bytes(call.element, call.n, call.k);
    case Implementation::kPackedBlas:
      return packed_b_space(call.n, call.k);
    default:
      return backend::panel_weight_bytes(call.element, call.n, call.k);
  }
}

PackedWeights::Made packed_weight(Implementation implementation, const Matvec& call) {
  if (implementation == Implementation::kPackedBlas) {
    at::Tensor packed = packed_b(gemm_of(call));
    const int64_t bytes = packed_b_bytes(packed);
    return {std::move(packed), bytes};
  }
  const int64_t bytes = packed_space(implementation, call);
  at::Tensor packed = at::empty({bytes}, at::kByte);
  if (implementation == Implementation::kPackedPanels) {
    backend::pack_panel_weight(call, packed.mutable_data_ptr());
    return {std::move(packed), bytes};
  }
  const bool reachable = backend::pack_tile_weight(call, packed.mutable_data_ptr());
  return reachable ? PackedWeights::Made{std::move(packed), bytes} : PackedWeights::Made{{}, 0};
}

void multiply_packed(Implementation implementation, const Matvec& call, backend::Sgemm plain) {
  switch (implementation) {
    case Implementation::kPackedTiles:
      return backend::tile_gemm(call, plain);
    case Implementation::kPackedBlas:
      return sgemm_packed(gemm_over_bias(call), call.packed);
    default:
      return backend::panel_gemm(call);
  }
}

}  // namespace hetero::ops
