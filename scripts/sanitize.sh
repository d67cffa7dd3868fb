#!/usr/bin/env bash
# Builds backend/ and graph/ without torch and runs their tests under ASan+UBSan, then under TSan.
#
#   scripts/sanitize.sh         under TSan the tests of rooms where threads meet, and random programs
#   scripts/sanitize.sh --all   under TSan all of them
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
all=OFF; if [ "${1:-}" = --all ]; then all=ON; fi

run() { # name, sanitizers, tests that are left out, prefix of the command
  local build=build/$1
  if [ ! -f "$build/CMakeCache.txt" ]; then
    local generator=(); if command -v ninja >/dev/null; then generator=(-G Ninja); fi
    cmake -S . -B "$build" "${generator[@]}" -DHETERO_TORCH=OFF -DHETERO_CUDA=OFF -DHETERO_SANITIZE="$2" >/dev/null
  fi
  cmake -DHETERO_SANITIZE_ALL=$all "$build" >/dev/null
  local start=$SECONDS
  local targets=() target
  # Without PCRE2 or utf8proc, models/ is not built.
  for target in backend_tests graph_tests sim_fuzz load_fuzz qwen3_tests qwen3_fuzz; do
    if [[ $target =~ $3 ]] || [ -z "$(find "$build/tests" -name "hetero_$target.dir")" ]; then continue; fi
    targets+=("hetero_$target")
  done
  cmake --build "$build" -j "$jobs" --target "${targets[@]}"
  echo "-- $2: built in $((SECONDS - start)) s"
  start=$SECONDS
  ${4:-} ctest --test-dir "$build" --output-on-failure -j "$jobs" -E "$3"
  echo "-- $2: tested in $((SECONDS - start)) s"
}

none='^$'
run asan address,undefined "$none"
# Without address randomization: TSan cannot map its shadow on kernels with many random bits.
no_randomization=
if setarch -R true 2>/dev/null; then no_randomization="setarch -R"; fi
# Damaged files are read by one thread.
one_thread='load_fuzz|qwen3_fuzz'; if [ $all = ON ]; then one_thread=$none; fi
run tsan thread "$one_thread" "$no_randomization"
