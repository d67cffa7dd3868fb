# zstd and LZ4: lossless codecs of blocks in a remote store. Licences: BSD-3-Clause and BSD-2-Clause. Minimum versions: 1.4 and
# 1.9 (Debian packages: libzstd-dev, liblz4-dev).
#
# Found by their headers and static libraries, so that a wheel needs no library of the machine it is installed on.
# Define codec_zstd and codec_lz4 where present; without one, blocks that it packed are missing blocks.

foreach(_codec zstd lz4)
  string(TOUPPER ${_codec} _name)
  find_path(HETERO_${_name}_INCLUDE ${_codec}.h)
  find_library(HETERO_${_name}_LIBRARY NAMES lib${_codec}.a)
  if(NOT HETERO_${_name}_INCLUDE OR NOT HETERO_${_name}_LIBRARY)
    message(STATUS "hetero: without lib${_codec}-dev, block stores have no codec ${_codec}")
  elseif(NOT TARGET codec_${_codec})
    add_library(codec_${_codec} STATIC IMPORTED)
    set_target_properties(codec_${_codec} PROPERTIES
      IMPORTED_LOCATION ${HETERO_${_name}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${HETERO_${_name}_INCLUDE}
      INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,lib${_codec}.a")
  endif()
endforeach()
