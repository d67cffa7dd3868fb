#include "graph/program/crc32.h"

#ifdef HETERO_WITH_LIBDEFLATE
#include <libdeflate.h>
#else
#include <array>
#endif

namespace hetero::graph {

#ifdef HETERO_WITH_LIBDEFLATE
uint32_t crc32(std::string_view bytes, uint32_t before) {
  // libdeflate takes a null pointer as the request for a first checksum.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}
#else
namespace {

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ ((table[i] & 1) != 0 ? 0xEDB88320u : 0);
  }
  return table;
}();

}  // namespace

uint32_t crc32(std::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}
#endif

}  // namespace hetero::graph
