// AutocastPrivateUse1: torch.autocast("hetero") casts the operators that torch.autocast("cpu")
// casts, in the same way, so that results stay bitwise those of the CPU. Lists:
// ATen/autocast_mode.cpp, the Autocast CPU section of torch 2.11.

#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_native_multi_head_attention.h>

#include <optional>
#include <tuple>

#include "ops/settings/compat.h"

namespace {

using at::autocast::CastPolicy;

// As lower_precision_fp, but what is one tensor stays one: its projections are one product then
// (ops/dispatch/encoder_layer.h).
std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, int64_t size, int64_t heads,
                                                        const at::Tensor& inner, const at::Tensor& inner_bias,
                                                        const at::Tensor& outer, const at::Tensor& outer_bias,
                                                        const std::optional<at::Tensor>& mask, bool wants_weights,
                                                        bool averages_weights, std::optional<int64_t> mask_kind) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const auto cast = [to = at::autocast::get_autocast_dtype(at::kPrivateUse1)](const auto& tensor) {
    return at::autocast::cached_cast(to, tensor, at::kPrivateUse1);
  };
  const at::Tensor q = cast(query), k = key.is_same(query) ? q : cast(key);
  const at::Tensor v = value.is_same(query) ? q : value.is_same(key) ? k : cast(value);
  return at::_native_multi_head_attention(q, k, v, size, heads, cast(inner), cast(inner_bias), cast(outer),
                                          cast(outer_bias), cast(mask), wants_weights, averages_weights, mask_kind);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  // lower_precision_fp
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv1d, padding, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, padding, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv3d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv3d, padding, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linalg_vecdot, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(_convolution, deprecated, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv_tbc, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mkldnn_rnn_layer, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv_transpose1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv_transpose2d, input, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv_transpose3d, input, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(prelu, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  m.impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));

  // fp32
  KERNEL_PRIVATEUSEONE(avg_pool3d, fp32)
  KERNEL_PRIVATEUSEONE(binary_cross_entropy, fp32)
  KERNEL_PRIVATEUSEONE(grid_sampler, fp32)
  KERNEL_PRIVATEUSEONE(polar, fp32)
  KERNEL_PRIVATEUSEONE(prod, fp32)
  KERNEL_PRIVATEUSEONE(prod, dim_int, fp32)
  KERNEL_PRIVATEUSEONE(quantile, fp32)
  KERNEL_PRIVATEUSEONE(quantile, scalar, fp32)
  KERNEL_PRIVATEUSEONE(nanquantile, fp32)
  KERNEL_PRIVATEUSEONE(nanquantile, scalar, fp32)
  KERNEL_PRIVATEUSEONE(stft, fp32)
  KERNEL_PRIVATEUSEONE(stft, center, fp32)
  KERNEL_PRIVATEUSEONE(cdist, fp32)
  KERNEL_PRIVATEUSEONE(grid_sampler_2d, fp32)
  KERNEL_PRIVATEUSEONE(_grid_sampler_2d_cpu_fallback, fp32)
  KERNEL_PRIVATEUSEONE(grid_sampler_3d, fp32)
  KERNEL_PRIVATEUSEONE(trace, fp32)
  KERNEL_PRIVATEUSEONE(view_as_complex, fp32)
  KERNEL_PRIVATEUSEONE(cholesky_inverse, fp32)
  KERNEL_PRIVATEUSEONE(cholesky_solve, fp32)
  KERNEL_PRIVATEUSEONE(inverse, fp32)
  KERNEL_PRIVATEUSEONE(lu_solve, fp32)
  KERNEL_PRIVATEUSEONE(orgqr, fp32)
  KERNEL_PRIVATEUSEONE(ormqr, fp32)
  KERNEL_PRIVATEUSEONE(pinverse, fp32)
  KERNEL_PRIVATEUSEONE(max_pool3d, fp32)
  KERNEL_PRIVATEUSEONE(max_unpool2d, fp32)
  KERNEL_PRIVATEUSEONE(max_unpool3d, fp32)
  KERNEL_PRIVATEUSEONE(adaptive_avg_pool3d, fp32)
  KERNEL_PRIVATEUSEONE(reflection_pad1d, fp32)
  KERNEL_PRIVATEUSEONE(reflection_pad2d, fp32)
  KERNEL_PRIVATEUSEONE(replication_pad1d, fp32)
  KERNEL_PRIVATEUSEONE(replication_pad2d, fp32)
  KERNEL_PRIVATEUSEONE(replication_pad3d, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(cosine_embedding_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss2d, fp32)
  KERNEL_PRIVATEUSEONE(hinge_embedding_loss, fp32)
  KERNEL_PRIVATEUSEONE(poisson_nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(smooth_l1_loss, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(l1_loss, fp32)
  KERNEL_PRIVATEUSEONE(huber_loss, fp32)
  KERNEL_PRIVATEUSEONE(margin_ranking_loss, fp32)
  KERNEL_PRIVATEUSEONE(soft_margin_loss, fp32)
  KERNEL_PRIVATEUSEONE(triplet_margin_loss, fp32)
  KERNEL_PRIVATEUSEONE(multi_margin_loss, fp32)
  KERNEL_PRIVATEUSEONE(ctc_loss, IntList, fp32)
  KERNEL_PRIVATEUSEONE(ctc_loss, Tensor, fp32)
  KERNEL_PRIVATEUSEONE(kl_div, fp32)
  KERNEL_PRIVATEUSEONE(multilabel_margin_loss, fp32)
  KERNEL_PRIVATEUSEONE(binary_cross_entropy_with_logits, fp32)
  KERNEL_PRIVATEUSEONE(fft_fft, fp32)
  KERNEL_PRIVATEUSEONE(fft_ifft, fp32)
  KERNEL_PRIVATEUSEONE(fft_fft2, fp32)
  KERNEL_PRIVATEUSEONE(fft_ifft2, fp32)
  KERNEL_PRIVATEUSEONE(fft_fftn, fp32)
  KERNEL_PRIVATEUSEONE(fft_ifftn, fp32)
  KERNEL_PRIVATEUSEONE(fft_rfft, fp32)
  KERNEL_PRIVATEUSEONE(fft_irfft, fp32)
  KERNEL_PRIVATEUSEONE(fft_rfft2, fp32)
  KERNEL_PRIVATEUSEONE(fft_irfft2, fp32)
  KERNEL_PRIVATEUSEONE(fft_rfftn, fp32)
  KERNEL_PRIVATEUSEONE(fft_irfftn, fp32)
  KERNEL_PRIVATEUSEONE(fft_hfft, fp32)
  KERNEL_PRIVATEUSEONE(fft_ihfft, fp32)
  KERNEL_PRIVATEUSEONE(linalg_cond, fp32)
  KERNEL_PRIVATEUSEONE(linalg_cond, p_str, fp32)
  KERNEL_PRIVATEUSEONE(linalg_matrix_rank, fp32)
  KERNEL_PRIVATEUSEONE(linalg_matrix_rank, tol_tensor, fp32)
  KERNEL_PRIVATEUSEONE(linalg_matrix_rank, atol_rtol_tensor, fp32)
  KERNEL_PRIVATEUSEONE(linalg_matrix_rank, atol_rtol_float, fp32)
  KERNEL_PRIVATEUSEONE(linalg_solve, fp32)
  KERNEL_PRIVATEUSEONE(linalg_cholesky, fp32)
  KERNEL_PRIVATEUSEONE(linalg_svdvals, fp32)
  KERNEL_PRIVATEUSEONE(linalg_eigvals, fp32)
  KERNEL_PRIVATEUSEONE(linalg_eigvalsh, fp32)
  KERNEL_PRIVATEUSEONE(linalg_inv, fp32)
  KERNEL_PRIVATEUSEONE(linalg_householder_product, fp32)
  KERNEL_PRIVATEUSEONE(linalg_tensorinv, fp32)
  KERNEL_PRIVATEUSEONE(linalg_tensorsolve, fp32)
  KERNEL_PRIVATEUSEONE(fake_quantize_per_tensor_affine, fp32)
  KERNEL_PRIVATEUSEONE(geqrf, fp32)
  KERNEL_PRIVATEUSEONE(_lu_with_info, fp32)
  KERNEL_PRIVATEUSEONE(svd, fp32)
  KERNEL_PRIVATEUSEONE(triangular_solve, fp32)
  KERNEL_PRIVATEUSEONE(fractional_max_pool2d, fp32)
  KERNEL_PRIVATEUSEONE(fractional_max_pool3d, fp32)
  KERNEL_PRIVATEUSEONE(adaptive_max_pool3d, fp32)
  KERNEL_PRIVATEUSEONE(multilabel_margin_loss_forward, fp32)
  KERNEL_PRIVATEUSEONE(linalg_qr, fp32)
  KERNEL_PRIVATEUSEONE(linalg_cholesky_ex, fp32)
  KERNEL_PRIVATEUSEONE(linalg_svd, fp32)
  KERNEL_PRIVATEUSEONE(linalg_eig, fp32)
  KERNEL_PRIVATEUSEONE(linalg_eigh, fp32)
  KERNEL_PRIVATEUSEONE(linalg_lstsq, fp32)
  KERNEL_PRIVATEUSEONE(linalg_inv_ex, fp32)

  // promote
  KERNEL_PRIVATEUSEONE(stack, promote)
  KERNEL_PRIVATEUSEONE(cat, promote)
  KERNEL_PRIVATEUSEONE(index_copy, promote)

#if HETERO_HAS_NAMED_TENSORS
  KERNEL_PRIVATEUSEONE(prod, dim_Dimname, fp32)
  KERNEL_PRIVATEUSEONE(index_copy, dimname, promote)
#endif
#if HETERO_HAS_OLD_FACTORIZATIONS
  KERNEL_PRIVATEUSEONE(cholesky, fp32)
  KERNEL_PRIVATEUSEONE(qr, fp32)
#endif
}

}  // namespace
