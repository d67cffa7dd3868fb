#!/usr/bin/env bash
# Runs Python tests once more on the CPU and the simulated accelerator: each operator on a pseudo-random device, under a budget of
# 16 MiB. Without arguments a part of tests/python that takes a few minutes; arguments go to pytest, `tests/python` for all of it.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

if [ $# = 0 ]; then
  set --
  for name in autocast custom_ops errors fuzz lazy out_resize parameters random rnn serialization threads views; do
    set -- "$@" "tests/python/test_$name.py"
  done
fi
export HETERO_ACCELERATOR=sim HETERO_PLACEMENT=mixed HETERO_MEMORY_BUDGET=16MiB HETERO_FUSION=0
exec .venv/bin/python -m pytest -q -n "$jobs" --dist worksteal "$@"
