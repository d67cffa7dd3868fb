// The products of cuBLAS and cuBLASLt for the stand-in (standin_cuda.cpp), computed on the host,
// with sgemm_ and dgemm_ of libtorch_cpu where it is loaded. A call counts as one launch. Float,
// double, half and bfloat16, summed in float or double, and int8 matrices; in cuBLASLt the
// epilogues with bias, ReLU and GELU. Not complex and 8 bit floating point numbers, scales, and the
// other epilogues. Matrices are copied into columns first, so that one function does them all.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "standin.h"

namespace standin {
namespace {

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(double value) {
    const float single = static_cast<float>(value);
    uint32_t wide;
    std::memcpy(&wide, &single, sizeof(wide));
    bits = std::isnan(single) ? 0x7fc0 : static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  operator float() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float single;
    std::memcpy(&single, &wide, sizeof(single));
    return single;
  }
};

// Calls f with a null pointer to the type; false where there is no such type here.
template <typename F>
bool with_type(cudaDataType type, F f) {
  switch (type) {
    case CUDA_R_32F:
      f(static_cast<float*>(nullptr));
      return true;
    case CUDA_R_64F:
      f(static_cast<double*>(nullptr));
      return true;
    case CUDA_R_16F:
      f(static_cast<_Float16*>(nullptr));
      return true;
    case CUDA_R_16BF:
      f(static_cast<BFloat16*>(nullptr));
      return true;
    case CUDA_R_8I:
      f(static_cast<int8_t*>(nullptr));
      return true;
    case CUDA_R_32I:
      f(static_cast<int32_t*>(nullptr));
      return true;
    default:
      return false;
  }
}

bool is_known(cudaDataType type) {
  return with_type(type, [](auto*) {});
}

size_t entry_bytes(cudaDataType type) {
  size_t bytes = 0;
  with_type(type, [&](auto* it) { bytes = sizeof(*it); });
  return bytes;
}

// Steps are in entries.
struct Matrix {
  const void* data;
  cudaDataType type;
  int64_t row_step;
  int64_t column_step;
  int64_t batch_step = 0;

  const char* batch(int64_t index) const {
    return static_cast<const char*>(data) + index * batch_step * static_cast<int64_t>(entry_bytes(type));
  }
};

Matrix column_major(const void* data, cudaDataType type, int64_t ld, cublasOperation_t op = CUBLAS_OP_N,
                    int64_t batch_step = 0) {
  const bool plain = op == CUBLAS_OP_N;
  return {data, type, plain ? 1 : ld, plain ? ld : 1, batch_step};
}

enum class Activation { kNone, kRelu, kGelu };

// d = activation(alpha a b + beta c + bias), where a is rows x depth and bias has an entry for each
// row.
struct Product {
  int64_t rows, columns, depth;
  double alpha, beta;
  Matrix a, b, c, d;
  int64_t batches = 1;
  const void* bias = nullptr;
  cudaDataType bias_type = CUDA_R_32F;
  Activation activation = Activation::kNone;
};

// Column after column.
template <typename T>
std::vector<T> gather(const Matrix& matrix, int64_t batch, int64_t rows, int64_t columns) {
  std::vector<T> result(static_cast<size_t>(rows * columns));
  void* const data = access_to(matrix.batch(batch));
  with_type(matrix.type, [&](auto* type) {
    const auto* const from = static_cast<decltype(type)>(data);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        result[static_cast<size_t>(i + j * rows)] = static_cast<T>(from[i * matrix.row_step + j * matrix.column_step]);
      }
    }
  });
  return result;
}

template <typename T>
using HostGemm = void (*)(const char*, const char*, const int*, const int*, const int*, const T*, const T*, const int*,
                          const T*, const int*, const T*, T*, const int*);

template <typename T>
HostGemm<T> find_host_gemm() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<HostGemm<T>>(
      dlsym(library == nullptr ? RTLD_DEFAULT : library, sizeof(T) == sizeof(float) ? "sgemm_" : "dgemm_"));
}

template <typename T>
std::vector<T> multiply(const std::vector<T>& a, const std::vector<T>& b, int64_t rows, int64_t columns,
                        int64_t depth) {
  static const HostGemm<T> host_gemm = find_host_gemm<T>();
  std::vector<T> result(static_cast<size_t>(rows * columns));
  if (result.empty() || depth == 0) return result;
  if (host_gemm != nullptr) {
    const int m = static_cast<int>(rows), n = static_cast<int>(columns), k = static_cast<int>(depth);
    const T one = 1, zero = 0;
    host_gemm("N", "N", &m, &n, &k, &one, a.data(), &m, b.data(), &k, &zero, result.data(), &m);
    return result;
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t l = 0; l < depth; ++l) {
      const T factor = b[static_cast<size_t>(l + j * depth)];
      const T* const column = a.data() + l * rows;
      T* const to = result.data() + j * rows;
      for (int64_t i = 0; i < rows; ++i) to[i] += column[i] * factor;
    }
  }
  return result;
}

double activate(double value, Activation activation) {
  if (activation == Activation::kRelu) return std::max(value, 0.0);
  if (activation == Activation::kNone) return value;
  return 0.5 * value * (1 + std::tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
}

template <typename T>
void compute_as(const Product& it) {
  const Matrix bias_matrix{it.bias, it.bias_type, 1, 0};
  const std::vector<T> bias = it.bias == nullptr ? std::vector<T>() : gather<T>(bias_matrix, 0, it.rows, 1);
  for (int64_t batch = 0; batch < it.batches; ++batch) {
    const std::vector<T> a = gather<T>(it.a, batch, it.rows, it.depth);
    const std::vector<T> b = gather<T>(it.b, batch, it.depth, it.columns);
    const std::vector<T> product = multiply(a, b, it.rows, it.columns, it.depth);
    std::vector<T> old;
    if (it.beta != 0) old = gather<T>(it.c, batch, it.rows, it.columns);
    void* const data = access_to(it.d.batch(batch));
    with_type(it.d.type, [&](auto* type) {
      using Entry = std::remove_pointer_t<decltype(type)>;
      for (int64_t j = 0; j < it.columns; ++j) {
        for (int64_t i = 0; i < it.rows; ++i) {
          const auto at = static_cast<size_t>(i + j * it.rows);
          double value = it.alpha * static_cast<double>(product[at]);
          if (!old.empty()) value += it.beta * static_cast<double>(old[at]);
          if (!bias.empty()) value += static_cast<double>(bias[static_cast<size_t>(i)]);
          static_cast<Entry*>(data)[i * it.d.row_step + j * it.d.column_step] =
              static_cast<Entry>(activate(value, it.activation));
        }
      }
    });
  }
}

cublasStatus_t submit(cudaStream_t stream, const char* name, std::vector<Product> products) {
  for (const Product& it : products) {
    if (is_known(it.a.type) && is_known(it.b.type) && is_known(it.c.type) && is_known(it.d.type)) continue;
    std::fprintf(stderr, "standin: %s of types %d, %d, %d is not implemented\n", name, it.a.type, it.b.type, it.d.type);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto compute = [products = std::move(products)] {
    for (const Product& it : products) {
      const bool single = it.a.type != CUDA_R_64F && it.a.type != CUDA_R_8I;
      single ? compute_as<float>(it) : compute_as<double>(it);
    }
  };
  const cudaError_t error = noted(launch_kernel(stream, name, {}, {}, compute));
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

double read_scalar(const void* pointer, cudaDataType type) {
  double value = 0;
  with_type(type, [&](auto* it) { value = static_cast<double>(*static_cast<decltype(it)>(access_to(pointer))); });
  return value;
}

cudaDataType scale_type(cublasComputeType_t type) {
  switch (type) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return CUDA_R_64F;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      return CUDA_R_32I;
    default:
      return CUDA_R_32F;
  }
}

struct BlasHandle {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
};

BlasHandle& blas_of(cublasHandle_t handle) { return *reinterpret_cast<BlasHandle*>(handle); }

struct GemmCall {
  cublasHandle_t handle;
  const char* name;
  cublasOperation_t a_op, b_op;
  int m, n, k;
  const void *alpha, *beta;
  cudaDataType scale_type;

  Product product_of(const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb, void* c,
                     cudaDataType c_type, int ldc, long long a_step = 0, long long b_step = 0, long long c_step = 0,
                     int batches = 1) const {
    const Matrix result = column_major(c, c_type, ldc, CUBLAS_OP_N, c_step);
    return {.rows = m,
            .columns = n,
            .depth = k,
            .alpha = read_scalar(alpha, scale_type),
            .beta = read_scalar(beta, scale_type),
            .a = column_major(a, a_type, lda, a_op, a_step),
            .b = column_major(b, b_type, ldb, b_op, b_step),
            .c = result,
            .d = result,
            .batches = batches};
  }
  cublasStatus_t do_on_stream(const Product& product) const { return submit(blas_of(handle).stream, name, {product}); }
  // Of arrays of matrices.
  cublasStatus_t do_each(const void* const* a, cudaDataType a_type, int lda, const void* const* b, cudaDataType b_type,
                         int ldb, void* const* c, cudaDataType c_type, int ldc, int count) const {
    a = static_cast<const void* const*>(access_to(a));
    b = static_cast<const void* const*>(access_to(b));
    c = static_cast<void* const*>(access_to(c));
    std::vector<Product> products;
    for (int i = 0; i < count; ++i)
      products.push_back(product_of(a[i], a_type, lda, b[i], b_type, ldb, c[i], c_type, ldc));
    return submit(blas_of(handle).stream, name, std::move(products));
  }
};

// y = alpha op(a) x + beta y
cublasStatus_t gemv(cublasHandle_t handle, const char* name, cudaDataType type, cublasOperation_t op, int m, int n,
                    const void* alpha, const void* a, int lda, const void* x, int x_step, const void* beta, void* y,
                    int y_step) {
  const bool plain = op == CUBLAS_OP_N;
  const Matrix result{y, type, y_step, 0};
  return submit(blas_of(handle).stream, name,
                {{.rows = plain ? m : n,
                  .columns = 1,
                  .depth = plain ? n : m,
                  .alpha = read_scalar(alpha, type),
                  .beta = read_scalar(beta, type),
                  .a = column_major(a, type, lda, op),
                  .b = {x, type, x_step, 0},
                  .c = result,
                  .d = result}});
}

cublasStatus_t dot_product(cublasHandle_t handle, const char* name, int n, const void* x, cudaDataType x_type,
                           int x_step, const void* y, cudaDataType y_type, int y_step, void* result,
                           cudaDataType result_type) {
  const Matrix single{result, result_type, 0, 0};
  return submit(blas_of(handle).stream, name,
                {{.rows = 1,
                  .columns = 1,
                  .depth = n,
                  .alpha = 1,
                  .beta = 0,
                  .a = {x, x_type, 0, x_step},
                  .b = {y, y_type, y_step, 0},
                  .c = single,
                  .d = single}});
}

// What cuBLASLt keeps in descriptors: attributes by their number.
struct Attributes {
  std::map<int, std::vector<char>> values;

  template <typename T>
  T get(int which, T otherwise) const {
    const auto it = values.find(which);
    if (it != values.end()) std::memcpy(&otherwise, it->second.data(), std::min(sizeof(T), it->second.size()));
    return otherwise;
  }
  template <typename T>
  void set(int which, T value) {
    set_bytes(which, &value, sizeof(value));
  }
  void set_bytes(int which, const void* data, size_t bytes) {
    values[which].assign(static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
  }
};

template <typename Opaque>
Attributes*& attributes_in(Opaque* descriptor) {
  return *reinterpret_cast<Attributes**>(descriptor);
}

// Descriptors are opaque structures; the first word of ours points at the attributes.
template <typename Opaque>
Attributes& make_attributes(Opaque** descriptor) {
  *descriptor = new Opaque{};
  return *(attributes_in(*descriptor) = new Attributes);
}

template <typename Opaque>
cublasStatus_t discard(Opaque* descriptor) {
  delete attributes_in(descriptor);
  delete descriptor;
  return CUBLAS_STATUS_SUCCESS;
}

Matrix from_layout(const void* data, cublasLtMatrixLayout_t layout, cublasOperation_t op = CUBLAS_OP_N) {
  const Attributes& it = *attributes_in(layout);
  const bool by_rows = it.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL) == CUBLASLT_ORDER_ROW;
  const bool transposed = op != CUBLAS_OP_N;
  return column_major(data, it.get(CUBLASLT_MATRIX_LAYOUT_TYPE, CUDA_R_32F),
                      it.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD, 0), by_rows != transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      it.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0));
}

// The part of an epilogue that is not a matter of bias; false where it is not known here.
bool activation_of(int32_t epilogue, Activation& activation) {
  switch (epilogue & ~CUBLASLT_EPILOGUE_BIAS) {
    case 0:
    case CUBLASLT_EPILOGUE_DEFAULT:
      activation = Activation::kNone;
      return true;
    case CUBLASLT_EPILOGUE_RELU:
      activation = Activation::kRelu;
      return true;
    case CUBLASLT_EPILOGUE_GELU:
      activation = Activation::kGelu;
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

// ---- cuBLAS

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  return *handle = reinterpret_cast<cublasHandle_t>(new BlasHandle), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return delete &blas_of(handle), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
#define PROPERTY(Name, Type, member)                                   \
  cublasStatus_t cublasSet##Name(cublasHandle_t handle, Type value) {  \
    return blas_of(handle).member = value, CUBLAS_STATUS_SUCCESS;      \
  }                                                                    \
  cublasStatus_t cublasGet##Name(cublasHandle_t handle, Type* value) { \
    return *value = blas_of(handle).member, CUBLAS_STATUS_SUCCESS;     \
  }
PROPERTY(Stream_v2, cudaStream_t, stream)
PROPERTY(MathMode, cublasMath_t, math)
PROPERTY(PointerMode_v2, cublasPointerMode_t, pointers)
PROPERTY(AtomicsMode, cublasAtomicsMode_t, atomics)
#undef PROPERTY

// The functions that exist for float and for double, whose names differ in a letter.
#define FOR_TYPE(Letter, T, kType)                                                                                     \
  cublasStatus_t cublas##Letter##gemm_v2(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, \
                                         int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb,       \
                                         const T* beta, T* c, int ldc) {                                               \
    const GemmCall call{handle, "cublas" #Letter "gemm", a_op, b_op, m, n, k, alpha, beta, kType};                     \
    return call.do_on_stream(call.product_of(a, kType, lda, b, kType, ldb, c, kType, ldc));                            \
  }                                                                                                                    \
  cublasStatus_t cublas##Letter##gemmStridedBatched(                                                                   \
      cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k, const T* alpha,      \
      const T* a, int lda, long long a_step, const T* b, int ldb, long long b_step, const T* beta, T* c, int ldc,      \
      long long c_step, int count) {                                                                                   \
    const GemmCall call{handle, "cublas" #Letter "gemmStridedBatched", a_op, b_op, m, n, k, alpha, beta, kType};       \
    return call.do_on_stream(                                                                                          \
        call.product_of(a, kType, lda, b, kType, ldb, c, kType, ldc, a_step, b_step, c_step, count));                  \
  }                                                                                                                    \
  cublasStatus_t cublas##Letter##gemmBatched(                                                                          \
      cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k, const T* alpha,      \
      const T* const a[], int lda, const T* const b[], int ldb, const T* beta, T* const c[], int ldc, int count) {     \
    const GemmCall call{handle, "cublas" #Letter "gemmBatched", a_op, b_op, m, n, k, alpha, beta, kType};              \
    return call.do_each(reinterpret_cast<const void* const*>(a), kType, lda, reinterpret_cast<const void* const*>(b),  \
                        kType, ldb, reinterpret_cast<void* const*>(c), kType, ldc, count);                             \
  }                                                                                                                    \
  cublasStatus_t cublas##Letter##gemv_v2(cublasHandle_t handle, cublasOperation_t op, int m, int n, const T* alpha,    \
                                         const T* a, int lda, const T* x, int x_step, const T* beta, T* y,             \
                                         int y_step) {                                                                 \
    return gemv(handle, "cublas" #Letter "gemv", kType, op, m, n, alpha, a, lda, x, x_step, beta, y, y_step);          \
  }                                                                                                                    \
  cublasStatus_t cublas##Letter##dot_v2(cublasHandle_t handle, int n, const T* x, int x_step, const T* y, int y_step,  \
                                        T* result) {                                                                   \
    return dot_product(handle, "cublas" #Letter "dot", n, x, kType, x_step, y, kType, y_step, result, kType);          \
  }
FOR_TYPE(S, float, CUDA_R_32F)
FOR_TYPE(D, double, CUDA_R_64F)
#undef FOR_TYPE

cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void* x, cudaDataType x_type, int x_step, const void* y,
                           cudaDataType y_type, int y_step, void* result, cudaDataType result_type, cudaDataType) {
  return dot_product(handle, "cublasDotEx", n, x, x_type, x_step, y, y_type, y_step, result, result_type);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const GemmCall call{handle, "cublasGemmEx", a_op, b_op, m, n, k, alpha, beta, scale_type(compute)};
  return call.do_on_stream(call.product_of(a, a_type, lda, b, b_type, ldb, c, c_type, ldc));
}
cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                             const float* alpha, const void* a, cudaDataType a_type, int lda, const void* b,
                             cudaDataType b_type, int ldb, const float* beta, void* c, cudaDataType c_type, int ldc) {
  return cublasGemmEx(handle, a_op, b_op, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                                          long long a_step, const void* b, cudaDataType b_type, int ldb,
                                          long long b_step, const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long c_step, int count, cublasComputeType_t compute, cublasGemmAlgo_t) {
  const GemmCall call{handle, "cublasGemmStridedBatchedEx", a_op, b_op, m, n, k, alpha, beta, scale_type(compute)};
  return call.do_on_stream(
      call.product_of(a, a_type, lda, b, b_type, ldb, c, c_type, ldc, a_step, b_step, c_step, count));
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n,
                                   int k, const void* alpha, const void* const a[], cudaDataType a_type, int lda,
                                   const void* const b[], cudaDataType b_type, int ldb, const void* beta,
                                   void* const c[], cudaDataType c_type, int ldc, int count,
                                   cublasComputeType_t compute, cublasGemmAlgo_t) {
  const GemmCall call{handle, "cublasGemmBatchedEx", a_op, b_op, m, n, k, alpha, beta, scale_type(compute)};
  return call.do_each(a, a_type, lda, b, b_type, ldb, c, c_type, ldc, count);
}

// ---- cuBLASLt

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return cublasCreate_v2(reinterpret_cast<cublasHandle_t*>(handle));
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return cublasDestroy_v2(reinterpret_cast<cublasHandle_t>(handle));
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* result, cublasComputeType_t compute, cudaDataType scale) {
  Attributes& it = make_attributes(result);
  it.set(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute);
  it.set(CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t it) { return discard(it); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t it, cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  return attributes_in(it)->set_bytes(which, value, bytes), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* result, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  Attributes& it = make_attributes(result);
  it.set(CUBLASLT_MATRIX_LAYOUT_TYPE, type);
  it.set(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  it.set(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
  it.set(CUBLASLT_MATRIX_LAYOUT_LD, ld);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t it) { return discard(it); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t it, cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, size_t bytes) {
  return attributes_in(it)->set_bytes(which, value, bytes), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* result) {
  return make_attributes(result), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t it) { return discard(it); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return *count = 1, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t descriptor, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  const Attributes& it = *attributes_in(descriptor);
  const auto epilogue = it.get<int32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  Activation activation = Activation::kNone;
  bool known = activation_of(epilogue, activation);
  for (const int scale : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                          CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER}) {
    known &= it.get<const void*>(scale, nullptr) == nullptr;
  }
  if (!known) {
    std::fprintf(stderr, "standin: cublasLtMatmul with epilogue %d, or with scales, is not implemented\n", epilogue);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto a_op = it.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  const auto b_op = it.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  const auto scale_type = it.get(CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUDA_R_32F);
  const Attributes& result = *attributes_in(d_layout);
  const auto depth_of = a_op == CUBLAS_OP_N ? CUBLASLT_MATRIX_LAYOUT_COLS : CUBLASLT_MATRIX_LAYOUT_ROWS;
  Product product{.rows = result.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS, 0),
                  .columns = result.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_COLS, 0),
                  .depth = attributes_in(a_layout)->get<int64_t>(depth_of, 0),
                  .alpha = read_scalar(alpha, scale_type),
                  .beta = read_scalar(beta, scale_type),
                  .a = from_layout(a, a_layout, a_op),
                  .b = from_layout(b, b_layout, b_op),
                  .c = from_layout(c, c_layout),
                  .d = from_layout(d, d_layout),
                  .batches = result.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)};
  product.activation = activation;
  if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
    product.bias = it.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
    product.bias_type = it.get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, product.d.type);
    if (static_cast<int>(product.bias_type) == -1) product.bias_type = product.d.type;
  }
  return submit(stream, "cublasLtMatmul", {product});
}

}  // extern "C"
