#!/usr/bin/env bash
# Runs the Python tests once more on the CPU and the simulated accelerator, under a budget of 16 MiB, and verifies every program before it runs;
# by default each operator runs on a pseudo-random device. tests/python/machines.py says which tests are left out, and why.
#
# `make test` runs most of this in its one run of pytest (tests/python/machines.py); here the environment chooses.
#
#   scripts/test_two_devices.sh                          all tests, at most 3 sets of parameters of each: a few minutes
#   scripts/test_two_devices.sh tests/python             all sets of parameters too; arguments go to pytest
#   scripts/test_two_devices.sh tests/upstream           PyTorch's operator database: all entries, about a minute; --sample 100 for fewer
#   HETERO_FUSION=1 scripts/test_two_devices.sh FILES    with fused kernels, for files that do not ask for eager's bits where sums are concerned
#   HETERO_PLACEMENT=auto scripts/test_two_devices.sh    the same where planning decides; or accelerator
#   HETERO_TEST_HOST_KERNELS=0 scripts/test_two_devices.sh  the same with operators run as on a GPU, by kernels of the device (docs/cuda.md)
#   HETERO_ACCELERATOR=cuda scripts/test_two_devices.sh  the same on a GPU; without one all are skipped, and counted
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

[ $# -gt 0 ] || set -- --sample 3 tests/python
export HETERO_ACCELERATOR=${HETERO_ACCELERATOR:-sim} HETERO_PLACEMENT=${HETERO_PLACEMENT:-mixed} HETERO_MEMORY_BUDGET=16MiB HETERO_FUSION=${HETERO_FUSION:-0}
export HETERO_VERIFY_PLANS=${HETERO_VERIFY_PLANS:-1}
exec .venv/bin/python -m pytest -q -n "$jobs" --dist worksteal "$@"
