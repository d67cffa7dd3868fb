# libdeflate: the checksum of saved programs, CRC-32. Licence: MIT. Minimum version: 1.0 (Debian package: libdeflate-dev).
#
# Found by its header and its static library, so that a wheel needs no library of the machine it is installed on.
# Defines libdeflate::libdeflate where present; without it checksums are computed by a table, at a tenth of the speed.

find_path(HETERO_DEFLATE_INCLUDE libdeflate.h)
find_library(HETERO_DEFLATE_LIBRARY NAMES libdeflate.a)
if(NOT HETERO_DEFLATE_INCLUDE OR NOT HETERO_DEFLATE_LIBRARY)
  message(STATUS "hetero: without libdeflate (libdeflate-dev), the weights of saved programs load more slowly")
elseif(NOT TARGET libdeflate::libdeflate)
  add_library(libdeflate::libdeflate STATIC IMPORTED)
  set_target_properties(libdeflate::libdeflate PROPERTIES
    IMPORTED_LOCATION ${HETERO_DEFLATE_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HETERO_DEFLATE_INCLUDE}
    # Other libraries of a process bring versions of their own.
    INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,libdeflate.a")
endif()
