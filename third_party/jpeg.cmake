# libjpeg-turbo: decoding of JPEG files. Licence: BSD-3-Clause and IJG. Minimum version: 2.1 (Debian package: libjpeg62-turbo-dev).
#
# Only its header is used. The library is loaded when a file is decoded (backend/cpu/image/decode_jpeg.cpp), so that a wheel needs no
# library of the machine it is installed on. Without either, decoding a JPEG file is an error.

find_path(HETERO_JPEG_INCLUDE jpeglib.h)
if(NOT HETERO_JPEG_INCLUDE)
  message(STATUS "hetero: without libjpeg-turbo (libjpeg62-turbo-dev), JPEG files cannot be decoded")
endif()
