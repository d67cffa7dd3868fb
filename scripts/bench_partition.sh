#!/usr/bin/env bash
# Builds the bench of planning for two devices, without torch, and prints its table. Arguments are sections; see tests/perf/partition/main.cpp.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD_DIR:-build/partition}
if [ ! -f "$build/CMakeCache.txt" ]; then
  generator=(); if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B "$build" "${generator[@]}" -DHETERO_TORCH=OFF -DHETERO_CUDA=OFF >/dev/null
fi
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target hetero_partition >&2
exec "$build/tests/perf/partition/hetero_partition" torch_hetero/profiles "$@"
