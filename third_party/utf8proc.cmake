# utf8proc: normalization of Unicode text. Licence: MIT. Minimum version: 2.0 (Debian package: libutf8proc-dev).
#
# Found by its header and its static library, as PCRE2. Defines utf8proc::utf8proc where present; without it models/ is not built.

find_path(HETERO_UTF8PROC_INCLUDE utf8proc.h)
find_library(HETERO_UTF8PROC_LIBRARY NAMES libutf8proc.a utf8proc)
if(NOT HETERO_UTF8PROC_INCLUDE OR NOT HETERO_UTF8PROC_LIBRARY)
  message(STATUS "hetero: without utf8proc (libutf8proc-dev), models/qwen3 is not built")
elseif(NOT TARGET utf8proc::utf8proc)
  add_library(utf8proc::utf8proc UNKNOWN IMPORTED GLOBAL)
  set_target_properties(utf8proc::utf8proc PROPERTIES
    IMPORTED_LOCATION ${HETERO_UTF8PROC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HETERO_UTF8PROC_INCLUDE}
    INTERFACE_COMPILE_DEFINITIONS UTF8PROC_STATIC)
endif()
