# liburing: reads and writes of files by io_uring. Licence: MIT or LGPL-2.1. Minimum version: 2.2 (Debian package: liburing-dev).
#
# Found by its header and its static library, so that a wheel needs no library of the machine it is installed on.
# Defines liburing where present; without it files are read and written by threads.

find_path(HETERO_URING_INCLUDE liburing.h)
find_library(HETERO_URING_LIBRARY NAMES liburing.a)
if(NOT HETERO_URING_INCLUDE OR NOT HETERO_URING_LIBRARY)
  message(STATUS "hetero: without liburing (liburing-dev), block stores read files by threads")
elseif(NOT TARGET liburing::liburing)
  add_library(liburing::liburing STATIC IMPORTED)
  set_target_properties(liburing::liburing PROPERTIES
    IMPORTED_LOCATION ${HETERO_URING_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HETERO_URING_INCLUDE}
    INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,liburing.a")
endif()
