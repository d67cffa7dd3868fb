#!/usr/bin/env bash
# Counts the instructions of recording, replaying and planning with callgrind, and compares them with the baseline in
# tests/perf/instructions.json: fails where one is more than 5 % higher. `--update` writes the baseline anew.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${BUILD_DIR:-build}/tests/perf/instructions
if ! command -v valgrind >/dev/null; then
  echo "valgrind is not installed: instructions are not counted"
  exit 0
fi
if [ ! -x "$program" ]; then
  echo "$program is missing: run 'make build' (it needs valgrind's headers)" >&2
  exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The client requests in the program say when to count; everything before runs without instrumentation.
OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 valgrind --tool=callgrind --instr-atstart=no --collect-atstart=no \
  --callgrind-out-file="$folder/profile" --log-file="$folder/log" "$program" >"$folder/operations" ||
  { cat "$folder/log" "$folder/operations" >&2; exit 1; }
.venv/bin/python -m tests.perf.instructions "$folder" "$@"
