# cpp-httplib: HTTP of the program qwen3. Licence: MIT. Minimum version: 0.11 (Debian package: libcpp-httplib-dev).
#
# Found by its header, and by its library where the package is compiled, as Debian's is. Defines httplib::httplib where present;
# without it the program qwen3 is not built.

find_path(HETERO_HTTPLIB_INCLUDE httplib.h)
find_library(HETERO_HTTPLIB_LIBRARY cpp-httplib)
find_package(Threads REQUIRED)
if(NOT HETERO_HTTPLIB_INCLUDE)
  message(STATUS "hetero: without cpp-httplib (libcpp-httplib-dev), the program qwen3 is not built")
elseif(NOT TARGET httplib::httplib)
  add_library(httplib::httplib INTERFACE IMPORTED GLOBAL)
  target_include_directories(httplib::httplib INTERFACE ${HETERO_HTTPLIB_INCLUDE})
  target_link_libraries(httplib::httplib INTERFACE Threads::Threads)
  if(HETERO_HTTPLIB_LIBRARY)
    target_link_libraries(httplib::httplib INTERFACE ${HETERO_HTTPLIB_LIBRARY})
  endif()
endif()
