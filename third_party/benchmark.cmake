# Google Benchmark: timings in C++. Licence: Apache-2.0. Minimum version: 1.7 (Debian package: libbenchmark-dev).
#
# Found as a CMake package. Defines benchmark::benchmark where present; benchmarks are left out where it is not.

find_package(benchmark QUIET)
