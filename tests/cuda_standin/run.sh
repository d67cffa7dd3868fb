#!/usr/bin/env bash
# Runs a command with the stand-in for CUDA (build.sh) and a GPU that is one: memory that faults where the host touches it.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)/build/standin
export STANDIN_GUARD=${STANDIN_GUARD:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
exec env LD_PRELOAD="$here/libstandin_cuda.so $here/libhetero_ops.so" "$@"
