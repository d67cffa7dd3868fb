#include "tests/ops/start_device.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/process/start.h"

namespace hetero::ops::testing {
namespace {

at::Tensor like(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor& same(at::Tensor& x) { return x; }
at::Tensor poisson(const at::Tensor& x, std::optional<at::Generator>) { return like(x); }
at::Tensor roll(const at::Tensor& x, at::IntArrayRef, at::IntArrayRef) { return like(x); }
at::Tensor mse_loss_backward(const at::Tensor&, const at::Tensor& x, const at::Tensor&, int64_t) { return like(x); }

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] = index.numel();
  return x.new_empty(sizes);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double, std::optional<bool>) {
  return {like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(const at::Tensor& x, const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&, bool training,
                                                                 double, double) {
  const int64_t channels = training ? x.size(1) : 0;
  return {like(x), x.new_empty({channels}), x.new_empty({channels})};
}

// Python's raises as well; without one, indexing by a mask would look like an operator without a
// Meta kernel.
at::Tensor nonzero(const at::Tensor&) { TORCH_CHECK(false, "the shape of nonzero depends on its values"); }

}  // namespace

void start_device() { register_process(); }

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("relu", &like);
  m.impl("relu_", &same);
  m.impl("roll", &roll);
  m.impl("poisson", &poisson);
  m.impl("index_select", &index_select);
  m.impl("mse_loss_backward", &mse_loss_backward);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_batch_norm", &native_batch_norm);
  m.impl("nonzero", &nonzero);
}

}  // namespace hetero::ops::testing
