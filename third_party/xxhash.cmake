# xxHash: keys and checksums of blocks, XXH3. Licence: BSD-2-Clause. Minimum version: 0.8 (Debian package: libxxhash-dev).
#
# Only its header is used, which is compiled into the file that includes it.

find_path(HETERO_XXHASH_INCLUDE xxhash.h)
if(NOT HETERO_XXHASH_INCLUDE)
  message(FATAL_ERROR "hetero needs xxhash.h: please install libxxhash-dev")
endif()
