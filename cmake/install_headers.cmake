# Run by `cmake --install`: puts the public headers, and the headers that these include, into include/hetero, in the folders of the sources, so that
# an include reads there as it reads here: #include "graph/serve/graph_executor.h".

cmake_policy(VERSION 3.24)

set(_public
  backend/cpu/core_group.h
  graph/serve/archive.h
  graph/serve/graph_executor.h
  graph/serve/inspect.h
  graph/serve/scheduler.h
  graph/serve/server.h
  graph/serve/stage_pipeline.h
  ops/compute_graph.h
  ops/start.h
  ops/static_call.h)

get_filename_component(_root ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
set(_seen)
while(_public)
  list(POP_FRONT _public _header)
  if(_header IN_LIST _seen)
    continue()
  endif()
  list(APPEND _seen ${_header})
  get_filename_component(_folder ${_header} DIRECTORY)
  file(INSTALL ${_root}/${_header} DESTINATION ${CMAKE_INSTALL_PREFIX}/include/hetero/${_folder})
  file(STRINGS ${_root}/${_header} _includes REGEX "^#include \"")
  foreach(_include IN LISTS _includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" _include "${_include}")
    list(APPEND _public ${_include})
  endforeach()
endwhile()
