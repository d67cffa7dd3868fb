#!/usr/bin/env bash
# All tests, cheapest first. Stops at the first stage that fails. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

stage() { printf '\n== %s\n' "$*"; }

stage "include direction"
.venv/bin/python scripts/check_includes.py

# Where there is nvcc, a build without the GPU's files was asked for by name or is a mistake.
if { command -v nvcc || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; } >/dev/null; then
  if ! grep -q '^HETERO_CUDA:.*=OFF' build/CMakeCache.txt && ! grep -q '^CMAKE_CUDA_COMPILER:.*nvcc' build/CMakeCache.txt; then
    echo "nvcc is there, and build/ has no cuda device: HETERO_CUDA=ON make build says why" >&2
    exit 1
  fi
else
  echo "no nvcc here: the cuda device is not built"
fi

stage "C++ tests"
ctest --test-dir build --output-on-failure -j "$jobs"
grep -hE '^(All tests passed|\[  PASSED|[0-9]+ tests skipped)' build/Testing/Temporary/LastTest.log

stage "random programs on simulated accelerators"
build/tests/graph/hetero_sim_fuzz --seeds 2000

stage "damaged files of saved programs"
build/tests/graph/hetero_load_fuzz --seeds 5000

stage "instruction counts"
scripts/instructions.sh

stage "torch-free layers under sanitizers"
scripts/sanitize.sh

stage "the CUDA path on a stand-in for the CUDA runtime"
if grep -q '^HETERO_CUDA:.*=OFF' build/CMakeCache.txt || [ ! -e build/backend/CMakeFiles/hetero_backend.dir/cuda/cuda_device.cpp.o ]; then
  echo "skipped: this build has no CUDA"
else
  tests/cuda_standin/build.sh
  tests/cuda_standin/run.sh .venv/bin/python -m pytest tests/cuda_standin -q
fi

stage "Python tests"
suites=()
for folder in tests/python tests/upstream; do
  if compgen -G "$folder/test_*.py" >/dev/null; then suites+=("$folder"); fi
done
.venv/bin/python -m pytest "${suites[@]}" -q -n "$jobs" --dist worksteal "$@"

# The same programs with every operator on a pseudo-random device and little memory on the accelerator: the bits stay the CPU's.
stage "Python tests on two devices"
scripts/test_two_devices.sh
HETERO_FUSION=1 scripts/test_two_devices.sh --sample 2 tests/python/lazy/test_models.py tests/python/lazy/test_fuzz.py tests/python/compile/test_compile.py tests/python/operators/test_errors.py
scripts/test_two_devices.sh tests/upstream

# The way of a GPU: operators have kernels of the device, or run on copies.
stage "Python tests on an accelerator that does not run the CPU's kernels"
HETERO_TEST_HOST_KERNELS=0 scripts/test_two_devices.sh --sample 2 tests/python/lazy/test_models.py tests/python/lazy/test_fuzz.py tests/python/tensors/test_views.py tests/python/operators/test_errors.py tests/python/tensors/test_out_resize.py
HETERO_TEST_HOST_KERNELS=0 scripts/test_two_devices.sh --sample 150 tests/upstream
