# Run by `cmake --install`: puts the public headers, and the headers that these include, into include/hetero, in the folders of the sources.
# An include reads there as it reads here: #include "graph/serve/graph_executor.h".

cmake_policy(VERSION 3.24)

set(_public
  backend/base/random.h
  backend/cpu/quantized/checkpoint.h
  backend/cpu/quantized/gemm.h
  backend/memory/page_memory.h
  backend/threads/core_group.h
  graph/kv/kv_cache.h
  graph/program/archive.h
  graph/serve/graph_executor.h
  graph/serve/inspect.h
  graph/serve/scheduler.h
  graph/serve/server.h
  graph/serve/stage_pipeline.h
  graph/transfer/block_store.h
  ops/process/start.h
  ops/program/compute_graph.h
  ops/program/static_call.h)

# Names under which programs of users include some of them.
set(_aliases
  backend/cpu/core_group.h=backend/threads/core_group.h
  graph/serve/archive.h=graph/program/archive.h
  ops/compute_graph.h=ops/program/compute_graph.h
  ops/start.h=ops/process/start.h
  ops/static_call.h=ops/program/static_call.h)

set(_include ${CMAKE_INSTALL_PREFIX}/include/hetero)
get_filename_component(_root ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
set(_seen)
while(_public)
  list(POP_FRONT _public _header)
  if(_header IN_LIST _seen)
    continue()
  endif()
  list(APPEND _seen ${_header})
  get_filename_component(_folder ${_header} DIRECTORY)
  file(INSTALL ${_root}/${_header} DESTINATION ${_include}/${_folder})
  file(STRINGS ${_root}/${_header} _lines REGEX "^#include \"")
  foreach(_line IN LISTS _lines)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" _line "${_line}")
    list(APPEND _public ${_line})
  endforeach()
endwhile()

foreach(_alias IN LISTS _aliases)
  string(REPLACE "=" ";" _alias ${_alias})
  list(GET _alias 0 _name)
  list(GET _alias 1 _header)
  file(CONFIGURE OUTPUT ${_include}/${_name} CONTENT "#pragma once\n#include \"${_header}\"\n")
endforeach()
