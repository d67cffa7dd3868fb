# JSON for Modern C++ (nlohmann): the JSON of saved programs and reports. Licence: MIT. Minimum version: 3.10 (Debian package: nlohmann-json3-dev).
#
# Found as a CMake package, or by its header. Defines nlohmann_json::nlohmann_json.

find_package(nlohmann_json 3.10 QUIET)
if(NOT nlohmann_json_FOUND)
  find_path(HETERO_JSON_INCLUDE nlohmann/json.hpp)
  if(NOT HETERO_JSON_INCLUDE)
    message(FATAL_ERROR "nlohmann_json is missing: install the package nlohmann-json3-dev, or bring it along with "
                        "scripts/carry_packages.sh.")
  endif()
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE ${HETERO_JSON_INCLUDE})
endif()
