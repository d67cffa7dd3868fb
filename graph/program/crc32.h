// crc32: the checksum of ZIP files (CRC-32 of ISO 3309, polynomial 0xEDB88320).
//
// Thread safety: a pure function.

#pragma once

#include <cstdint>
#include <string_view>

namespace hetero::graph {

// The checksum of `bytes` after others whose checksum is `before`; 0 for none.
uint32_t crc32(std::string_view bytes, uint32_t before = 0);

}  // namespace hetero::graph
