#!/usr/bin/env bash
# Builds everything in build/ and puts the libraries into the package. Incremental.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD_DIR:-build}
jobs=${JOBS:-$(nproc)}
export PATH="$PWD/.venv/bin:$PATH"
if [ ! -f "$build/configured" ]; then
  generator=(); if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  mkdir -p "$build"
  cmake -S . -B "$build" "${generator[@]}" -DPython3_EXECUTABLE="$PWD/.venv/bin/python" \
    -DHETERO_CUDA="${HETERO_CUDA:-AUTO}" >"$build/configure.log"
  grep -E '^-- (hetero:|torch )' "$build/configure.log" || true
  touch "$build/configured"
fi
cmake --build "$build" -j "$jobs"
cmake --install "$build" --prefix torch_hetero | grep -v Up-to-date || true
