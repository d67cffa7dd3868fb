#include "ops/kernels/blas.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "backend/base/rounding.h"
#include "ops/kernels/kernel.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

using FortranSgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                              const int*, const float*, const int*, const float*, float*, const int*);
FortranSgemm fortran_sgemm() {
  static const auto function = reinterpret_cast<FortranSgemm>(dlsym(RTLD_DEFAULT, "sgemm_"));
  return function;
}

// The documented values of MKL's enumerators, whose header torch does not bring.
enum Mkl : int { kRowMajor = 101, kNoTrans = 111, kTrans = 112, kPacked = 151, kB = 162 };

struct PackedSgemm {
  size_t (*size)(int identifier, int m, int n, int k);
  void (*pack)(int layout, int identifier, int trans, int m, int n, int k, float alpha, const float* from, int stride,
               float* to);
  void (*compute)(int layout, int a_form, int b_form, int m, int n, int k, const float* a, int a_stride, const float* b,
                  int b_stride, float beta, float* c, int c_stride);
};
const PackedSgemm& packed_sgemm() {
  const auto find = []<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  };
  static const PackedSgemm functions = [&] {
    PackedSgemm found{};
    const bool all = find("cblas_sgemm_pack_get_size", found.size) && find("cblas_sgemm_pack", found.pack) &&
                     find("cblas_sgemm_compute", found.compute);
    return all ? found : PackedSgemm{};
  }();
  return functions;
}

// MKL chooses the blocks of products when it packs. It wants to know the rows for that, and any
// number is allowed later. Blocks for so many are as fast for few rows and for thousands; those for
// 8 rows take up to 1.7 times as long for many.
constexpr int kRowsWhenPacked = 512;
// Smaller weights take pages of 4 KiB, since huge ones would add more than a quarter.
constexpr int64_t kFewestHugeBytes = 8 << 20;

int64_t page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

bool has_sgemm() { return fortran_sgemm() != nullptr; }

// Column-major BLAS sees our row-major c as its transpose, n by m.
void sgemm(const backend::Gemm& call) {
  const OpenMpScope openmp;
  const int rows = static_cast<int>(call.n), columns = static_cast<int>(call.m), depth = static_cast<int>(call.k);
  const int b_stride = static_cast<int>(call.ldb), a_stride = static_cast<int>(call.lda);
  const int c_stride = static_cast<int>(call.ldc);
  const float one = 1, beta = call.accumulate ? 1 : 0;
  fortran_sgemm()(call.b_transposed ? "T" : "N", call.a_transposed ? "T" : "N", &rows, &columns, &depth, &one, call.b,
                  &b_stride, call.a, &a_stride, &beta, call.c, &c_stride);
}

bool has_packed_sgemm() { return packed_sgemm().compute != nullptr; }

int64_t packed_b_space(int64_t n, int64_t k) {
  const size_t bytes = packed_sgemm().size(kB, kRowsWhenPacked, static_cast<int>(n), static_cast<int>(k));
  return backend::round_up(static_cast<int64_t>(bytes), page_bytes());
}

// Fresh pages of its own: those that MKL does not touch take no memory.
at::Tensor packed_b(const backend::Gemm& call) {
  const auto bytes = static_cast<size_t>(packed_b_space(call.n, call.k));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "not enough memory: you tried to map ", bytes, " bytes for a packed weight");
  at::Tensor packed = at::from_blob(
      memory, {static_cast<int64_t>(bytes)}, [bytes](void* mapped) { ::munmap(mapped, bytes); }, at::kByte);
  const int64_t own_bytes = call.n * call.k * static_cast<int64_t>(sizeof(float));
  if (own_bytes < kFewestHugeBytes) (void)::madvise(memory, bytes, MADV_NOHUGEPAGE);
  packed_sgemm().pack(kRowMajor, kB, call.b_transposed ? kTrans : kNoTrans, kRowsWhenPacked, static_cast<int>(call.n),
                      static_cast<int>(call.k), 1, call.b, static_cast<int>(call.ldb), static_cast<float*>(memory));
  return packed;
}

int64_t packed_b_bytes(const at::Tensor& packed) {
  std::vector<unsigned char> pages(static_cast<size_t>(packed.nbytes()) / static_cast<size_t>(page_bytes()));
  if (::mincore(packed.mutable_data_ptr(), packed.nbytes(), pages.data()) != 0) return packed.numel();
  return page_bytes() * std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

void sgemm_packed(const backend::Gemm& call, const void* packed) {
  const OpenMpScope openmp;
  const int n = static_cast<int>(call.n);
  packed_sgemm().compute(kRowMajor, call.a_transposed ? kTrans : kNoTrans, kPacked, static_cast<int>(call.m), n,
                         static_cast<int>(call.k), call.a, static_cast<int>(call.lda),
                         static_cast<const float*>(packed), n, call.accumulate ? 1.0F : 0.0F, call.c,
                         static_cast<int>(call.ldc));
}

bool onednn_computes(at::ScalarType dtype) {
  const auto says = [](const char* question) {
    const Isolated isolated;
    const auto handle = c10::Dispatcher::singleton().findSchema({question, ""});
    return handle.has_value() && handle->typed<bool()>().call();
  };
  static const bool bfloat16 = says("mkldnn::_is_mkldnn_bf16_supported");
  static const bool half = says("mkldnn::_is_mkldnn_fp16_supported");
  switch (dtype) {
    case at::kFloat:
      return at::hasMKLDNN();
    case at::kBFloat16:
      return bfloat16;
    case at::kHalf:
      return half;
    default:
      return false;
  }
}

}  // namespace hetero::ops
