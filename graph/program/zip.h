// The records of a ZIP file with stored entries: written before and after the bytes of entries, and
// read back.
//
// The format is PKWARE's APPNOTE.TXT, version 6.3: a local header before each entry, and at the end
// a directory, which is what counts. Sizes and offsets of more than 32 bits are in ZIP64 records.
// Compressed, encrypted and split files are refused.
//
// Thread safety: pure functions. The bytes must outlive the names that are read from them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/status.h"

namespace hetero::graph {

struct ZipEntry {
  std::string name;
  uint64_t header = 0;  // where in the file its local header begins
  uint64_t data = 0;    // where its bytes do
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

// The local header of an entry at `entry.header`. Sets `entry.data`, to a multiple of `alignment`.
// REQUIRES: alignment is a power of two up to 4096.
std::string zip_local_header(ZipEntry& entry, uint64_t alignment);

// The records that follow the last entry; `offset` is their place.
std::string zip_directory(const std::vector<ZipEntry>& entries, uint64_t offset);

// The entries of a file, in the directory's order; each lies between the file's begin and the
// directory. Their bytes are not looked at.
// Errors: kStorage, with what is wrong as the rest of a sentence, such as "is cut off at its end".
Result<std::vector<ZipEntry>> read_zip(std::string_view file);

}  // namespace hetero::graph
