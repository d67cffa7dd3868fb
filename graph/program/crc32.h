// crc32: the checksum of ZIP files (CRC-32 of ISO 3309, polynomial 0xEDB88320), fast enough for weights.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

namespace hetero::graph {

// Of `data`, after bytes whose checksum is `before`; 0 for none.
uint32_t crc32(const void* data, size_t bytes, uint32_t before = 0);

// The same by tables alone, as on machines without carry-less multiplication.
uint32_t crc32_by_tables(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace hetero::graph
