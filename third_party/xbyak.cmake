# Xbyak: an assembler for x86-64, header only. Licence: BSD-3-Clause. Minimum version: 6 (Debian package: libxbyak-dev).
#
# Sets HETERO_XBYAK_INCLUDE where present; without it fused kernels are interpreted.

find_path(HETERO_XBYAK_INCLUDE xbyak/xbyak.h)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" OR NOT HETERO_XBYAK_INCLUDE)
  set(HETERO_XBYAK_INCLUDE "")
  message(STATUS "hetero: without Xbyak, fused kernels are interpreted")
endif()
