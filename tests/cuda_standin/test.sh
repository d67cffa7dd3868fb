#!/usr/bin/env bash
# Builds the stand-in for CUDA and runs its tests, and the C++ tests of devices and plans, on it. REQUIRES: as build.sh.
# Arguments: the command that is pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/cuda_standin/build.sh
exec tests/cuda_standin/run.sh "${@:-.venv/bin/python -m pytest}" tests/cuda_standin
