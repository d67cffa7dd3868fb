# JSON for Modern C++ (nlohmann): the JSON of saved programs and reports. Licence: MIT. Minimum version: 3.10 (Debian package: nlohmann-json3-dev).
#
# Found as a CMake package. Defines nlohmann_json::nlohmann_json.

find_package(nlohmann_json 3.10 QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann_json is missing: install the package nlohmann-json3-dev.")
endif()
