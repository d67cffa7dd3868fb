#!/usr/bin/env bash
# Builds in build/ and puts the libraries into the package. Incremental.
#
#   scripts/build.sh              everything, tests included
#   scripts/build.sh product      the libraries of the package only; needs no test framework
#   scripts/build.sh quick        the libraries, and the tests that `make check` runs
#   scripts/build.sh gpu          the libraries with the cuda device, and the C++ tests of the torch-free layers, if there is Catch2
#   scripts/build.sh torch-free   what needs no torch: setup.sh builds it while pip installs torch
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
build=${BUILD_DIR:-build}
jobs=${JOBS:-$(nproc)}
case $what in
  all) targets=() ;;
  product) targets=(hetero_ops _C) ;;
  quick) targets=(hetero_ops _C hetero_ops_tests hetero_graph_tests hetero_backend_tests) ;;
  gpu) targets=(hetero_ops _C) ;;
  torch-free) targets=(hetero_backend hetero_graph) ;;
  *) echo "$0: all, product, quick, gpu or torch-free" >&2; exit 2 ;;
esac
tests=ON; case $what in product | torch-free) tests=OFF ;; gpu) tests=AUTO ;; esac
cuda=${HETERO_CUDA:-AUTO}; if [ "$what" = gpu ]; then cuda=ON; fi
python=$PWD/.venv/bin/python; if [ ! -x "$python" ]; then python=$(command -v "${PYTHON:-python3}"); fi
torch=ON; if [ "$what" = torch-free ]; then torch=OFF; fi

# One folder for all: what was built for less stays valid.
lacks() { [ "$2" != OFF ] && ! grep -Eq "^HETERO_$1:[A-Z]+=$2" "$build/CMakeCache.txt"; }
export PATH="$PWD/.venv/bin:$PATH"
if [ ! -f "$build/configured" ] || lacks TORCH $torch || lacks TESTS $tests; then
  generator=(); if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  mkdir -p "$build"
  cmake -S . -B "$build" "${generator[@]}" -DPython3_EXECUTABLE="$python" \
    -DHETERO_CUDA="$cuda" -DHETERO_TORCH=$torch -DHETERO_TESTS=$tests >"$build/configure.log"
  grep -E '^-- (hetero:|torch )' "$build/configure.log" || true
  touch "$build/configured"
fi
if [ "$what" = gpu ] && ! grep -q '^HETERO_CATCH2_INCLUDE:.*NOTFOUND' "$build/CMakeCache.txt"; then
  targets+=(hetero_backend_tests hetero_graph_tests)
fi
cmake --build "$build" -j "$jobs" ${targets:+--target "${targets[@]}"}
if [ "$what" = torch-free ]; then exit; fi
cmake --install "$build" --prefix torch_hetero | grep -v Up-to-date || true
