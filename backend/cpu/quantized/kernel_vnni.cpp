// Compiled for AVX-512 with its instructions for 8-bit numbers (VNNI); called only where the
// processor has them. See kernel.h.

#include "backend/cpu/quantized/kernel.h"
#include "backend/cpu/quantized/lines_avx512.h"

namespace hetero::backend {
namespace {

struct Vnni : Avx512Lines {
  using Four = __m512i;
  static Four share(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  static Sums dot(Sums sums, Line line, Four four) { return _mm512_dpbusd_epi32(sums, line, four); }
};

}  // namespace

const QuantizedKernels& quantized_kernels_vnni() {
  static constexpr QuantizedKernels kKernels = make_quantized_kernels<Vnni>();
  return kKernels;
}

}  // namespace hetero::backend
