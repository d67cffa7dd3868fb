// By tables: eight bytes at a time ("slicing-by-8", M. Kounavis, F. Berry: A Systematic Approach to Building High Performance Software-based CRC
// Generators, 2005). By carry-less multiplication: 64 bytes at a time are folded into four registers, these into one, and that is reduced
// (V. Gopal et al.: Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009, from which the constants are).

#include "graph/program/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hetero::graph {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    tables[0][i] = crc;
  }
  for (size_t t = 1; t < tables.size(); ++t) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t before = tables[t - 1][i];
      tables[t][i] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

// All of these take and give the inverted checksum.
uint32_t add_by_tables(const unsigned char* data, size_t bytes, uint32_t crc) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word = 0;
    for (int i = 8; i-- > 0;) word = word << 8 | data[i];
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> (8 * i) & 0xFF];
  }
  for (; bytes > 0; ++data, --bytes) crc = crc >> 8 ^ kTables[0][(crc ^ *data) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
constexpr size_t kFoldBytes = 64;

__attribute__((target("pclmul"))) __m128i fold(__m128i sum, __m128i next, __m128i by) {
  const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(sum, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__m128i load(const unsigned char* data) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data)); }

// REQUIRES: `bytes` is a multiple of 16, and kFoldBytes at least.
__attribute__((target("pclmul,sse4.1"))) uint32_t add_by_folding(const unsigned char* data, size_t bytes,
                                                                 uint32_t crc) {
  const __m128i by_512_bits = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by_128_bits = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = load(data + 16 * i);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  for (data += kFoldBytes, bytes -= kFoldBytes; bytes >= kFoldBytes; data += kFoldBytes, bytes -= kFoldBytes) {
    for (int i = 0; i < 4; ++i) sums[i] = fold(sums[i], load(data + 16 * i), by_512_bits);
  }
  __m128i sum = sums[0];
  for (int i = 1; i < 4; ++i) sum = fold(sum, sums[i], by_128_bits);
  for (; bytes > 0; data += 16, bytes -= 16) sum = fold(sum, load(data), by_128_bits);

  // 128 bits to 64, to 32 by Barrett's reduction.
  const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
  sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_128_bits, 0x10));
  const __m128i last_fold = _mm_set_epi64x(0, 0x163cd6124);
  sum = _mm_xor_si128(_mm_srli_si128(sum, 4), _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), last_fold, 0x00));
  const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);  // the quotient, the polynomial
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(sum, quotient), 1));
}

bool can_fold() {
  static const bool can = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  return can;
}
#endif

}  // namespace

uint32_t crc32_by_tables(const void* data, size_t bytes, uint32_t before) {
  return ~add_by_tables(static_cast<const unsigned char*>(data), bytes, ~before);
}

uint32_t crc32(const void* data, size_t bytes, uint32_t before) {
#if defined(__x86_64__)
  if (bytes >= kFoldBytes && can_fold()) {
    const auto* const first = static_cast<const unsigned char*>(data);
    const size_t folded = bytes & ~size_t{15};
    const uint32_t crc = add_by_folding(first, folded, ~before);
    return ~add_by_tables(first + folded, bytes - folded, crc);
  }
#endif
  return crc32_by_tables(data, bytes, before);
}

}  // namespace hetero::graph
