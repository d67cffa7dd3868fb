# PCRE2: the regular expressions of tokenizers. Licence: BSD-3-Clause. Minimum version: 10.40, the first with \p{White_Space}
# (Debian package: libpcre2-dev).
#
# Found by its header and its static library, so that a program needs no library of the machine it is installed on. Defines
# PCRE2::8 where present; without it models/ is not built.

find_path(HETERO_PCRE2_INCLUDE pcre2.h)
find_library(HETERO_PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8)
if(HETERO_PCRE2_INCLUDE)
  file(STRINGS ${HETERO_PCRE2_INCLUDE}/pcre2.h _pcre2_minor REGEX "^#define PCRE2_MINOR ")
  string(REGEX MATCH "[0-9]+$" _pcre2_minor "${_pcre2_minor}")
endif()
if(NOT HETERO_PCRE2_INCLUDE OR NOT HETERO_PCRE2_LIBRARY OR _pcre2_minor LESS 40)
  message(STATUS "hetero: without PCRE2 10.40 (libpcre2-dev), models/qwen3 is not built")
elseif(NOT TARGET PCRE2::8)
  add_library(PCRE2::8 UNKNOWN IMPORTED GLOBAL)
  set_target_properties(PCRE2::8 PROPERTIES
    IMPORTED_LOCATION ${HETERO_PCRE2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HETERO_PCRE2_INCLUDE}
    INTERFACE_COMPILE_DEFINITIONS PCRE2_STATIC)
endif()
