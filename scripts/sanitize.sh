#!/usr/bin/env bash
# Builds backend/ and graph/ without torch and runs their tests under ASan+UBSan, then under TSan.
#
#   scripts/sanitize.sh         under TSan the tests of rooms where threads meet, and random programs
#   scripts/sanitize.sh --all   under TSan all of them
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
all=OFF; if [ "${1:-}" = --all ]; then all=ON; fi

run() { # name, sanitizers, prefix of the command
  local build=build/$1
  if [ ! -f "$build/CMakeCache.txt" ]; then
    local generator=(); if command -v ninja >/dev/null; then generator=(-G Ninja); fi
    cmake -S . -B "$build" "${generator[@]}" -DHETERO_TORCH=OFF -DHETERO_CUDA=OFF -DHETERO_SANITIZE="$2" >/dev/null
  fi
  cmake -DHETERO_SANITIZE_ALL=$all "$build" >/dev/null
  local start=$SECONDS
  local targets=(hetero_backend_tests hetero_graph_tests hetero_sim_fuzz hetero_load_fuzz)
  # Without PCRE2 or utf8proc, models/ is not built.
  if [ -n "$(find "$build/tests/models" -name '*qwen3_tests.dir' 2>/dev/null)" ]; then
    targets+=(hetero_qwen3_tests hetero_qwen3_fuzz)
  fi
  cmake --build "$build" -j "$jobs" --target "${targets[@]}"
  echo "-- $2: built in $((SECONDS - start)) s"
  start=$SECONDS
  ${3:-} ctest --test-dir "$build" --output-on-failure -j "$jobs"
  echo "-- $2: tested in $((SECONDS - start)) s"
}

run asan address,undefined
# Without address randomization: TSan cannot map its shadow on kernels with many random bits.
no_randomization=
if setarch -R true 2>/dev/null; then no_randomization="setarch -R"; fi
run tsan thread "$no_randomization"
