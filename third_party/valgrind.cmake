# Valgrind: instruction counts with callgrind. Licence: GPL-2.0 for the tool, BSD for the headers that are included here.
# Minimum version: 3.16 (Debian package: valgrind).
#
# Defines valgrind::headers where present; the instruction check is left out where it is not.

find_path(HETERO_VALGRIND_INCLUDE valgrind/callgrind.h)
if(HETERO_VALGRIND_INCLUDE AND NOT TARGET valgrind::headers)
  add_library(valgrind::headers INTERFACE IMPORTED)
  target_include_directories(valgrind::headers INTERFACE ${HETERO_VALGRIND_INCLUDE})
endif()
